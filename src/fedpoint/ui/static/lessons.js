/* The algorithms side by side: what each does, its formula, where it ends. */
import { ask, decades, make, mathematics, number } from "./dom.js";

const COLOURS = 7;
const STAGES = [
  {
    network: false,
    title: "With a fusion center",
    told: "8 agents with quadratic losses of different curvature, noisy fields, all answer in every round.",
    y: "squared distance to w*",
  },
  {
    network: true,
    title: "Over a network",
    told: "The same agents on a ring, each with a model of its own.",
    y: "nodes' mean squared distance to GTVMin's solution",
  },
];

export class Lessons {
  constructor(main) {
    this.main = main;
    this.start();
  }

  async start() {
    const found = await (await ask("/api/lessons")).json();
    if (this.closed) return;
    this.cards = make("div", { class: "cards" });
    const boxes = found.map((lesson) => {
      const box = make("input", { type: "checkbox", name: lesson.name, checked: lesson.first });
      box.addEventListener("change", () => this.show(found, boxes));
      return box;
    });
    const choose = make("fieldset", { class: "choose" }, make("legend", { class: "pale" }, "Shown side by side:"));
    found.forEach((lesson, i) => choose.append(make("label", {}, boxes[i], lesson.title)));
    this.stages = STAGES.map((about) => {
      const box = make("div", { class: "chart" });
      const whole = make("section", { "aria-label": about.title }, make("h2", {}, about.title), make("p", { class: "pale" }, about.told), box);
      return { ...about, box, whole };
    });
    this.main.replaceChildren(
      make("h1", {}, "The algorithms, side by side"),
      make("p", {}, "One round of each: what agents do, what the hub (or a node's neighbours) does with it, and where it converges with exact fields."),
      choose,
      make("div", { class: "stages" }, ...this.stages.map((stage) => stage.whole)),
      this.cards,
    );
    this.show(found, boxes);
  }

  show(found, boxes) {
    const shown = found.filter((_, i) => boxes[i].checked);
    this.cards.replaceChildren(...shown.map((lesson, i) => card(lesson, i)));
    if (!this.cards.children.length) this.cards.append(make("p", { class: "pale" }, "Choose some above."));
    for (const stage of this.stages) this.draw(stage, shown);
  }

  /** All chosen methods of a kind on the one small problem: solid what happened, dashed the forecast. */
  draw(stage, shown) {
    const lines = [];
    shown.forEach(({ title, network, example }, i) => {
      if (!example || network !== stage.network) return;
      const x = example.run.map((_, round) => round);
      lines.push({ name: title, x, y: example.run, colour: i % COLOURS });
      lines.push({ name: `${title}, forecast`, x, y: example.forecast, colour: i % COLOURS, dash: "dashed", quiet: true });
    });
    stage.whole.hidden = !lines.length;
    if (!lines.length) return;
    const chart = {
      title: `${stage.title}: error over rounds`,
      x: { label: "rounds" },
      y: { label: stage.y, log: true, ...decades(lines) },
      note: "mean of 20 runs; dashed: forecast",
      lines,
    };
    if (stage.drawn) stage.drawn.update(chart);
    else stage.drawn = globalThis.fedpointCurves.draw(stage.box, chart);
  }

  close() {
    this.closed = true;
    for (const stage of this.stages || []) stage.drawn?.destroy();
  }
}

function card(lesson, place) {
  const facts = make("dl");
  const fact = (name, value, className) => {
    if (value) facts.append(make("dt", {}, name), make("dd", className ? { class: className } : {}, value));
  };
  fact("Where it ends", lesson.limit, "ends");
  fact("Runs with", lesson.where);
  fact("Restriction", lesson.restriction);
  fact("Lecture", lesson.lecture);
  if (lesson.example) {
    const { call, floor, bias2 } = lesson.example;
    fact("In the picture", make("code", {}, call));
    fact("Forecast", `floor ${number(floor[0])}, of which bias² ${number(bias2[0])}`);
  }
  const made = make("article", { class: "card" }, make("h2", {}, make("span", { class: `dot c${place % COLOURS}` }), lesson.title), make("p", {}, lesson.summary));
  made.append(mathematics("div", lesson.formulas, "formulas"), facts);
  const more = make("details", {}, make("summary", {}, "More"));
  for (const words of lesson.words) more.append(mathematics("p", words));
  if (lesson.parameters.length) {
    const list = make("dl");
    for (const p of lesson.parameters) list.append(make("dt", {}, make("code", {}, p.name)), mathematics("dd", p.what));
    more.append(make("h3", {}, "Parameters"), list);
  }
  for (const reference of lesson.references) more.append(make("p", { class: "pale" }, reference));
  made.append(more);
  return made;
}
