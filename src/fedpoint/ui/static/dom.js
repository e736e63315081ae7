/* Small helpers: elements from text only, never HTML from text that is not the server's own mathematics. */
const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Formulas and words with formulas, which the server has made from the docstrings. */
export function mathematics(tag, markup, className) {
  const made = make(tag, className ? { class: className } : {});
  made.innerHTML = Array.isArray(markup) ? markup.join("") : markup;
  return made;
}

export async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("no answer; is fedpoint ui still running?");
  }
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer;
}

export function number(value) {
  return globalThis.fedpointCurves.format(value);
}

/** Shows a chart in a box; what was drawn there before is replaced. */
export function showChart(drawn, box, chart) {
  if (!drawn) return globalThis.fedpointCurves.draw(box, chart);
  drawn.update(chart);
  return drawn;
}
