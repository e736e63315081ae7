/* A study while it runs: words and tables of words, all of them shown as text. */
import { make } from "./dom.js";
import { themeButton } from "./theme_button.js";

const main = document.getElementById("main"), badge = document.getElementById("state");

function table(rows) {
  const [head, ...rest] = rows;
  const cells = (row, tag, scope) => row.map((cell, i) => make(i ? tag : "th", { scope: i ? scope : (scope ?? "row") }, cell));
  return make("div", { class: "wide", tabindex: "0" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...cells(head, "th", "col"))),
      make("tbody", {}, ...rest.map((row) => make("tr", {}, ...cells(row, "td"))))));
}

function show(view) {
  const { title, lead, state, round, rounds, sections } = view;
  document.title = `${title} · fedpoint`;
  badge.textContent = state;
  badge.className = state === "running" ? "badge busy" : "badge";
  main.replaceChildren(
    make("h1", {}, title),
    make("p", {}, lead),
    make("label", { for: "round" }, `Round ${round} of ${rounds}`),
    make("progress", { id: "round", max: rounds, value: round }),
    ...sections.map((one) => make("section", {},
      make("h2", {}, one.heading),
      ...one.lines.map((line) => make("p", {}, line)),
      one.table.length > 1 ? table(one.table) : null)));
  main.dataset.round = round;
}

function problem(text) {
  badge.textContent = "no answer";
  badge.className = "badge";
  if (!main.dataset.round) main.replaceChildren(make("p", { class: "wrong" }, text));
}

themeButton();
const stream = new EventSource("/api/follow");
stream.addEventListener("study", (event) => show(JSON.parse(event.data)));
stream.addEventListener("problem", (event) => problem(JSON.parse(event.data).message));
stream.addEventListener("error", () => problem("The page does not answer: is `fedpoint federate page` still running?"));
