/* What can be taken away: a link to what is shown, a figure as SVG, its numbers or a table as CSV. */
import { make } from "./dom.js";

const LOOK = ["fill", "stroke"]; // what style sheets change
const SVG = "http://www.w3.org/2000/svg";

/** The address becomes a link to this setting; going back leads to the page before, not through every setting. */
export function remember(path, setting) {
  history.replaceState(null, "", `#${path}?${new URLSearchParams(setting)}`);
}

/** Copies the address; where the browser does not let it, shows it to be copied. */
export function linkButton() {
  const said = make("span", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      said.textContent = " Copied.";
    } catch {
      const field = make("input", { type: "text", readonly: true, value: location.href, "aria-label": "Link to this setting" });
      said.replaceChildren(" ", field);
      field.select();
    }
  };
  return make("span", { class: "link" }, make("button", { type: "button", onclick: copy }, "Copy link"), said);
}

/** Buttons for a chart: `box` holds its picture, `chart()` what it is drawn from. */
export function downloads(box, chart) {
  const figure = () => save(`${slug(chart().title)}.svg`, "image/svg+xml", picture(box.querySelector(".plot > svg"), chart().note));
  const numbers = () => save(`${slug(chart().title)}.csv`, "text/csv", csv(points(chart())));
  const button = (label, act) => make("button", { type: "button", onclick: () => box.querySelector(".plot > svg") && act() }, label);
  return make("p", { class: "buttons" }, button("Download figure (SVG)", figure), button("Download numbers (CSV)", numbers));
}

/** A button for a table that is shown. */
export function tableDownload(table, name) {
  const rows = () => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  return make("button", { type: "button", onclick: () => save(`${name}.csv`, "text/csv", csv(rows())) }, "Download table (CSV)");
}

/** A picture that needs no style sheet: what it looks like here is written into it, and its note below. */
function picture(svg, note) {
  const copy = svg.cloneNode(true), here = svg.querySelectorAll("*"), there = copy.querySelectorAll("*");
  here.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of LOOK) if (there[i].hasAttribute(name)) there[i].setAttribute(name, style.getPropertyValue(name));
    if (style.display === "none") there[i].setAttribute("display", "none");
    there[i].removeAttribute("class");
  });
  const root = getComputedStyle(svg), [width, height] = ["width", "height"].map((name) => Number(svg.getAttribute(name)));
  const make = (tag, attributes, text = "") => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  copy.removeAttribute("aria-hidden");
  copy.setAttribute("color", root.color);
  copy.prepend(make("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.documentElement).backgroundColor }));
  if (note) copy.append(make("text", { x: 2, y: height + 12, opacity: 0.8 }, note));
  const whole = height + (note ? 20 : 0);
  for (const [name, value] of Object.entries({ height: whole, viewBox: `0 0 ${width} ${whole}` })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}

function points({ lines, xs }) {
  const rows = [["line", "x", "y", "low", "high"]];
  for (const line of lines) {
    if (line.level !== undefined) rows.push([line.name, "", line.level, "", ""]);
    else xs[line.at][0].forEach((x, i) => rows.push([line.name, x, line.y[i] ?? "", line.low?.[i] ?? "", line.high?.[i] ?? ""]));
  }
  return rows;
}

/** Text that a spreadsheet would take for a formula gets a quotation mark in front. */
function csv(rows) {
  const cell = (value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value.replace("−", "-"))) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

function slug(title) {
  return title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "figure";
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
