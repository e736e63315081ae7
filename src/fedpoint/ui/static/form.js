/* A new run from a form: a problem, a method, and how long; the file that says the same is shown beside it. */
import { ask, make, mathematics } from "./dom.js";
import { linkButton, remember } from "./share.js";

const WAIT = 300; // milliseconds after the last change, until the file is written again

export class NewRun {
  constructor(main, setting) {
    this.main = main;
    this.given = Object.fromEntries(setting); // by the names of the fields; what is left out has its default
    this.says = make("p", { class: "wrong", role: "alert" });
    this.file = make("pre", { class: "file", tabindex: 0, "aria-label": "The same as a file" });
    this.button = make("button", { type: "submit", form: "new" }, "Start the run");
    this.form = make("form", { class: "new", id: "new" });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    this.form.addEventListener("input", (event) => this.changed(event.target));
    // Beside the fields, which are many: in sight wherever the reader is among them.
    const side = make("section", { class: "side", "aria-label": "The run" }, make("p", { class: "buttons" }, this.button, linkButton()), this.says,
      make("h2", {}, "The same as a file"), this.file,
      make("p", { class: "pale" }, "Save it as mine.toml, and run it with: fedpoint run mine.toml"));
    main.replaceChildren(make("h1", {}, "New run"), make("p", {}, "Choose a problem and a method. The run starts on this machine, in the folder of runs, and goes on when this page is closed; it stops when fedpoint ui ends, and fedpoint resume continues it."),
      make("div", { class: "play" }, this.form, side));
    this.load();
  }

  async load() {
    try {
      this.about = await (await ask("/api/form")).json();
    } catch (error) {
      this.main.append(make("p", { class: "wrong" }, error.message));
      return;
    }
    if (this.closed) return;
    this.given.problem ||= "logistic";
    this.given.algorithm ||= "fedavg";
    if (this.given.algorithm === "fedavg") this.given["algorithm.step"] ??= "0.1";
    this.show();
    this.write();
  }

  /** The fields of the chosen problem and method. */
  show() {
    const chosen = (part) => this.about[part].find((c) => c.name === this.given[part]) || this.about[part][0];
    const parts = [["problem", "Problem"], ["algorithm", "Method"]].map(([part, legend]) => {
      const one = chosen(part);
      const select = make("select", { id: part, name: part, "aria-describedby": `${part}-help` }, ...this.about[part].map((c) => make("option", { value: c.name, selected: c === one }, c.title)));
      const about = mathematics("small", one.about);
      about.id = `${part}-help`;
      return make("fieldset", {}, make("legend", {}, legend), make("div", { class: "control" }, make("label", { for: part }, "Kind"), select, about),
        ...one.fields.map((f) => this.field(`${part}.${f.name}`, f)));
    });
    const run = make("fieldset", {}, make("legend", {}, "Run"), ...this.about.run.map((f) => this.field(f.name, f)));
    this.form.replaceChildren(...parts, run);
  }

  field(name, about) {
    const value = this.given[name] ?? about.start, id = name.replace(".", "-");
    const common = { id, name, "aria-describedby": `${id}-help` };
    const choices = about.start ? about.choices : ["", ...about.choices];
    const input = about.choices.length
      ? make("select", common, ...choices.map((c) => make("option", { value: c, selected: c === value }, c || "default")))
      : make("input", { ...common, type: "text", inputmode: about.kind === "integer" ? "numeric" : "decimal", autocomplete: "off", placeholder: "default", value });
    const help = mathematics("small", about.help);
    help.id = `${id}-help`;
    return make("div", { class: "control" }, make("label", { for: id }, about.name.replaceAll("_", " ")), input, help);
  }

  changed(input) {
    this.given[input.name] = input.value;
    if (input.name === "problem" || input.name === "algorithm") {
      for (const key of Object.keys(this.given)) if (key.startsWith(`${input.name}.`) && key !== "algorithm.step") delete this.given[key];
      this.show();
      document.getElementById(input.name).focus();
    }
    remember("/new", this.given);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), WAIT);
  }

  /** What the form says now: its fields, by name. */
  query() {
    return new URLSearchParams([...new FormData(this.form)].filter(([, value]) => value !== ""));
  }

  async write() {
    const asked = (this.asked = {});
    const wrong = (text) => {
      this.says.textContent = text;
      this.file.textContent = "";
    };
    try {
      const text = await (await ask(`/api/file?${this.query()}`)).text();
      if (this.asked !== asked || this.closed) return;
      wrong("");
      this.file.textContent = text;
    } catch (error) {
      if (this.asked === asked && !this.closed) wrong(error.message);
    }
    this.main.dataset.file = this.file.textContent.length;
  }

  async start() {
    this.button.disabled = true;
    this.button.textContent = "Starting …";
    try {
      const { name } = await (await ask(`/api/start?${this.query()}`, { method: "POST" })).json();
      location.hash = `#/runs/${encodeURIComponent(name)}`;
    } catch (error) {
      this.says.textContent = error.message;
    }
    this.button.disabled = false;
    this.button.textContent = "Start the run";
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    delete this.main.dataset.file;
  }
}
