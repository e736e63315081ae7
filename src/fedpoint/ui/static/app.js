/* Which screen is shown: by the part of the address after #. */
import { ask, make } from "./dom.js";
import { NewRun } from "./form.js";
import { Lessons } from "./lessons.js";
import { Playground } from "./playground.js";
import { RunList, RunPage } from "./runs.js";
import { themeButton } from "./theme_button.js";

const main = document.getElementById("main"), pages = document.getElementById("pages");
const badge = document.getElementById("compilation");
let screen = null;

themeButton();

function showCompilation(compilation) {
  const states = Object.values(compilation), ready = states.filter((s) => s === "ready").length;
  const failed = states.includes("failed"), done = states.every((s) => s === "ready" || s === "failed");
  badge.className = done ? "badge" : "badge busy";
  badge.textContent = failed ? "a playground failed: see the terminal" : done ? "ready" : `warming up, ${ready} of ${states.length} ready`;
}

async function start() {
  const state = await (await ask("/api/state")).json();
  const links = state.playgrounds.map((p) => [p.name, p.title]);
  links.push(["algorithms", "Algorithms"], ["new", "New run"], ["runs", "Runs"]);
  pages.append(...links.map(([name, title]) => make("a", { href: `#/${name}` }, title)));
  showCompilation(state.compilation);
  const stream = new EventSource("/api/compilation");
  stream.addEventListener("compilation", (event) => showCompilation(JSON.parse(event.data)));
  stream.addEventListener("end", () => stream.close());

  const show = () => {
    const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    const [name, ...rest] = path.split("/"), setting = new URLSearchParams(query); // of a link to a setting
    const chosen = links.some(([n]) => n === name) ? name : links[0][0];
    for (const link of pages.children) {
      if (link.getAttribute("href") === `#/${chosen}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    screen?.close();
    main.replaceChildren();
    if (chosen === "algorithms") screen = new Lessons(main);
    else if (chosen === "runs") screen = rest.length ? new RunPage(main, decodeURIComponent(rest.join("/"))) : new RunList(main, state.folder, setting);
    else if (chosen === "new") screen = new NewRun(main, setting);
    else screen = new Playground(main, state.playgrounds.find((p) => p.name === chosen), setting);
    document.title = `${links.find(([n]) => n === chosen)[1]} · fedpoint`;
  };
  addEventListener("hashchange", () => {
    if (location.hash === "#main") return; // the link that skips the header
    show();
    main.focus();
  });
  show();
}

start().catch((error) => main.replaceChildren(make("p", { class: "wrong" }, `The page could not be loaded: ${error.message}`)));
