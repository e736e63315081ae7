/* The algorithms side by side: what each does, its formula, where it ends. */
import { ask, make, mathematics, number, showChart } from "./dom.js";
import { downloads } from "./share.js";

const COLOURS = 7;

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
    this.stages = make("div", { class: "stages" });
    this.drawn = new Map(); // title -> what stands under it
    this.main.replaceChildren(
      make("h1", {}, "The algorithms, side by side"),
      make("p", {}, "One round of each: what agents do, what the hub (or a node's neighbours) does with it, and where it converges with exact fields."),
      choose,
      this.stages,
      this.cards,
    );
    this.show(found, boxes);
  }

  show(found, boxes) {
    const shown = found.filter((_, i) => boxes[i].checked);
    this.cards.replaceChildren(...shown.map((lesson, i) => card(lesson, i)));
    if (!this.cards.children.length) this.cards.append(make("p", { class: "pale" }, "Choose some above."));
    this.draw(shown).catch((error) => this.closed || this.stages.replaceChildren(make("p", { class: "wrong" }, error.message)));
  }

  /** The chosen methods of a kind on one small problem each. */
  async draw(shown) {
    const asked = (this.asked = {});
    const found = await (await ask(`/api/stages?${new URLSearchParams(shown.map(({ name }) => ["name", name]))}`)).json();
    if (this.asked !== asked || this.closed) return;
    for (const [title, stage] of this.drawn) if (!found.some((one) => one.title === title)) this.remove(title, stage);
    for (const { title, told, chart } of found) {
      const stage = this.drawn.get(title) || this.stage(title, told);
      stage.shown = chart;
      stage.drawn = showChart(stage.drawn, stage.box, chart);
    }
  }

  stage(title, told) {
    const box = make("div", { class: "chart" }), stage = { box };
    stage.whole = make("section", { "aria-label": title }, make("h2", {}, title), make("p", { class: "pale" }, told), box, downloads(box, () => stage.shown));
    this.stages.append(stage.whole);
    this.drawn.set(title, stage);
    return stage;
  }

  remove(title, stage) {
    stage.drawn.destroy();
    stage.whole.remove();
    this.drawn.delete(title);
  }

  close() {
    this.closed = true;
    for (const [title, stage] of this.drawn || []) this.remove(title, stage);
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
