/* The runs in the folder, and one of them with its curves, which go on as it does. */
import { ask, make, number, showChart } from "./dom.js";
import { downloads, linkButton, remember, tableDownload } from "./share.js";

const AGAIN = 3000; // milliseconds between looks at the list
const FIRST = 5; // runs drawn together at first
const MOST = 24; // runs of one report

function asked(names) {
  return new URLSearchParams(names.map((name) => ["name", name]));
}

export class RunList {
  constructor(main, folder, setting) {
    this.main = main;
    const linked = setting.getAll("drawn");
    this.chosen = linked.length ? new Set(linked) : null; // names of the runs that are drawn together
    this.box = make("div", { class: "chart", id: "chart-runs", hidden: true });
    this.body = make("tbody");
    const head = ["drawn", "run", "state", "algorithm", "problem", "agents", "rounds", "repeats"].map((t) => make("th", { scope: "col" }, t));
    this.table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), this.body);
    this.none = make("p", { class: "pale" });
    this.report = make("a", { target: "_blank", rel: "noopener" }, "Report of the selected runs");
    this.link = make("p", { hidden: true }, this.report);
    this.compared = make("table", { class: "compared" });
    this.buttons = downloads(this.box, () => this.chart);
    this.more = make("p", { class: "pale", role: "status" });
    this.beside = make("section", { "aria-label": "Comparison", hidden: true }, this.buttons, this.more, make("div", { class: "wide" }, this.compared),
      make("p", { class: "buttons" }, tableDownload(this.compared, "comparison"), linkButton()), this.link);
    const about = make("p", { class: "pale" }, `In the folder ${folder}, newest first.`);
    main.replaceChildren(make("h1", {}, "Runs"), about, this.none, this.box, this.beside, make("div", { class: "wide" }, this.table));
    this.look();
  }

  async look() {
    try {
      const runs = await (await ask("/api/runs")).json();
      if (this.closed) return;
      this.none.className = "pale";
      this.none.textContent = runs.length ? "" : "No runs yet. Start one on the page New run, or with: fedpoint run FILE.toml";
      this.table.hidden = !runs.length;
      if (!this.chosen && runs.length) {
        this.chosen = new Set(runs.filter((run) => run.reached).slice(0, FIRST).map((run) => run.name));
        this.remember(); // who opens the link sees these, whatever has been run since
      }
      const text = JSON.stringify(runs);
      if (text !== this.last) this.body.replaceChildren(...runs.map((run) => this.row(run))); // else the focus would be lost
      this.last = text;
      this.runs = runs;
      if (this.chosen) await this.draw();
    } catch (error) {
      if (this.closed) return;
      this.none.className = "wrong";
      this.none.textContent = error.message;
    }
    if (!this.closed) this.timer = setTimeout(() => this.look(), AGAIN);
  }

  /** The chosen runs beside each other; asked for again when one of them has gone on. */
  async draw() {
    const shown = this.runs.filter(({ name, state }) => this.chosen.has(name) && state !== "unreadable").slice(0, MOST);
    const now = JSON.stringify(shown.map(({ name, reached }) => [name, reached]));
    if (now === this.drawnOf) return;
    const turn = (this.turn = {});
    const names = shown.map(({ name }) => name);
    const found = names.length ? await (await ask(`/api/compare?${asked(names)}`)).json() : { chart: null, table: [] };
    if (this.closed || this.turn !== turn) return;
    this.drawnOf = now;
    this.box.hidden = this.buttons.hidden = !found.chart;
    this.beside.hidden = !names.length;
    this.link.hidden = this.chosen.size > MOST;
    this.more.textContent = this.chosen.size > MOST ? `Of the ${this.chosen.size} chosen runs, the first ${MOST} are drawn.` : "";
    this.report.href = `/api/report?${asked(names)}`;
    this.compare(found.table);
    this.chart = found.chart;
    if (found.chart) this.drawn = showChart(this.drawn, this.box, found.chart);
  }

  /** The chosen runs in a table: where each of them is now. */
  compare([names = [], ...rows]) {
    this.compared.replaceChildren(
      make("caption", {}, "The runs that are drawn, at their last record"),
      make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((c) => make("td", {}, c))))),
    );
  }

  remember() {
    remember("/runs", [...this.chosen].map((name) => ["drawn", name]));
  }

  row(run) {
    const cell = (text) => make("td", {}, text === undefined || text === null ? "–" : String(text));
    const link = make("a", { href: `#/runs/${encodeURIComponent(run.name)}` }, run.title);
    const state = make("td", {}, make("span", { class: `state ${run.state}`, title: run.message || "" }, run.state));
    if (run.state === "unreadable") return make("tr", {}, make("td"), make("td", {}, run.title), state, make("td", { colspan: 5 }, run.message));
    const box = make("input", { type: "checkbox", checked: this.chosen.has(run.name), "aria-label": `draw ${run.title}` });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(run.name);
      else this.chosen.delete(run.name);
      this.remember();
      this.draw().catch(() => {}); // the next look says what is wrong
    });
    const place = run.network ? `${run.problem}, network` : run.problem;
    const rounds = `${run.reached ?? 0} / ${run.rounds}`;
    return make("tr", {}, make("td", {}, box), make("td", {}, link), state, cell(run.algorithm), cell(place), cell(run.agents), cell(rounds), cell(run.repeats));
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.drawn?.destroy();
  }
}

