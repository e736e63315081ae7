/* The report's own script: read-outs of the charts, the choice of what they are drawn over, dark or light. */
(() => {
  "use strict";
  document.querySelectorAll("figure.chart").forEach((figure, number) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const drawn = fedpointCurves.draw(figure.querySelector(".picture"), data);
    if (data.axes.length < 2) return;
    const ways = figure.querySelector(".ways");
    ways.setAttribute("role", "radiogroup");
    ways.setAttribute("aria-label", "Drawn over");
    data.axes.forEach((axis, way) => {
      const input = document.createElement("input"), label = document.createElement("label");
      Object.assign(input, { type: "radio", name: `way-${number}`, id: `way-${number}-${way}`, checked: way === 0 });
      Object.assign(label, { htmlFor: input.id, textContent: axis.name });
      input.addEventListener("change", () => drawn.look(way));
      ways.append(input, label);
    });
  });

  const root = document.documentElement, button = document.getElementById("theme");
  const asked = matchMedia("(prefers-color-scheme: dark)");
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : asked.matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // On paper nothing can be opened; what would fill pages (a network's edges) stays closed.
  const closed = [], LONGEST = 120; // lines
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("section > details:not([open])")) {
      if (details.textContent.split("\n").length > LONGEST) continue;
      details.open = true;
      closed.push(details);
    }
  });
  addEventListener("afterprint", () => {
    while (closed.length) closed.pop().open = false;
  });
})();
