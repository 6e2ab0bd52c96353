// The page: what the charts share, the controls, pointers and keys, and, where it is live, the data that comes in.

const view = {
  data: JSON.parse(document.getElementById("data").textContent),
  text: null, charts: [], axis: "step", isLog: false, smoothing: 0, zoom: null, cursor: null, pointed: null,
  hiddenRuns: new Set(), hiddenNames: new Set(),

  place(run, step) {
    return this.axis === "time" ? between(run.steps, run.elapsed, step) : step;
  },
  axisOf(run, points) {
    return this.axis === "time" ? (points.times ??= points.x.map((step) => this.place(run, step))) : points.x;
  },
  /** Where everything lies that is shown. */
  whole() {
    let left = Infinity, right = -Infinity;
    this.data.curves.forEach((run, index) => {
      if (this.hiddenRuns.has(index)) return;
      for (const points of Object.values(run.curves)) {
        const xs = this.axisOf(run, points);
        left = Math.min(left, xs[0]);
        right = Math.max(right, xs[xs.length - 1]);
      }
    });
    return left < right ? [left, right] : left === right ? [left - 1, right + 1] : [0, 1];
  },
  domain() {
    return this.zoom || this.whole();
  },
  setZoom(left, right) {
    const [first, last] = this.whole(), least = Math.max((last - first) / 2000, this.axis === "step" ? 2 : 1e-3);
    const span = Math.min(last - first, Math.max(least, right - left));
    const start = Math.max(first, Math.min(last - span, (left + right - span) / 2));
    this.zoom = span >= (last - first) * 0.999 ? null : [start, start + span];
    this.draw();
  },
  setCursor(place, chart) {
    this.cursor = place;
    this.pointed = chart;
    for (const one of this.charts) one.showCursor();
  },
  toggle(set, key) {
    if (!set.delete(key)) set.add(key);
    for (const chart of this.charts) chart.fillCaption();
    fillLegend();
    this.draw();
  },
  isAsked: false,
  draw() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      reset.disabled = !this.zoom;
      for (const chart of this.charts) chart.draw();
    });
  },
};
view.text = view.data.text;
const text = view.text;

// ---- controls ----

const bench = element("div", { class: "bench" });
const reset = element("button", { type: "button", class: "plain", disabled: "" }, text.reset_zoom);
reset.addEventListener("click", () => { view.zoom = null; view.draw(); });
const runLegend = element("div", { class: "legend" });
const groups = element("div");
const hint = element("p", { class: "note" }, [text.zoom_hint, text.keys_hint].join(view.data.language === "ja" ? "" : " "));
const spoken = element("p", { class: "hidden", "aria-live": "polite" });

function choice(label, options, isOn, choose) {
  const box = element("div", { class: "choice", role: "group", "aria-label": label });
  const buttons = options.map(([key, name]) => {
    const button = element("button", { type: "button", "data-key": key }, name);
    button.addEventListener("click", () => { choose(key); mark(); });
    return button;
  });
  const mark = () => buttons.forEach((button) => button.setAttribute("aria-pressed", isOn(button.dataset.key)));
  box.append(...buttons);
  mark();
  return box;
}

function setAxis(axis) {
  if (axis === view.axis) return;
  const run = view.data.curves[0], zoom = run && view.zoom;
  view.axis = axis;
  view.cursor = null;
  view.zoom = null;
  if (zoom) {
    const [from, to] = axis === "time" ? [run.steps, run.elapsed] : [run.elapsed, run.steps];
    view.setZoom(between(from, to, zoom[0]), between(from, to, zoom[1]));
  }
  view.draw();
}

function fillBench() {
  const slider = element("input", { type: "range", min: 0, max: 100, step: 1, id: "smoothing" });
  const dense = Object.values(view.data.curves).some((run) => Object.values(run.curves).some((points) => points.y.length > 80));
  slider.value = view.smoothing = dense ? 35 : 0;
  slider.addEventListener("input", () => { view.smoothing = Number(slider.value); view.draw(); });
  const log = element("input", { type: "checkbox", id: "log" });
  log.addEventListener("change", () => { view.isLog = log.checked; view.draw(); });
  const axes = [["step", text.step], ["time", text.time]];
  bench.append(element("h2", {}, text.curves));
  if (view.data.charts.length > 12) {
    const search = element("input", { type: "search", id: "search", placeholder: text.find_curve, "aria-label": text.find_curve });
    search.addEventListener("input", () => filter(search.value));
    bench.append(element("span", { class: "search" }, search));
  }
  bench.append(
    element("label", {}, text.smoothing, slider),
    choice(text.axis, axes, (key) => key === view.axis, setAxis),
    element("label", {}, log, text.log_scale), reset, runLegend,
  );
}

