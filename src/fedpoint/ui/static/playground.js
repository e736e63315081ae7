/* Sliders that rerun an experiment: the forecast is drawn first, the simulation when it is there. */
import { ask, make, mathematics, number, showChart } from "./dom.js";
import { Network } from "./network.js";
import { downloads, linkButton, remember } from "./share.js";

const reader = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => (b % 36).toString(36)).join("");
const AGAIN = 500; // milliseconds, after which a server that was busy is asked again
let requests = 0;

export class Playground {
  constructor(main, about, setting) {
    this.about = about;
    const linked = (c) => (Number.isFinite(Number.parseFloat(setting.get(c.name))) ? Number(setting.get(c.name)) : c.start);
    this.values = Object.fromEntries(about.controls.map((c) => [c.name, linked(c)]));
    this.says = make("p", { class: "says", "aria-live": "polite" });
    this.times = make("p", { class: "times" });
    this.box = make("div", { class: "chart", id: "chart" });
    this.side = make("div");
    const controls = make("section", { class: "controls", "aria-label": "Sliders" }, ...about.controls.map((c) => this.control(c)));
    const reset = make("button", { type: "button", onclick: () => this.reset() }, "Reset");
    controls.append(make("p", { class: "buttons" }, reset, linkButton()));
    const right = make("section", { "aria-label": "What happens" }, this.side, this.box, downloads(this.box, () => this.chart), this.says, this.times);
    main.replaceChildren(
      make("h1", {}, about.title),
      make("p", {}, about.about),
      mathematics("div", about.formulas, "formulas"),
      make("div", { class: "play" }, controls, right),
    );
    main.dataset.playground = about.name;
    this.main = main;
    this.ask();
  }

  control(c) {
    const id = `slider-${c.name}`, output = make("output", { for: id });
    const input = make("input", { type: "range", id, min: 0, max: c.values.length - 1, step: 1, "aria-describedby": `${id}-help` });
    c.show = () => {
      output.textContent = number(this.values[c.name]);
      input.setAttribute("aria-valuetext", output.textContent);
    };
    c.put = (value) => {
      this.values[c.name] = value;
      input.value = nearest(c.values, value);
      c.show();
    };
    input.addEventListener("input", () => {
      this.values[c.name] = c.values[Number(input.value)];
      c.show();
      this.ask();
    });
    c.put(c.values[nearest(c.values, this.values[c.name])]);
    const name = make("label", { for: id }, c.label, make("span", { class: "pale" }, c.symbol), output);
    return make("div", { class: "control" }, name, input, make("small", { id: `${id}-help` }, c.help));
  }

  reset() {
    for (const c of this.about.controls) c.put(c.start);
    this.ask();
  }

  /** Ask for the newest positions; what was asked before is not wanted any more. */
  async ask() {
    remember(`/${this.about.name}`, this.values);
    const number = ++requests, begun = performance.now();
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.newest = number;
    const query = new URLSearchParams({ ...this.values, reader, number });
    try {
      const answer = await ask(`/api/play/${this.about.name}?${query}`, { signal: abort.signal });
      for await (const found of lines(answer.body)) {
        if (this.newest !== number) return;
        this.take(found, performance.now() - begun, number);
      }
    } catch (error) {
      if (error.name !== "AbortError" && this.newest === number) this.wrong(error.message);
    }
  }

  take(found, took, number) {
    if (found.kind === "error") return this.wrong(found.message);
    if (found.kind === "busy") {
      this.wrong(found.message);
      setTimeout(() => this.newest === number && this.ask(), AGAIN);
      return;
    }
    if (found.kind === "superseded") return;
    if (found.kind === "forecast") {
      this.spent = { forecast: took };
      this.says.className = "says";
      this.says.textContent = found.says;
      if (found.network) this.network(found);
    } else {
      this.spent.simulate = took;
      if (found.history) this.net.simulated(found.history);
    }
    this.chart = found.chart;
    this.curves = showChart(this.curves, this.box, found.chart);
    const part = (name, label) => (this.spent[name] === undefined ? `${label} under way …` : `${label} after ${Math.round(this.spent[name])} ms`);
    this.times.textContent = `${part("forecast", "Forecast")}, ${part("simulate", "simulation")}.`;
    // For tests, and whoever wants to know: which request is drawn, and how long it took.
    Object.assign(this.main.dataset, { drawn: `${found.kind} ${number}`, forecast: this.spent.forecast.toFixed(1) });
    if (found.kind === "simulate") this.main.dataset.simulate = this.spent.simulate.toFixed(1);
  }

  network(found) {
    if (!this.net) {
      const box = make("div", { class: "net" });
      this.box2 = make("div", { class: "chart" });
      this.side.append(make("div", { class: "pair" }, box, this.box2));
      this.net = new Network(box);
    }
    this.net.forecast(found.network);
    this.against = showChart(this.against, this.box2, found.against);
  }

  wrong(message) {
    this.says.className = "says wrong";
    this.says.textContent = message;
  }

  close() {
    this.newest = null;
    this.abort?.abort();
    this.net?.stop();
    this.curves?.destroy();
    this.against?.destroy();
    for (const name of ["playground", "drawn", "forecast", "simulate"]) delete this.main.dataset[name];
  }
}

function nearest(values, value) {
  let best = 0;
  values.forEach((v, i) => {
    if (Math.abs(v - value) < Math.abs(values[best] - value)) best = i;
  });
  return best;
}

/** The JSON documents of a body, a line each, as they come. */
async function* lines(body) {
  const text = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await text.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}
