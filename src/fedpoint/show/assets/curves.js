/* How do curves look in a browser? One SVG per chart, in plain JavaScript, for reports and the live page.

   const drawn = fedpointCurves.draw(element, chart)   draws into `element` (emptied first), as wide as it is
   drawn.update(chart)                                 draws another chart in its place; cheap enough for a slider
   drawn.destroy()                                     removes it and its listeners

   chart = {
     title:  "Error over rounds",           the accessible name; not drawn
     x:      {label: "rounds", log: false, min, max},      min and max only where the range is to be fixed
     y:      {label: "squared distance to the solution", log: true, min, max},
     height: 340,                           in pixels; by default it follows the width
     legend: "auto",                        "ends" (at the right ends), "below", "none"; auto: ends where there is room
     note:   "mean of 8 repeats",           small, above the right end; where it is too long for that, below
     lines:  [{
       name:   "FedAvg",
       x: [0, 1, ...], y: [1.0, 0.5, ...],  null (or, on a log axis, 0 and less) is a gap
       low: [...], high: [...],             a band around it, optional
       level:  0.01,                        instead of x and y: a horizontal line, such as a floor
       colour: 0,                           0..6 of the palette, "ink" or "pale"; by default in order
       dash:   "solid",                     "dashed", "dotted"
       width:  "thin",                      one run of several: behind the others, no label, and where it dips far
                                            below them, it leaves the picture; "thick": their mean
       quiet:  false,                       true: no label, in the read-out only
     }],
   }

   Pointer: a read-out of all lines at the nearest point. Keyboard, with the focus on the chart: left and right by one
   point, with Shift (or Page Up and Down) by a tenth, Home, End, Escape. The read-out is announced to screen readers.
   Colours, dark and light: the variables of curves.css. No inline style attribute, no HTML from text: it works under a
   Content-Security-Policy without 'unsafe-inline', and names may hold anything. */
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const COLOURS = 7;
  const FONT = 12;

  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function html(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Numbers

  const usable = (v, log) => typeof v === "number" && Number.isFinite(v) && (!log || v > 0);

  function power(k) {
    return "10" + String(k).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  }

  /** A number for people: 1,234 or 0.0123 or 1.2×10⁻⁷. */
  function format(v) {
    if (v === null || v === undefined || !Number.isFinite(v)) return "–";
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
      const [mantissa, exponent] = v.toExponential(2).split("e");
      return `${Number(mantissa)}×${power(Number(exponent))}`.replace("-", "−");
    }
    const text = Number.isInteger(v) ? v.toLocaleString("en") : Number(v.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
    return text.replace("-", "−");
  }

  /** Where an axis from low to high has its ticks: [{at, text}]. */
  function ticks(low, high, log, most) {
    if (log) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
      if (last - first >= 2) {
        const every = Math.max(1, Math.ceil((last - first) / Math.max(2, most - 1)));
        const found = [];
        for (let k = Math.ceil(first / every) * every; k <= last; k += every) found.push({ at: 10 ** k, text: power(k) });
        return found;
      }
      const found = [];
      for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) {
        for (const m of [1, 2, 5]) {
          const at = m * 10 ** k;
          if (at >= low * (1 - 1e-9) && at <= high * (1 + 1e-9)) found.push({ at, text: format(at).replace(/^1×/, "") });
        }
      }
      if (found.length >= 3) return found;
    }
    const rough = (high - low) / Math.max(1, most);
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((m) => m * unit >= rough * (1 - 1e-9));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
      const at = Number((i * step).toPrecision(12));
      found.push({ at, text: at >= 1e6 ? `${Number((at / 1e6).toPrecision(6))}M` : format(at) });
    }
    return found;
  }

  /** Places moved as little as can be (least squares) for labels of one size to lie apart, within [low, high]. */
  function spread(places, size, low, high) {
    const order = places.map((_, i) => i).sort((a, b) => places[a] - places[b]);
    const groups = [];
    order.forEach((i, n) => {
      groups.push([places[i] - n * size, 1]);
      while (groups.length > 1 && groups[groups.length - 2][0] >= groups[groups.length - 1][0]) {
        const [b, nb] = groups.pop(), [a, na] = groups.pop();
        groups.push([(a * na + b * nb) / (na + nb), na + nb]);
      }
    });
    const most = Math.max(low, high - (places.length - 1) * size), result = [];
    let n = 0;
    for (const [move, count] of groups) {
      for (let j = 0; j < count; j++, n++) result[order[n]] = Math.min(Math.max(move, low), most) + n * size;
    }
    return result;
  }

  function range(chart, axis, log) {
    let low = Infinity, high = -Infinity;
    for (const line of chart.lines) {
      const given = axis === "x" ? [line.x || []] : line.level === undefined ? [line.y, line.low || [], line.high || []] : [[line.level]];
      for (const values of given) {
        for (const v of values) {
          if (usable(v, log)) {
            if (v < low && !(axis === "y" && line.width === "thin")) low = v;
            if (v > high) high = v;
          }
        }
      }
    }
    const fixed = chart[axis] || {};
    if (!(low <= high)) [low, high] = log ? [0.1, 1] : [0, 1];
    if (axis === "y" && fixed.min === undefined && fixed.max === undefined) {
      if (log) {
        const room = high > low ? (high / low) ** 0.05 : 1.1;
        [low, high] = [low / room, high * room];
      } else {
        const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 0.5;
        [low, high] = [low - room, high + room];
      }
    }
    if (usable(fixed.min, log)) low = fixed.min;
    if (usable(fixed.max, log)) high = fixed.max;
    if (!(low < high)) high = log ? low * 10 : low + 1;
    return [low, high];
  }

  // The drawing

  class Curves {
    constructor(element, chart) {
      this.element = element;
      this.measure = document.createElement("canvas").getContext("2d");
      element.replaceChildren();
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
      this.plot.append(this.box);
      element.append(this.plot, this.key, this.foot, this.said);
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => this.show(null));
      this.plot.addEventListener("keydown", (event) => this.type(event));
      this.plot.addEventListener("blur", () => this.show(null));
      this.watcher = new ResizeObserver(() => {
        if (Math.abs(this.width - this.room()) > 1) this.draw();
      });
      this.watcher.observe(element);
      this.update(chart);
    }

    update(chart) {
      const lines = chart.lines.map((line, i) => ({
        ...line,
        quiet: line.quiet || line.width === "thin",
        paint: line.colour === undefined ? `c${i % COLOURS}` : typeof line.colour === "number" ? `c${line.colour % COLOURS}` : line.colour,
        dash: line.dash || (line.level !== undefined ? "dotted" : i >= COLOURS && line.colour === undefined ? "dashed" : "solid"),
      }));
      this.chart = { ...chart, lines };
      this.plot.setAttribute("aria-label", `${chart.title || "Curves"}. Arrow keys read the values.`);
      this.at = null;
      this.draw();
    }

    destroy() {
      this.watcher.disconnect();
      this.element.classList.remove("fp-curves");
      this.element.replaceChildren();
    }

    room() {
      return Math.max(this.element.clientWidth || 640, 200);
    }

    draw() {
      const chart = this.chart, width = (this.width = this.room());
      const height = (this.height = chart.height || Math.round(Math.min(380, Math.max(230, 0.56 * width))));
      const x = chart.x || {}, y = chart.y || {};
      this.logs = { x: !!x.log, y: y.log !== false };
      if (this.logs.y && !chart.lines.some((l) => (l.level === undefined ? l.y : [l.level]).some((v) => usable(v, true)))) this.logs.y = false;
      const [x0, x1] = range(chart, "x", this.logs.x), [y0, y1] = range(chart, "y", this.logs.y);
      this.measure.font = `${FONT}px system-ui, sans-serif`;
      const long = (text) => this.measure.measureText(text).width;
      const named = chart.lines.filter((line) => !line.quiet);
      const longest = Math.max(0, ...named.map((line) => long(line.name)));
      const fits = width >= 480 && longest <= 0.34 * width && named.length * 16 <= height - 70;
      const wanted = chart.legend || "auto";
      const ends = named.length > 0 && (wanted === "ends" || (wanted === "auto" && fits));
      const below = wanted === "below" || (wanted === "auto" && !fits);
      const up = ticks(y0, y1, this.logs.y, Math.round(height / 45));
      const edge = {
        left: Math.ceil(Math.max(24, ...up.map((t) => long(t.text)))) + 12,
        right: ends ? Math.ceil(longest) + 16 : 14,
        top: 26,
        bottom: 44,
      };
      const right = width - edge.right, bottom = height - edge.bottom;
      const scale = (low, high, from, to, log) => {
        const f = log ? Math.log10 : (v) => v, a = f(low), b = f(high);
        return (v) => from + ((f(v) - a) / (b - a)) * (to - from);
      };
      this.sx = scale(x0, x1, edge.left, right, this.logs.x);
      this.sy = scale(y0, y1, bottom, edge.top, this.logs.y);
      this.edge = { ...edge, right, bottom };
      const inside = (v, low, high) => v >= low && v <= high;

      const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true", focusable: "false" });
      const clip = `fp-clip-${(Curves.count = (Curves.count || 0) + 1)}`;
      const hole = svg("rect", { x: edge.left, y: edge.top - 4, width: Math.max(1, right - edge.left), height: bottom - edge.top + 8 });
      picture.append(svg("defs", {}, svg("clipPath", { id: clip }, hole)));
      const grid = svg("g", { class: "grid" });
      for (const tick of up) {
        const at = this.sy(tick.at);
        grid.append(svg("line", { x1: edge.left, x2: right, y1: at, y2: at }));
        grid.append(svg("text", { x: edge.left - 8, y: at + 4, "text-anchor": "end" }, tick.text));
      }
      const most = Math.max(2, Math.floor((right - edge.left) / 80));
      for (const tick of ticks(x0, x1, this.logs.x, most)) {
        const at = this.sx(tick.at);
        grid.append(svg("line", { class: "tick", x1: at, x2: at, y1: bottom, y2: bottom + 5 }));
        grid.append(svg("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, tick.text));
      }
      grid.append(svg("line", { class: "axis", x1: edge.left, x2: right, y1: bottom, y2: bottom }));
      picture.append(grid);
      picture.append(svg("text", { class: "name", x: (edge.left + right) / 2, y: height - 6, "text-anchor": "middle" }, x.label || ""));
      picture.append(svg("text", { class: "name", x: 2, y: 12 }, y.label || ""));
      const beside = chart.note && long(chart.note) + long(y.label || "") + 30 < width;
      this.foot.hidden = !chart.note || beside;
      this.foot.textContent = this.foot.hidden ? "" : chart.note;
      if (beside) {
        picture.append(svg("text", { class: "note", x: width - 2, y: 12, "text-anchor": "end" }, chart.note));
      }

      const drawn = svg("g", { "clip-path": `url(#${clip})` });
      for (const line of chart.lines) if (line.low && line.high) drawn.append(this.band(line));
      const above = (line) => (line.width === "thin" ? 0 : line.level !== undefined ? 1 : 2); // single runs, levels, curves
      for (const line of [...chart.lines].sort((a, b) => above(a) - above(b))) drawn.append(svg("path", { class: `line ${line.paint} ${line.dash} ${line.width || ""}`, d: this.path(line) }));
      picture.append(drawn);

      if (ends) {
        const last = named.map((line) => {
          const values = line.level === undefined ? line.y : [line.level];
          for (let i = values.length - 1; i >= 0; i--) {
            if (usable(values[i], this.logs.y) && (line.level !== undefined || inside(line.x[i], x0, x1))) return Math.min(Math.max(this.sy(values[i]), edge.top), bottom);
          }
          return bottom;
        });
        const places = spread(last, FONT + 4, edge.top, bottom);
        named.forEach((line, i) => {
          picture.append(svg("text", { class: `end ${line.paint}`, x: right + 8, y: places[i] + 4 }, line.name));
        });
      }
      this.cursor = svg("g", { class: "cursor" });
      picture.append(this.cursor);
      if (this.picture) this.picture.remove();
      this.picture = picture;
      this.plot.prepend(picture);
      this.key.replaceChildren();
      this.key.hidden = !below;
      if (below) {
        for (const line of named) {
          const sample = svg("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" });
          sample.append(svg("path", { class: `line ${line.paint} ${line.dash}`, d: "M0 4H26" }));
          const item = html("li");
          item.append(sample, html("span", "", line.name));
          this.key.append(item);
        }
      }
      this.stops = this.places(x0, x1);
      this.show(this.at === null ? null : Math.min(this.at, this.stops.length - 1));
    }

    path(line) {
      if (line.level !== undefined) {
        if (!usable(line.level, this.logs.y)) return "";
        const at = this.sy(line.level).toFixed(2);
        return `M${this.edge.left} ${at}H${this.edge.right}`;
      }
      let d = "", pen = false;
      for (let i = 0; i < line.x.length; i++) {
        if (usable(line.x[i], this.logs.x) && usable(line.y[i], this.logs.y)) {
          d += `${pen ? "L" : "M"}${this.sx(line.x[i]).toFixed(2)} ${this.sy(line.y[i]).toFixed(2)}`;
          pen = true;
        } else pen = false;
      }
      return d;
    }

    band(line) {
      const over = [], under = [];
      for (let i = 0; i < line.x.length; i++) {
        if (!usable(line.x[i], this.logs.x) || !usable(line.high[i], this.logs.y)) continue;
        const at = this.sx(line.x[i]).toFixed(2);
        const low = usable(line.low[i], this.logs.y) ? this.sy(line.low[i]) : this.edge.bottom + 8;
        over.push(`${at} ${this.sy(line.high[i]).toFixed(2)}`);
        under.push(`${at} ${low.toFixed(2)}`);
      }
      return svg("path", { class: `band ${line.paint}`, d: over.length ? `M${over.join("L")}L${under.reverse().join("L")}Z` : "" });
    }

    // The read-out

    /** Where the read-out can stand: the points of the line that has most of them. */
    places(x0, x1) {
      let best = [];
      for (const line of this.chart.lines) {
        const found = (line.x || []).filter((v) => usable(v, this.logs.x) && v >= x0 && v <= x1);
        if (found.length > best.length) best = found;
      }
      return best;
    }

    point(event) {
      const box = this.picture.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * this.width;
      this.show(nearest(this.stops.map(this.sx), at));
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
      const x = this.stops[index], across = this.sx(x), { top, bottom } = this.edge;
      this.cursor.append(svg("line", { x1: across, x2: across, y1: top, y2: bottom }));
      const rows = [];
      for (const line of this.chart.lines) {
        if (line.width === "thin") continue;
        let value = line.level;
        if (value === undefined) {
          const i = nearest(line.x, x);
          if (i < 0 || x < Math.min(line.x[0], line.x[line.x.length - 1]) || x > Math.max(line.x[0], line.x[line.x.length - 1])) continue;
          value = line.y[i];
          if (usable(value, this.logs.y)) this.cursor.append(svg("circle", { class: line.paint, cx: this.sx(line.x[i]), cy: this.sy(value), r: 3.5 }));
        }
        rows.push([line, value]);
      }
      const label = (this.chart.x || {}).label || "x";
      this.box.replaceChildren(html("div", "where", `${label} ${format(x)}`));
      for (const [line, value] of rows) {
        const row = html("div", "row");
        row.append(html("span", `dot ${line.paint}`), html("span", "which", line.name), html("span", "value", format(value)));
        this.box.append(row);
      }
      const shrink = this.picture.getBoundingClientRect().width / this.width || 1, wide = this.box.offsetWidth;
      const here = across * shrink, whole = this.width * shrink;
      const at = here + wide + 16 <= whole ? here + 12 : here - wide - 12;
      this.box.style.transform = `translate(${Math.min(Math.max(0, at), Math.max(0, whole - wide))}px, ${top}px)`;
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

  globalThis.fedpointCurves = { draw: (element, chart) => new Curves(element, chart), ticks, spread, format };
})();
