/* The algorithms side by side: what each does, its formula, where it ends. */
import { ask, make, mathematics } from "./dom.js";

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
    this.main.replaceChildren(
      make("h1", {}, "The algorithms, side by side"),
      make("p", {}, "One round of each: what agents do, what the hub (or a node's neighbours) does with it, and where it ends with exact fields."),
      choose,
      this.cards,
    );
    this.show(found, boxes);
  }

  show(found, boxes) {
    this.cards.replaceChildren(...found.filter((_, i) => boxes[i].checked).map(card));
    if (!this.cards.children.length) this.cards.append(make("p", { class: "pale" }, "Choose some above."));
  }

  close() {
    this.closed = true;
  }
}

function card(lesson) {
  const facts = make("dl");
  const fact = (name, value, className) => {
    if (value) facts.append(make("dt", {}, name), make("dd", className ? { class: className } : {}, value));
  };
  fact("Where it ends", lesson.limit, "ends");
  fact("Runs with", lesson.where);
  fact("Restriction", lesson.restriction);
  fact("Lecture", lesson.lecture);
  const made = make("article", { class: "card" }, make("h2", {}, lesson.title), make("p", {}, lesson.summary));
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
