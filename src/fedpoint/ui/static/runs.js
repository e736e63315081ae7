/* The runs in the folder, and one of them with its curves, which go on as it does. */
import { ask, make, number } from "./dom.js";

const AGAIN = 3000; // milliseconds between looks at the list

export class RunList {
  constructor(main, folder) {
    this.main = main;
    this.body = make("tbody");
    const head = ["run", "state", "algorithm", "problem", "agents", "rounds", "repeats"].map((t) => make("th", { scope: "col" }, t));
    this.table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), this.body);
    this.none = make("p", { class: "pale" });
    main.replaceChildren(make("h1", {}, "Runs"), make("p", { class: "pale" }, `In the folder ${folder}, newest first.`), this.none, make("div", { class: "wide" }, this.table));
    this.look();
  }

  async look() {
    try {
      const runs = await (await ask("/api/runs")).json();
      if (this.closed) return;
      this.none.className = "pale";
      this.none.textContent = runs.length ? "" : "There is none yet: fedpoint run FILE.toml makes one.";
      this.table.hidden = !runs.length;
      const text = JSON.stringify(runs);
      if (text !== this.last) this.body.replaceChildren(...runs.map(row)); // else the focus would be lost
      this.last = text;
    } catch (error) {
      if (this.closed) return;
      this.none.className = "wrong";
      this.none.textContent = `No answer: ${error.message}`;
    }
    this.timer = setTimeout(() => this.look(), AGAIN);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function row(run) {
  const cell = (text) => make("td", {}, text === undefined || text === null ? "–" : String(text));
  const link = make("a", { href: `#/runs/${encodeURIComponent(run.name)}` }, run.title);
  const state = make("td", {}, make("span", { class: `state ${run.state}` }, run.state));
  if (run.state === "unreadable") return make("tr", {}, make("td", {}, run.title), state, make("td", { colspan: 5 }, run.message));
  const place = run.network ? `${run.problem}, network` : run.problem;
  return make("tr", {}, make("td", {}, link), state, cell(run.algorithm), cell(place), cell(run.agents), cell(`${run.reached ?? 0} / ${run.rounds}`), cell(run.repeats));
}

export class RunPage {
  constructor(main, name) {
    this.main = main;
    this.charts = {};
    this.facts = make("ul", { class: "facts" });
    this.state = make("p", { role: "status" }, "Loading …");
    this.boxes = make("div", { class: "pair" });
    main.replaceChildren(make("h1", {}, name), this.state, this.facts, this.boxes);
    this.stream = new EventSource(`/api/follow?name=${encodeURIComponent(name)}`);
    this.stream.addEventListener("curves", (event) => this.take(JSON.parse(event.data)));
    this.stream.addEventListener("problem", (event) => this.wrong(JSON.parse(event.data).message));
    this.stream.addEventListener("end", () => this.stream.close());
    this.stream.addEventListener("error", () => {
      if (this.stream.readyState === EventSource.CLOSED && !this.last) this.wrong("There is no such run here.");
    });
  }

  wrong(message) {
    this.stream.close();
    this.state.className = "wrong";
    this.state.textContent = message;
  }

  take(run) {
    this.last = run;
    this.main.dataset.points = run.x.length;
    this.state.replaceChildren(make("span", { class: `state ${run.state}` }, run.state), ` round ${number(run.reached)} of ${number(run.rounds)}`);
    const facts = { algorithm: run.algorithm, problem: run.problem, agents: run.agents, repeats: run.repeats, seed: run.seed };
    this.facts.replaceChildren(...Object.entries(facts).map(([name, value]) => make("li", {}, `${name} ${value}`)));
    for (const [measure, label] of [["error", "squared distance to the solution"], ["loss", "loss"]]) {
      if (!run[measure]) continue;
      const { mean, low, high } = run[measure];
      const several = run.repeats > 1;
      const chart = {
        title: `${label} over rounds`,
        x: { label: "rounds", min: 0, max: run.rounds || undefined },
        y: { label, log: measure === "error" },
        note: several ? `mean and range of ${run.repeats} repeats` : undefined,
        legend: "none",
        lines: [{ name: run.algorithm, x: run.x, y: mean, ...(several ? { low, high } : {}) }],
      };
      if (this.charts[measure]) this.charts[measure].update(chart);
      else {
        const box = make("div", { class: "chart", id: `chart-${measure}` });
        this.boxes.append(box);
        this.charts[measure] = globalThis.fedpointCurves.draw(box, chart);
      }
    }
  }

  close() {
    this.stream.close();
    for (const chart of Object.values(this.charts)) chart.destroy();
    delete this.main.dataset.points;
  }
}
