// One chart: curves over each other, drawn as SVG. What all charts share stands in `view`.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const isPlain = ["div", "span", "p", "b", "button", "figure", "figcaption", "label", "input", "h2", "details", "summary", "small"].includes(name);
  const made = isPlain ? document.createElement(name) : document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const swatch = (style) =>
  element("svg", { class: "swatch", "aria-hidden": "true" }, element("line", { class: style, x1: 1, y1: 6, x2: 23, y2: 6 }));

/** Dashed (1) are evaluations; runs that share a colour are told apart by other dashes. */
const dashesOf = (index) => [0, 2, 3][Math.floor(index / 8) % 3];

class Chart {
  constructor(spec, view) {
    this.spec = spec;
    this.view = view;
    this.isSeen = false;
    this.isStale = true;
    this.caption = element("figcaption");
    this.plot = element("svg", { class: "plot", tabindex: 0, role: "img" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.figure = element("figure", { "data-name": spec.title }, this.caption, this.plot, this.tip);
    this.fillCaption();
  }

  get title() {
    return this.spec.isName ? this.spec.title : this.view.text[this.spec.title] || this.spec.title;
  }

  /** The curves that there are, each with its run, its look and its points on the present axis. */
  series() {
    const { data, view } = this, found = [];
    view.data.curves.forEach((run, index) => {
      if (view.hiddenRuns.has(index)) return;
      this.spec.curves.forEach((name, place) => {
        const points = run.curves[name];
        if (!points || view.hiddenNames.has(view.data.names[name])) return;
        const isAlone = view.data.runs.length === 1;
        const color = isAlone ? place : index, dash = isAlone ? 0 : place ? 1 : dashesOf(index);
        found.push({
          run, index, points, look: `s${color % 8} d${dash}`, name: view.data.names[name],
          label: isAlone ? view.data.names[name] : view.data.runs[index].name + (place ? ` · ${view.data.names[name]}` : ""),
          xs: view.axisOf(run, points),
        });
      });
    });
    return found;
  }

  fillCaption() {
    const { view } = this;
    this.caption.replaceChildren(element("b", {}, this.title));
    this.now = element("span", { class: "now" });
    this.lost = element("span", { class: "lost", hidden: "" });
    if (view.data.runs.length > 1 || this.spec.curves.length < 2) {
      const names = this.spec.curves.map((name) => view.data.names[name]);
      if (names.length > 1) this.now.append(swatch("d0"), names[0], " \u2003", swatch("d1"), names.slice(1).join(", "));
      this.caption.append(this.now, this.lost);
      return;
    }
    const legend = element("span", { class: "legend" });
    this.spec.curves.forEach((name, place) => {
      const label = view.data.names[name], value = element("b", { "data-curve": label });
      const button = element("button", { type: "button", "aria-pressed": !view.hiddenNames.has(label) }, swatch(`s${place % 8} d0`), label, value);
      button.addEventListener("click", () => view.toggle(view.hiddenNames, label));
      legend.append(button);
    });
    this.caption.append(legend, this.lost);
  }

  /** What the red areas are. */
  sayWhatIsLost(lines) {
    const { view } = this;
    const told = lines.filter(({ points }) => points.gaps).map(({ points, label }) => {
      const [first] = points.gaps[0], [start, end] = points.gaps.at(-1), isLast = points.y.at(-1) === null;
      const said = isLast ? fill(view.text.not_finite_since, { step: shown(start) }) : fill(view.text.not_finite_at, { first: shown(first), last: shown(end) });
      return lines.length > 1 ? `${label}: ${said}` : said;
    });
    this.lost.hidden = told.length === 0;
    this.lost.textContent = told.slice(0, 6).map((one) => `■ ${one}`).join("  ");
  }

  draw() {
    this.isStale = true;
    if (!this.isSeen) return;
    this.isStale = false;
    const { plot, view } = this, width = plot.clientWidth || plot.parentNode.clientWidth - 24;
    const height = this.spec.group === "loss" ? (width < 520 ? 250 : 340) : width < 340 ? 190 : 210;
    plot.setAttribute("height", height);
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const lines = this.series().map((line) => ({ ...line, ...this.smoothing(line) }));
    const [left, right] = view.domain();
    const range = this.range(lines, left, right);
    const box = { left: 0, right: width - 10, top: 12, bottom: height - 24 };
    const tickList = range.isLog ? logTicks(range.low, range.high) : ticks(range.low, range.high, height / 52);
    const labels = tickList.at.map((value) => tickLabel(value, tickList.step || value));
    box.left = Math.max(30, Math.max(...labels.map((label) => label.length)) * 6.7 + 12);
    const x = (value) => box.left + ((value - left) / (right - left || 1)) * (box.right - box.left);
    const warp = range.isLog ? Math.log : (value) => value;
    const low = warp(range.low), high = warp(range.high);
    const y = (value) => box.bottom - ((warp(value) - low) / (high - low || 1)) * (box.bottom - box.top);
    plot.classList.toggle("crowded", lines.length > 8);
    this.frame = { box, x, y, left, right, lines, range, width };
    this.sayWhatIsLost(lines);
    const clip = `clip-${view.charts.indexOf(this)}`;
    const area = element("rect", { x: box.left - 5, y: box.top - 5, width: box.right - box.left + 10, height: box.bottom - box.top + 10 });
    plot.replaceChildren(
      element("defs", {}, element("clipPath", { id: clip }, area)),
      ...this.axes(tickList.at, labels, height),
      element("g", { "clip-path": `url(#${clip})` }, ...this.marks(), ...lines.flatMap((line) => this.lineParts(line))),
    );
    this.overlay = element("g", { "pointer-events": "none" });
    plot.append(this.overlay);
    const counted = lines.reduce((sum, line) => sum + line.xs.length, 0);
    const last = lines.length ? lines[0].points.y.at(-1) : null;
    plot.setAttribute("aria-label", fill(view.text.chart_label, { name: this.title, count: counted, last: lines.length ? orNaN(last) : "–" }));
    plot.setAttribute("data-domain", `${left} ${right}`);
    this.showCursor();
  }

  /** The smoothed values, where there are enough of them and they are noisy by nature. */
  smoothing({ name, points }) {
    const { smoothing } = this.view;
    const isNoisy = points.y.length > 40 && !/^(learning_rate|eval_)/.test(name);
    return { means: smoothing > 0 && isNoisy ? smoothed(points.y, smoothing / 100) : null };
  }

  /** The least and the largest value between two places, with room around them. */
  range(lines, left, right) {
    let low = Infinity, high = -Infinity, least = Infinity;
    for (const { xs, points } of lines) {
      const first = Math.max(0, placeOf(xs, left)), last = Math.min(xs.length - 1, placeOf(xs, right) + 1);
      for (let at = first; at <= last; at++) {
        if (points.y[at] === null) continue;
        const bottom = points.lo ? points.lo[at] : points.y[at], top = points.hi ? points.hi[at] : points.y[at];
        low = Math.min(low, bottom);
        high = Math.max(high, top);
        if (bottom > 0) least = Math.min(least, bottom);
        if (points.y[at] > 0) least = Math.min(least, points.y[at]);
      }
    }
    if (low > high) return { low: 0, high: 1, isLog: false };
    if (this.view.isLog && least < Infinity && high > 0) {
      const bottom = low > 0 ? low : least, room = Math.max(1.02, (high / bottom) ** 0.05);
      return { low: bottom / room, high: high * room, isLog: true };
    }
    if (this.spec.group === "speed" && low > 0) low = 0;
    const room = high > low ? (high / 2 - low / 2) * 0.12 : Math.abs(high) * 0.1 || 1;
    return { low: low >= 0 && low - room < 0 ? 0 : low - room, high: high + room, isLog: false };
  }

  axes(values, labels, height) {
    const { box, x, y, left, right, width } = this.frame, { view } = this;
    const parts = values.map((value, at) => [
      element("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      element("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, labels[at]),
    ]);
    const count = Math.max(2, (box.right - box.left) / 72);
    const across = view.axis === "time" ? timeTicks(left, right, count) : ticks(left, right, count, 1);
    across.at.forEach((value) => {
      const label = view.axis === "time" ? timeLabel(value, across.step) : tickLabel(value, across.step);
      const place = x(value), isLast = place > width - 22;
      parts.push([element("text", { x: isLast ? width - 2 : place, y: height - 6, "text-anchor": isLast ? "end" : "middle", class: "x" }, label)]);
    });
    parts.push([element("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom })]);
    return parts.flat();
  }

  /** Where a run was taken up again, and where values were not finite. */
  marks() {
    const { box, x, lines } = this.frame, { view } = this, parts = [];
    const seen = new Set(), turns = [];
    for (const { run, points } of lines) {
      for (const [from, to] of points.gaps || []) {
        const start = x(view.place(run, from)), end = x(view.place(run, to));
        const band = element("rect", { class: "gap", x: start - 1.5, width: end - start + 3, y: box.top, height: box.bottom - box.top });
        band.append(element("title", {}, view.text.not_finite));
        parts.push(band);
      }
      if (seen.has(run)) continue;
      seen.add(run);
      for (const step of run.resumed) {
        const place = x(view.place(run, step));
        if (turns.some((other) => Math.abs(other - place) < 3)) continue;
        turns.push(place);
        const turn = element("text", { class: "turn", x: place + 4, y: box.top + 9 }, "↻", element("title", {}, fill(view.text.resumed_at, { step: shown(step) })));
        parts.push(element("line", { class: "resume", x1: place, x2: place, y1: box.top, y2: box.bottom }), turn);
      }
    }
    return parts;
  }

  lineParts({ xs, points, means, look }) {
    const { x, y, left, right, range } = this.frame, parts = [];
    const up = (value) => (range.isLog && value <= 0 ? null : y(value));
    if (points.lo) {
      const edge = [], back = [];
      xs.forEach((place, at) => {
        if (points.lo[at] === null) return;
        const bottom = up(points.lo[at]) ?? this.frame.box.bottom, top = up(points.hi[at]) ?? this.frame.box.bottom;
        edge.push(`${x(place).toFixed(1)} ${top.toFixed(1)}`);
        back.push(`${x(place).toFixed(1)} ${bottom.toFixed(1)}`);
      });
      parts.push(element("path", { class: `band ${look}`, d: edge.length ? `M${edge.join("L")}L${back.reverse().join("L")}Z` : "" }));
    }
    const path = (values) => {
      let text = "", pen = "M";
      values.forEach((value, at) => {
        const place = value === null ? null : up(value);
        if (place === null) pen = "M";
        else {
          text += `${pen}${x(xs[at]).toFixed(1)} ${place.toFixed(1)}`;
          pen = "L";
        }
      });
      return text;
    };
    parts.push(element("path", { class: `line ${look} ${means ? "raw" : ""}`, d: path(points.y) }));
    if (means) parts.push(element("path", { class: `line ${look}`, d: path(means) }));
    const inside = placeOf(xs, right) - placeOf(xs, left);
    const isAlone = (at) => points.y[at] !== null && (points.y[at - 1] ?? null) === null && (points.y[at + 1] ?? null) === null;
    xs.forEach((place, at) => {
      if (points.y[at] === null || place < left || place > right || !(inside <= 30 || isAlone(at))) return;
      const height = up(points.y[at]);
      if (height !== null) parts.push(element("circle", { class: `spot ${look}`, cx: x(place), cy: height, r: 3.4 }));
    });
    return parts;
  }

  /** The line and the values at the place that all charts share; the box with them only in the chart that is pointed at. */
  showCursor() {
    const { view, frame } = this;
    if (!frame) return;
    if (!this.isSeen) return this.overlay.replaceChildren();
    const { box, x, y, lines, range } = frame, place = view.cursor;
    const isOn = place !== null && place >= frame.left && place <= frame.right;
    this.overlay.replaceChildren();
    const rows = lines.map((line) => {
      const at = isOn ? nearest(line.xs, place, line.points.y) : line.xs.length - 1;
      return { ...line, at, value: at < 0 ? null : line.points.y[at] };
    });
    if (isOn) {
      this.overlay.append(element("line", { class: "cursor", x1: x(place), x2: x(place), y1: box.top, y2: box.bottom }));
      for (const { xs, at, value, look } of rows) {
        if (value === null || (range.isLog && value <= 0)) continue;
        this.overlay.append(element("circle", { class: `spot ${look}`, cx: x(xs[at]), cy: y(value), r: 4.5 }));
      }
    }
    for (const { name, value } of rows) {
      const cell = [...this.caption.querySelectorAll("[data-curve]")].find((found) => found.dataset.curve === name);
      if (cell) cell.textContent = orNaN(value);
    }
    if (view.data.runs.length === 1 && rows.length === 1) this.now.textContent = orNaN(rows[0].value);
    this.showTip(isOn && view.pointed === this ? rows : []);
  }

  showTip(rows) {
    const { tip, view, frame } = this;
    tip.hidden = rows.length === 0;
    if (tip.hidden) return;
    const first = rows.find((row) => row.at >= 0) || rows[0], step = first.points.x[first.at];
    const seconds = between(first.run.steps, first.run.elapsed, step);
    tip.replaceChildren(element("p", { class: "when" }, `${view.text.step} ${shown(step)} · ${duration(seconds, view.text)}`));
    const sorted = rows.length > 2 ? [...rows].sort((one, other) => (other.value ?? -Infinity) - (one.value ?? -Infinity)) : rows;
    for (const row of sorted.slice(0, 14)) {
      const said = element("b", {}, orNaN(row.value));
      if (row.points.lo && row.value !== null) said.append(element("small", {}, ` ${shown(row.points.lo[row.at])}–${shown(row.points.hi[row.at])}`));
      tip.append(element("p", {}, swatch(row.look), element("span", {}, row.label), said));
    }
    const outer = this.figure.getBoundingClientRect(), inner = this.plot.getBoundingClientRect();
    const isNarrow = frame.width < 520, place = inner.left - outer.left + frame.x(view.cursor);
    const isLeft = !isNarrow && frame.x(view.cursor) > frame.width / 2;
    // Under a narrow chart, which it would hide; else beside the cursor.
    tip.style.left = isNarrow ? "10px" : isLeft ? "auto" : `${place + 14}px`;
    tip.style.right = isNarrow ? "auto" : isLeft ? `${outer.width - place + 14}px` : "auto";
    tip.style.top = `${isNarrow ? inner.bottom - outer.top : inner.top - outer.top + 14}px`;
  }
}

/** The index of the point next to `x`; of one that is a gap, it too. */
function nearest(xs, x) {
  if (!xs.length) return -1;
  const at = placeOf(xs, x);
  return at + 1 < xs.length && xs[at + 1] - x < x - xs[at] ? at + 1 : at;
}