export class RunPage {
  constructor(main, name) {
    this.main = main;
    this.charts = {};
    this.shown = {};
    this.facts = make("ul", { class: "facts" });
    this.state = make("p", { role: "status" }, "Loading …");
    this.says = make("p", { class: "verdict", role: "status" });
    this.boxes = make("div", { class: "pair" });
    const report = make("p", {}, make("a", { href: `/api/report?${asked([name])}`, target: "_blank", rel: "noopener" }, "Report"), " (one page with everything, to be printed or saved)");
    this.name = name;
    this.abort = new AbortController();
    this.stop = make("button", { type: "button", hidden: true, onclick: () => this.end() }, "Stop this run");
    main.replaceChildren(make("h1", {}, name), this.state, this.stop, this.facts, this.says, this.boxes, report);
    this.stream = new EventSource(`/api/follow?name=${encodeURIComponent(name)}`);
    this.stream.addEventListener("curves", (event) => this.take(JSON.parse(event.data)));
    this.stream.addEventListener("problem", (event) => this.wrong(JSON.parse(event.data).message));
    this.stream.addEventListener("end", () => this.stream.close());
    this.stream.addEventListener("error", () => {
      if (this.stream.readyState === EventSource.CLOSED && !this.last) this.wrong("No such run.");
    });
  }

  wrong(message) {
    this.stream.close();
    this.state.className = "wrong";
    this.state.textContent = message;
  }

  /** The forecast, computed on the first visit, before the first round is there; again when the run has ended, for the verdict. */
  async look(run) {
    const now = run.state === "running" ? "running" : `${run.state} ${run.reached}`;
    if (run.reached === null || this.asked === now) return;
    this.asked = now;
    this.tell(this.forecast?.says || "The forecast is being computed …");
    try {
      const found = await (await ask(`/api/forecast?name=${encodeURIComponent(this.name)}`, { signal: this.abort.signal })).json();
      if (this.asked !== now) return;
      this.forecast = found;
      this.tell(found.says, found.good);
      this.draw(found.charts);
      this.main.dataset.forecast = found.charts.error?.lines.length ?? 0;
    } catch (error) {
      if (error.name !== "AbortError") this.tell(`No forecast: ${error.message}`);
    }
  }

  tell(says, good) {
    this.says.textContent = says;
    this.says.className = `verdict ${good === true ? "good" : good === false ? "bad" : "pale"}`;
  }

  async end() {
    this.stop.disabled = true;
    await ask(`/api/stop?name=${encodeURIComponent(this.name)}`, { method: "POST" }).catch((error) => this.wrong(error.message));
  }

  take(run) {
    this.last = run;
    this.look(run);
    this.main.dataset.points = run.x.length;
    this.stop.hidden = !run.stoppable;
    this.state.replaceChildren(make("span", { class: `state ${run.state}` }, run.state), ` round ${number(run.reached)} of ${number(run.rounds)}${run.message && `: ${run.message}`}`);
    const facts = { algorithm: run.algorithm, problem: run.problem, agents: run.agents, repeats: run.repeats, seed: run.seed };
    this.facts.replaceChildren(...Object.entries(facts).map(([name, value]) => make("li", {}, `${name} ${value}`)));
    this.draw(run.charts);
  }

  draw(charts) {
    for (const [measure, chart] of Object.entries(charts)) {
      this.shown[measure] = chart;
      if (!this.charts[measure]) {
        const box = make("div", { class: "chart", id: `chart-${measure}` });
        this.boxes.append(make("div", {}, box, downloads(box, () => this.shown[measure])));
        this.charts[measure] = showChart(null, box, chart);
      } else this.charts[measure].update(chart);
    }
  }

  close() {
    this.stream.close();
    this.abort.abort();
    for (const chart of Object.values(this.charts)) chart.destroy();
    for (const name of ["points", "forecast"]) delete this.main.dataset[name];
  }
}
