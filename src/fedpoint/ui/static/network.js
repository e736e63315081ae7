/* A small network whose nodes are coloured by their values: inside what a node has found, around it what it measured. */
import { draw, make, number } from "./dom.js";

const ENDS = [[33, 102, 172], [247, 247, 247], [178, 74, 0]];

/** A colour from -1 (blue) over 0 (white) to 1 (orange). */
function colour(t) {
  const place = Math.min(1, Math.max(-1, t)), [a, b] = place < 0 ? [ENDS[1], ENDS[0]] : [ENDS[1], ENDS[2]];
  const mix = a.map((v, i) => Math.round(v + (b[i] - v) * Math.abs(place)));
  return { css: `rgb(${mix.join(",")})`, dark: 0.299 * mix[0] + 0.587 * mix[1] + 0.114 * mix[2] < 140 };
}

export class Network {
  constructor(element) {
    this.picture = draw("svg", { viewBox: "-2.35 -2.25 4.7 4.25", role: "img" });
    this.scale = make("div", { class: "scale", "aria-hidden": "true" });
    this.round = make("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "round", disabled: true });
    this.told = make("output", {}, "");
    this.button = make("button", { type: "button", disabled: true, onclick: () => this.play() }, "Replay");
    this.round.addEventListener("input", () => this.show(Number(this.round.value)));
    element.append(this.picture, this.scale, make("div", { class: "replay" }, this.button, this.round, this.told));
  }

  /** The solution, before any run. */
  forecast(network) {
    this.stop();
    this.network = network;
    this.history = null;
    this.limit = Math.max(...[...network.own, ...network.truth].map(Math.abs), 0.1);
    this.nodes = network.places.map(([x, y], i) => ({
      circle: draw("circle", { cx: x, cy: y, r: 0.24, "stroke-width": 0.09, stroke: colour(network.own[i] / this.limit).css }),
      outline: draw("circle", { cx: x, cy: y, r: 0.287, fill: "none", "stroke-width": 0.012, stroke: "currentColor" }),
      text: draw("text", { x, y: y + 0.055 }),
    }));
    const edges = network.edges.map(([i, j]) => {
      const [a, b] = [network.places[i], network.places[j]];
      return draw("line", { class: "edge", x1: a[0], y1: a[1], x2: b[0], y2: b[1], "vector-effect": "non-scaling-stroke" });
    });
    this.picture.replaceChildren(...edges, ...this.nodes.flatMap((n) => [n.circle, n.outline, n.text]));
    this.bar();
    this.round.disabled = this.button.disabled = true;
    this.values(network.end, "GTVMin's solution");
  }

  simulated(history) {
    this.history = history;
    this.round.max = history.length - 1;
    this.round.value = history.length - 1;
    this.round.disabled = this.button.disabled = false;
    this.show(history.length - 1);
  }

  show(round) {
    if (!this.history) return;
    this.round.value = round;
    this.values(this.history[round], `round ${round}`);
  }

  values(values, label) {
    values.forEach((v, i) => {
      const { css, dark } = colour(v / this.limit), { circle, text } = this.nodes[i];
      circle.setAttribute("fill", css);
      text.setAttribute("fill", dark ? "#ffffff" : "#1d2430");
      text.textContent = v.toFixed(2).replace("-", "−");
    });
    this.told.textContent = label;
    const list = values.map((v, i) => `node ${i} ${number(v)}`).join(", ");
    this.picture.setAttribute("aria-label", `Network of ${values.length} nodes, ${label}: ${list}`);
  }

  bar() {
    const stops = [];
    for (let i = 0; i < 28; i++) stops.push(draw("rect", { x: i * 5, y: 0, width: 5.5, height: 12, fill: colour(i / 13.5 - 1).css }));
    const strip = draw("svg", { viewBox: "0 0 140 12" }, ...stops);
    const ends = [-this.limit, this.limit].map((v) => make("span", {}, number(Number(v.toPrecision(2)))));
    this.scale.replaceChildren(ends[0], strip, ends[1], make("span", {}, "inside: what a node has found; ring: what it measured"));
  }

  play() {
    if (this.timer) return this.stop();
    let round = 0;
    this.button.textContent = "Stop";
    const last = this.history.length - 1;
    this.timer = setInterval(() => {
      this.show(round);
      if (round++ >= last) this.stop();
    }, 80);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Replay";
  }
}