function fillLegend() {
  runLegend.hidden = view.data.runs.length < 2;
  if (runLegend.hidden) return;
  runLegend.replaceChildren(...view.data.runs.map((run, index) => {
    const look = `s${index % 8} d${dashesOf(index)}`;
    const button = element("button", { type: "button", "aria-pressed": !view.hiddenRuns.has(index) }, swatch(look), run.name);
    button.addEventListener("click", () => view.toggle(view.hiddenRuns, index));
    return button;
  }));
}

function filter(words) {
  const wanted = words.trim().toLowerCase();
  for (const chart of view.charts) chart.figure.hidden = !chart.spec.title.toLowerCase().includes(wanted) && !chart.title.toLowerCase().includes(wanted);
  for (const group of groups.querySelectorAll(".group")) group.hidden = ![...group.querySelectorAll("figure")].some((figure) => !figure.hidden);
  view.draw();
}

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const chart = view.charts.find((one) => one.figure === target);
    if (!chart) continue;
    chart.isSeen = isIntersecting;
    if (isIntersecting && chart.isStale) chart.draw();
    else if (isIntersecting) chart.showCursor();
  }
}, { rootMargin: "200px" });

function fillCharts() {
  watcher.disconnect();
  groups.replaceChildren();
  view.charts = view.data.charts.map((spec) => new Chart(spec, view));
  const names = ["loss", "evaluation", "optimization", "metrics", "speed"], areFew = view.charts.length <= 13;
  for (const group of areFew ? ["loss", "rest"] : names) {
    const charts = view.charts.filter(({ spec }) => spec.group === group || (group === "rest" && spec.group !== "loss"));
    if (!charts.length) continue;
    const look = group === "loss" ? "large" : areFew && [1, 2, 4].includes(charts.length) ? "two" : "";
    const grid = element("div", { class: `charts ${look}` }, ...charts.map((chart) => chart.figure));
    if (group === "loss" || areFew) groups.append(element("div", { class: "group" }, grid));
    else groups.append(element("details", { class: "group", open: "" }, element("summary", {}, text[`group_${group}`]), grid));
  }
  if (!view.charts.length) groups.append(element("p", { class: "note" }, text.no_curves));
  if (view.data.leftOut) groups.append(element("p", { class: "note" }, fill(text.left_out, { count: view.data.leftOut })));
  for (const chart of view.charts) {
    listen(chart);
    watcher.observe(chart.figure);
  }
  drawTheRest();
}

// What is out of sight is drawn once, in spare time: for scrolling down to it, and for pictures of the whole page.
function drawTheRest() {
  const spare = window.requestIdleCallback ?? ((work) => setTimeout(work, 50)), charts = [...view.charts];
  const next = () => {
    const chart = charts.shift();
    if (!chart || !view.charts.includes(chart)) return;
    if (chart.isStale) {
      const { isSeen } = chart;
      chart.isSeen = true;
      chart.draw();
      chart.isSeen = isSeen;
    }
    spare(next);
  };
  spare(next);
}

// ---- pointers and keys ----

