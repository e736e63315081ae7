/* A chart in a browser: the picture that Python made (`show/svg.py`), fitted to its place, and a read-out. For reports
   and the live page.

   const shown = fedpointCurves.draw(element, chart)   shows it in `element`, as wide as that is
   shown.update(chart)                                 shows another one in its place; cheap enough for a slider
   shown.look(k)                                       over another of its axes
   shown.destroy()                                     removes it and its listeners

   chart = `show/web.py`: {title, note, y, axes: [{name, label, log, low, high, picture}], xs, lines: [{name, y, at, level, ...}]}
   A picture that is left out is the one that the element holds already. What is drawn where, in which colour, with which
   ticks and names is decided in Python; here is only what depends on the reader: the width, and where the pointer is.

   Pointer: a read-out of all lines at the nearest point. Keyboard, with the focus on the chart: left and right by one
   point, with Shift (or Page Up and Down) by a tenth, Home, End, Escape. The read-out is announced to screen readers.
   Colours, dark and light: the variables of curves.css. No inline style attribute, no HTML from text: it works under a
   Content-Security-Policy without 'unsafe-inline', and names may hold anything. */
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const NARROW = 480; // pixels of a chart, below which names stand under it

  function svg(tag, attributes) {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function html(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const usable = (v, log) => typeof v === "number" && Number.isFinite(v) && (!log || v > 0);
  const paint = (line) => (typeof line.colour === "number" ? `c${line.colour % 7}` : line.colour);

  /** Where a value lies on an axis: 0 at the low end, 1 at the high end. */
  function place(axis, v) {
    return axis.log ? Math.log(v / axis.low) / Math.log(axis.high / axis.low) : (v - axis.low) / (axis.high - axis.low);
  }

  /** A number for people: 1,234 or 0.0123 or 1.2×10⁻⁷. */
  function format(v) {
    if (v === null || v === undefined || !Number.isFinite(v)) return "–";
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
      const [mantissa, exponent] = v.toExponential(2).split("e");
      const raised = String(Number(exponent)).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
      return `${Number(mantissa)}×10${raised}`.replace("-", "−");
    }
    const text = Number.isInteger(v) ? v.toLocaleString("en") : Number(v.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
    return text.replace("-", "−");
  }

  class Curves {
    constructor(element, chart) {
      this.element = element;
      element.classList.add("fp-curves");
      this.plot = html("div", "plot");
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "img");
      this.box = html("div", "readout");
      this.box.hidden = true;
      this.box.setAttribute("aria-hidden", "true");
      this.said = html("div", "said");
      this.said.setAttribute("aria-live", "polite");
      this.key = html("ul", "legend");
      this.foot = html("p", "foot");
      this.given = element.querySelector("svg");
      this.plot.append(this.box);
      element.replaceChildren(this.plot, this.key, this.foot, this.said);
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => this.show(null));
      this.plot.addEventListener("keydown", (event) => this.type(event));
      this.plot.addEventListener("blur", () => this.show(null));
      this.watcher = new ResizeObserver(() => {
        if (Math.abs(this.width - this.room()) > 1) this.fit();
      });
      this.watcher.observe(element);
      this.at = null;
      this.update(chart);
    }

    update(chart) {
      this.chart = chart;
      this.plot.setAttribute("aria-label", `${chart.title || "Curves"}. Arrow keys read the values.`);
      this.foot.textContent = chart.note || "";
      this.foot.hidden = !chart.note;
      this.look(0);
    }

    look(way) {
      const { chart } = this, axis = (this.x = chart.axes[way]);
      this.lines = chart.lines.map((line) => (line.at === undefined ? line : { ...line, x: chart.xs[line.at][way] }));
      const made = axis.picture ? new DOMParser().parseFromString(axis.picture, "image/svg+xml").documentElement : this.given;
      this.picture?.remove();
      this.picture = document.importNode(made, true);
      this.picture.setAttribute("aria-hidden", "true"); // the plot around it has the name, and says the values
      this.middle = this.picture.querySelector(".middle");
      this.names = this.picture.querySelector(".names");
      const [top, height] = ["y", "height"].map((name) => Number(this.middle.querySelector(".curves").getAttribute(name)));
      this.edge = { top, height, left: Number(this.middle.getAttribute("x")) };
      this.cursor = svg("g", { class: "cursor" });
      this.middle.append(this.cursor);
      this.plot.prepend(this.picture);
      this.stops = this.places();
      this.fit();
    }

    destroy() {
      this.watcher.disconnect();
      this.element.classList.remove("fp-curves", "narrow");
      this.element.replaceChildren();
    }

    room() {
      return Math.max(this.element.clientWidth || 640, 200);
    }

    /** The picture as wide as its place is: the middle gives way; where that is too narrow, names stand below. */
    fit() {
      const width = (this.width = this.room()), named = this.names.children.length > 0;
      this.element.classList.remove("narrow");
      const right = named ? Math.ceil(this.names.getBBox().width) + 12 : 16;
      const narrow = width < NARROW || right > 0.4 * width;
      this.element.classList.toggle("narrow", narrow);
      const inner = (this.inner = Math.max(40, width - this.edge.left - (narrow ? 16 : right)));
      this.picture.setAttribute("width", width);
      this.picture.setAttribute("viewBox", `0 0 ${width} ${this.picture.getAttribute("height")}`);
      this.middle.setAttribute("width", inner);
      this.names.setAttribute("x", this.edge.left + inner);
      this.key.replaceChildren();
      this.key.hidden = !narrow || !named;
      for (const name of this.key.hidden ? [] : this.names.children) {
        const sample = svg("svg", { viewBox: "0 -4 14 8", width: 14, height: 8, "aria-hidden": "true" });
        sample.append(name.querySelector("path").cloneNode());
        const item = html("li");
        item.append(sample, html("span", "", name.textContent));
        this.key.append(item);
      }
      this.show(this.at === null ? null : Math.min(this.at, this.stops.length - 1));
    }

    // The read-out

    /** Where the read-out can stand: the points of the line that has most of them. */
    places() {
      let best = [];
      for (const line of this.lines) {
        const found = (line.x || []).filter((v) => usable(v, this.x.log) && v >= this.x.low && v <= this.x.high);
        if (found.length > best.length) best = found;
      }
      return best;
    }

    point(event) {
      const left = this.picture.getBoundingClientRect().left + this.edge.left;
      this.show(nearest(this.stops.map((v) => place(this.x, v)), (event.clientX - left) / this.inner));
    }

    type(event) {
      const last = this.stops.length - 1, far = Math.max(1, Math.round(last / 10));
      const step = event.shiftKey ? far : 1, now = this.at;
      const moves = {
        ArrowRight: () => (now === null ? 0 : now + step),
        ArrowLeft: () => (now === null ? last : now - step),
        PageUp: () => (now === null ? 0 : now + far),
        PageDown: () => (now === null ? last : now - far),
        Home: () => 0,
        End: () => last,
        Escape: () => null,
      };
      if (!(event.key in moves) || last < 0) return;
      event.preventDefault();
      const to = moves[event.key]();
      this.show(to === null ? null : Math.min(Math.max(to, 0), last), true);
    }

    show(index, aloud) {
      this.at = index;
      this.cursor.replaceChildren();
      this.box.hidden = index === null || index < 0 || !this.stops.length;
      if (this.box.hidden) {
        if (aloud) this.said.textContent = "";
        return;
      }
      const x = this.stops[index], { top, height, left } = this.edge, percent = (v) => `${100 * place(this.x, v)}%`;
      this.cursor.append(svg("line", { x1: percent(x), x2: percent(x), y1: top, y2: top + height }));
      const rows = [];
      for (const line of this.lines) {
        if (line.width === "thin" || line.dots) continue;
        let value = line.level;
        if (value === undefined) {
          const i = nearest(line.x, x);
          if (i < 0 || x < Math.min(line.x[0], line.x[line.x.length - 1]) || x > Math.max(line.x[0], line.x[line.x.length - 1])) continue;
          value = line.y[i];
          const up = usable(value, this.chart.y.log) ? place(this.chart.y, value) : -1;
          if (up >= 0 && up <= 1) this.cursor.append(svg("circle", { class: paint(line), cx: percent(line.x[i]), cy: top + (1 - up) * height, r: 3.5 }));
        }
        rows.push([line, value]);
      }
      const label = this.x.label || "x";
      this.box.replaceChildren(html("div", "where", `${label} ${format(x)}`));
      for (const [line, value] of rows) {
        const row = html("div", "row");
        row.append(html("span", `dot ${paint(line)}`), html("span", "which", line.name), html("span", "value", format(value)));
        this.box.append(row);
      }
      const across = left + place(this.x, x) * this.inner, wide = this.box.offsetWidth;
      const at = across + wide + 16 <= this.width ? across + 12 : across - wide - 12;
      this.box.style.transform = `translate(${Math.min(Math.max(0, at), Math.max(0, this.width - wide))}px, ${top}px)`;
      if (aloud) this.said.textContent = [`${label} ${format(x)}`, ...rows.map(([line, v]) => `${line.name} ${format(v)}`)].join("; ");
    }
  }

  /** The index of the value nearest to v in an ordered list; -1 where it is empty. */
  function nearest(values, v) {
    let low = 0, high = values.length - 1;
    if (high < 0) return -1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] <= v) low = middle;
      else high = middle;
    }
    return Math.abs(values[low] - v) <= Math.abs(values[high] - v) ? low : high;
  }

  globalThis.fedpointCurves = { draw: (element, chart) => new Curves(element, chart), format };
})();