function listen(chart) {
  const { plot } = chart, fingers = new Map();
  let start = null, pinch = null, tapped = 0;
  const placeAt = (event) => {
    const { box, left, right } = chart.frame, across = event.clientX - plot.getBoundingClientRect().left;
    return left + (Math.min(1, Math.max(0, (across - box.left) / (box.right - box.left)))) * (right - left);
  };
  const zoomBy = (factor, middle) => {
    const [left, right] = view.domain();
    view.setZoom(middle - (middle - left) * factor, middle + (right - middle) * factor);
  };
  plot.addEventListener("pointerdown", (event) => {
    if (!chart.frame || event.button !== 0) return;
    fingers.set(event.pointerId, event);
    if (event.pointerType === "mouse") {
      start = placeAt(event);
      plot.setPointerCapture(event.pointerId);
    } else if (fingers.size === 2) {
      const [one, other] = [...fingers.values()];
      pinch = { distance: Math.abs(one.clientX - other.clientX) || 1, domain: view.domain(), middle: (placeAt(one) + placeAt(other)) / 2 };
    } else {
      if (event.timeStamp - tapped < 300) { view.zoom = null; view.draw(); }
      tapped = event.timeStamp;
      view.setCursor(placeAt(event), chart);
    }
  });
  plot.addEventListener("pointermove", (event) => {
    if (!chart.frame) return;
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (pinch && fingers.size === 2) {
      const [one, other] = [...fingers.values()], factor = pinch.distance / (Math.abs(one.clientX - other.clientX) || 1);
      const [left, right] = pinch.domain, { middle } = pinch;
      view.setZoom(middle - (middle - left) * factor, middle + (right - middle) * factor);
      return;
    }
    view.setCursor(placeAt(event), chart);
    if (start === null) return;
    const { box, x } = chart.frame, from = x(Math.min(start, view.cursor)), to = x(Math.max(start, view.cursor));
    chart.overlay.append(element("rect", { class: "chosen", x: from, width: to - from, y: box.top, height: box.bottom - box.top }));
  });
  const end = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size < 2) pinch = null;
    if (start === null) return;
    const from = start, to = placeAt(event);
    start = null;
    if (event.type === "pointerup" && Math.abs(chart.frame.x(to) - chart.frame.x(from)) > 6) view.setZoom(Math.min(from, to), Math.max(from, to));
    else chart.showCursor();
  };
  plot.addEventListener("pointerup", end);
  plot.addEventListener("pointercancel", end);
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && start === null) view.setCursor(null, null); });
  plot.addEventListener("dblclick", () => { view.zoom = null; view.draw(); });
  plot.addEventListener("wheel", (event) => {
    if (!chart.frame || !(event.ctrlKey || event.metaKey || document.activeElement === plot)) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const [left, right] = view.domain(), way = (event.deltaX / chart.frame.width) * (right - left);
      if (view.zoom) view.setZoom(left + way, right + way);
    } else zoomBy(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.003))), placeAt(event));
  }, { passive: false });
  plot.addEventListener("keydown", (event) => {
    if (!chart.frame || event.ctrlKey || event.metaKey || event.altKey) return;
    const line = chart.frame.lines[0], [left, right] = view.domain();
    const middle = view.cursor ?? (left + right) / 2;
    const to = (at) => {
      const place = line.xs[Math.max(0, Math.min(line.xs.length - 1, at))];
      if (place < left || place > right) view.setZoom(place - (right - left) / 2, place + (right - left) / 2);
      view.setCursor(place, chart);
      spoken.textContent = chart.tip.innerText;
    };
    const at = line ? nearest(line.xs, middle) : 0, stride = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowRight: () => line && to(view.cursor === null ? at : at + stride), ArrowLeft: () => line && to(view.cursor === null ? at : at - stride),
      Home: () => line && to(0), End: () => line && to(line.xs.length - 1),
      "+": () => zoomBy(0.7, middle), "=": () => zoomBy(0.7, middle), "-": () => zoomBy(1.4, middle),
      0: () => { view.zoom = null; view.draw(); }, Escape: () => { view.zoom = null; view.setCursor(null, null); view.draw(); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

// ---- light and dark ----

function fillTheme() {
  const root = document.documentElement, key = "kunren-theme";
  const stored = (value) => {
    try {
      if (value !== undefined) localStorage.setItem(key, value);
      return localStorage.getItem(key);
    } catch { return null; } // a page from a file may have no storage
  };
  const set = (theme) => (theme === "system" ? delete root.dataset.theme : (root.dataset.theme = theme));
  const before = stored();
  if (before === "light" || before === "dark") set(before);
  const themes = [["system", text.theme_system], ["light", text.theme_light], ["dark", text.theme_dark]];
  document.getElementById("theme").append(choice(text.theme, themes, (one) => one === (root.dataset.theme || "system"), (one) => { set(one); stored(one); }));
}

// ---- a run that goes on ----

function follow() {
  const status = document.getElementById("live");
  let latest = Date.now(), failures = 0;
  status.hidden = false;
  const say = () => {
    const seconds = Math.round((Date.now() - latest) / 1000), isGone = failures > 1;
    status.classList.toggle("gone", isGone);
    status.textContent = isGone ? fill(text.server_gone, { seconds }) : seconds < 1 ? text.updated_now : fill(text.updated, { seconds });
  };
  const ask = async () => {
    const asked = Date.now();
    try {
      const answer = await fetch(`data.json${location.search}`, { cache: "no-store", signal: AbortSignal.timeout(8000) });
      if (!answer.ok) throw new Error(answer.status);
      take(await answer.json());
      latest = Date.now();
      failures = 0;
    } catch { failures += 1; }
    say();
    // A long run takes the server a while to read: it is not asked to do so for more than a tenth of the time.
    setTimeout(ask, Math.max(2000, failures ? 0 : 9 * (Date.now() - asked)));
  };
  setInterval(say, 1000);
  say();
  setTimeout(ask, 2000);
}

/** Other data for the same page: zoom, toggles and what is open stay. */
function take(data) {
  const before = JSON.stringify([view.data.charts, view.data.runs, view.data.names]);
  for (const [name, html] of Object.entries(data.parts || {})) {
    const part = document.getElementById(`part-${name}`);
    if (part && part.dataset.html !== html) {
      part.innerHTML = html; // made, and escaped, by the one that made the page
      part.dataset.html = html;
    }
  }
  delete data.parts;
  Object.assign(view.data, data);
  if (JSON.stringify([view.data.charts, view.data.runs, view.data.names]) !== before) {
    fillLegend();
    fillCharts();
    const search = document.getElementById("search");
    if (search && search.value) filter(search.value);
  }
  view.draw();
}

fillTheme();
fillBench();
fillLegend();
const curves = document.getElementById("curves");
curves.replaceChildren(bench, groups, hint, spoken);
fillCharts();
view.draw();
new ResizeObserver(() => view.draw()).observe(curves);
addEventListener("beforeprint", () => { for (const chart of view.charts) { chart.isSeen = true; chart.draw(); } });
if (view.data.live) follow();
