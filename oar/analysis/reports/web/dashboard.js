"use strict";
// Text from runs is only ever set as textContent: nothing in it can become a part of the page.
const data = JSON.parse(document.getElementById("data").textContent);
const WEIGHTS = [0.125, 0.25, 0.5, 0.8, 1.25, 1.75, 2.5, 4];  // as the inspector colours them
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);
const state = { shown: new Set(data.lines.keys()), smoothing: data.smoothing, axis: "step", seeds: true };
const charts = [], repainted = [];

function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function number(value) {
  if (value === null || value === undefined) return "";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  return seconds < 7200 ? `${Number((seconds / 60).toPrecision(3))} min` : `${Number((seconds / 3600).toPrecision(3))} h`;
}

// ---- lines: colour, marker, dash
const MARKS = {
  s: "M-3.4-3.4h6.8v6.8h-6.8z", o: "M-3.8 0a3.8 3.8 0 1 0 7.6 0a3.8 3.8 0 1 0-7.6 0z", "^": "M0-4.4L4.4 3.6H-4.4z",
  D: "M0-4.8L4.4 0L0 4.8L-4.4 0z", v: "M0 4.4L4.4-3.6H-4.4z", P: "M-1.5-4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9z",
  X: "M-4.2-2L-2-4.2L0-2.2L2-4.2L4.2-2L2.2 0L4.2 2L2 4.2L0 2.2L-2 4.2L-4.2 2L-2.2 0z",
  "*": "M0-5L1.3-1.7L4.8-1.5L2.1.7L3 4.1L0 2.2L-3 4.1L-2.1.7L-4.8-1.5L-1.3-1.7z",
};
const colour = (line) => (line.colour === "#000000" ? "currentColor" : line.colour);  // black is not seen on dark
const dash = (line) => DASHES[line.dash % DASHES.length];
const mark = (line, x, y) => draw("path", { class: "mark", d: MARKS[line.marker], fill: colour(line), transform: `translate(${x} ${y})` });
const swatch = (line) => draw("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" },
  draw("line", { x1: 0, x2: 30, y1: 6, y2: 6, stroke: colour(line), "stroke-width": 2.2, "stroke-dasharray": dash(line) }), mark(line, 15, 6));

// ---- where a point lies: its step, or the seconds of training until then
function timeOf(run, step) {
  const steps = data.steps[run.time[0]], seconds = run.time[1];
  if (step <= 0) return 0;
  if (!steps.length || step > steps[steps.length - 1]) return null;
  const after = steps.findIndex((one) => one >= step);
  if (steps[after] === step || after === 0) return (seconds[after] * step) / steps[after];
  const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
  return seconds[after - 1] + share * (seconds[after] - seconds[after - 1]);
}

function placeOf(runs, step) {
  if (state.axis === "step") return step;
  const times = runs.map((run) => timeOf(run, step)).filter((time) => time !== null);
  return times.length ? times.reduce((sum, time) => sum + time, 0) / times.length : null;
}

function pointsOf(runs, [axis, values], smoothing) {
  const steps = data.steps[axis];
  return smoothed(steps, values, smoothing)
    .map((y, at) => ({ step: steps[at], y, x: placeOf(runs, steps[at]) }))
    .filter((point) => point.x !== null);
}

// The mean of all points at most half the window away; points that lie further apart stay as they are.
function smoothed(steps, values, window) {
  const half = (window - 1) / 2;
  let first = 0, next = 0, sum = 0;
  return values.map((_, at) => {
    while (next < steps.length && steps[next] <= steps[at] + half) sum += values[next++];
    while (steps[first] < steps[at] - half) sum -= values[first++];
    return next - first === 1 ? values[at] : sum / (next - first);
  });
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
  const by = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= raw);
  const found = [];
  for (let at = Math.ceil(low / by - 1e-9); at * by <= high + by * 1e-9; at += 1) found.push(Number((at * by).toPrecision(12)));
  return found;
}

// ---- charts
const LEFT = 46, RIGHT = 12, TOP = 8, BOTTOM = 22;

function chart(panel) {
  const picture = draw("svg", { class: "chart", tabindex: 0, role: "group" });
  const large = make("button", { type: "button", title: "Large or small", "aria-label": `${panel.title}: large or small` }, "⤢");
  const figure = make("figure", { "data-metric": panel.metric }, caption(panel, large), picture);
  const one = { panel, figure, picture, at: null };
  const toggle = () => { figure.classList.toggle("large"); paint(one); };
  large.addEventListener("click", toggle);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = one.back(((event.clientX - box.left) / box.width) * one.width);
    const near = nearest(one.stops, x);
    if (near === undefined) return;
    tell(one, near, event.clientX, event.clientY);
  });
  picture.addEventListener("pointerleave", hush);
  picture.addEventListener("blur", hush);
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); toggle(); }
    if (!/^(Arrow(Left|Right)|Home|End)$/.test(event.key) || !one.stops.length) return;
    event.preventDefault();
    const last = one.stops.length - 1, now = one.at === null ? -1 : one.stops.indexOf(nearest(one.stops, one.at));
    const next = { ArrowLeft: Math.max(0, now - 1), ArrowRight: Math.min(last, now + 1), Home: 0, End: last }[event.key];
    const box = picture.getBoundingClientRect();
    tell(one, one.stops[next], box.left + (one.x(one.stops[next]) / one.width) * box.width, box.top + box.height / 3);
  });
  charts.push(one);
  return figure;
}

const caption = (panel, ...more) => make("figcaption", {}, make("b", {}, panel.title), make("small", {}, panel.about), ...more);
const nearest = (all, x) => all.reduce((best, one) => (best === undefined || Math.abs(one - x) < Math.abs(best - x) ? one : best), undefined);

function drawnOf(panel) {
  return [...state.shown].sort((a, b) => a - b).flatMap((at) => {
    const curve = panel.curves[at], line = data.lines[at];
    if (!curve) return [];
    const own = curve.seeds.map(([place]) => line.runs[place]);
    const seeds = curve.seeds.map(([place, ...values]) => ({ run: line.runs[place], points: pointsOf([line.runs[place]], values, state.smoothing) }));
    const mean = pointsOf(own, curve.mean, state.smoothing);
    return mean.length ? [{ at, line, seeds, mean }] : [];  // on the time axis a run without seconds has no place
  });
}

let widest = 1;  // of all charts, so that one place is the same step in each

function farthest() {
  const ends = charts.flatMap(({ panel }) => panel.curves.flatMap((curve, at) => (curve && state.shown.has(at)
    ? curve.seeds.map(([place, axis]) => placeOf([data.lines[at].runs[place]], data.steps[axis][data.steps[axis].length - 1]) ?? 0) : [])));
  return ends.reduce((a, b) => Math.max(a, b), 0) || 1;
}

function paint(one) {
  const { panel, picture, figure } = one, wide = figure.classList.contains("large");
  [one.width, one.height] = wide ? [1200, 420] : [420, 190];
  const drawn = one.drawn = drawnOf(panel);
  const seen = drawn.flatMap(({ mean, seeds }) => [...mean, ...(state.seeds ? seeds.flatMap(({ points }) => points) : [])]);
  picture.setAttribute("viewBox", `0 0 ${one.width} ${one.height}`);
  picture.replaceChildren();
  one.stops = [...new Set(drawn.flatMap(({ mean }) => mean.map(({ x }) => x)))].sort((a, b) => a - b);
  one.back = (at) => ((at - LEFT) / (one.width - LEFT - RIGHT)) * widest;
  one.x = (value) => LEFT + (value / widest) * (one.width - LEFT - RIGHT);
  picture.setAttribute("aria-label", said(panel, drawn));
  if (!seen.length) {
    const why = state.shown.size ? "nothing logged by what is shown" : "every line is switched off";
    picture.append(draw("text", { x: one.width / 2, y: one.height / 2, "text-anchor": "middle" }, why));
    return;
  }
  let low = seen.reduce((least, { y }) => Math.min(least, y), Infinity), high = seen.reduce((most, { y }) => Math.max(most, y), -Infinity);
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  [low, high] = [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  const y = (value) => one.height - BOTTOM - ((value - low) / (high - low)) * (one.height - TOP - BOTTOM);
  for (const value of ticks(low, high, wide ? 9 : 6)) {
    picture.append(draw("line", { class: "grid", x1: LEFT, x2: one.width - RIGHT, y1: y(value), y2: y(value) }));
    picture.append(draw("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  const scale = state.axis === "step" || widest < 120 ? 1 : widest < 7200 ? 60 : 3600;
  const origin = state.axis === "step" ? "step 0" : `0 ${{ 1: "s", 60: "min", 3600: "h" }[scale]}`;
  const marks = ticks(0, widest / scale, wide ? 12 : 5);
  for (const value of marks) {
    const last = one.x(value * scale) > one.width - 44;
    picture.append(draw("text", { x: one.x(value * scale), y: one.height - 7, "text-anchor": last ? "end" : "middle" }, value === 0 ? origin : String(value)));
  }
  picture.append(draw("line", { class: "base", x1: LEFT, x2: one.width - RIGHT, y1: one.height - BOTTOM, y2: one.height - BOTTOM }));
  const path = (points) => points.map((point, at) => `${at ? "L" : "M"}${one.x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`).join("");
  for (const { at, line, mean, seeds } of drawn) {
    const group = draw("g", { class: "line", "data-line": at });
    if (state.seeds && seeds.length > 1) {
      for (const { points } of seeds) group.append(draw("path", { class: "seed", d: path(points), stroke: colour(line) }));
    }
    group.append(draw("path", { class: "mean", d: path(mean), stroke: colour(line), "stroke-dasharray": dash(line) }));
    const every = Math.max(1, Math.round(mean.length / (wide ? 12 : 6))), from = Math.floor((every * (at % 4)) / 4);
    mean.forEach((point, place) => { if (mean.length === 1 || place % every === from) group.append(mark(line, one.x(point.x), y(point.y))); });
    picture.append(group);
  }
  one.cross = draw("line", { class: "cross", y1: TOP, y2: one.height - BOTTOM, visibility: "hidden" });
  picture.append(one.cross);
}

function said(panel, drawn) {
  const ends = drawn.map(({ line, mean }) => `${line.name} ${number(mean[mean.length - 1].y)}`);
  return `${panel.title}, ${panel.about}. At the end: ${ends.join("; ") || "nothing"}. Arrow keys go along the steps.`;
}

// ---- the box at a point, and a line at the same place in every chart
function tell(one, at, left, top) {
  one.at = at;
  for (const other of charts) {
    if (!other.cross) continue;
    other.cross.setAttribute("visibility", "visible");
    other.cross.setAttribute("x1", other.x(at));
    other.cross.setAttribute("x2", other.x(at));
  }
  const rows = one.drawn.flatMap(({ line, mean, seeds }) => {
    const place = nearest(mean.map(({ x }) => x), at), point = mean.find(({ x }) => x === place);
    if (Math.abs(place - at) > widest / 8) return [];
    const raw = seeds.map(({ run, points }) => points.find(({ step }) => step === point.step)).map((found) => (found ? number(found.y) : "–"));
    const steps = make("td", {}, `step ${point.step}`);
    return [make("tr", {}, make("td", {}, swatch(line), ` ${line.name}`), make("td", {}, make("b", {}, number(point.y))), steps, make("td", {}, make("small", {}, `seeds ${raw.join(", ")}`)))];
  });
  const head = make("div", {}, make("b", {}, one.panel.title), state.axis === "step" ? ` near step ${at}` : ` after ${duration(at)}`);
  open(left, top, head, make("table", {}, make("tbody", {}, ...rows)));
}

function open(left, top, ...content) {
  const tip = $("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const beside = left + 16 + box.width < window.innerWidth ? left + 16 : left - 16 - box.width;
  tip.style.left = `${Math.max(4, beside)}px`;
  tip.style.top = `${Math.max(4, Math.min(top + 14, window.innerHeight - box.height - 6))}px`;
}

function hush() {
  $("tip").hidden = true;
  for (const one of charts) {
    if (one.cross) one.cross.setAttribute("visibility", "hidden");
  }
}

// ---- tables
const rowHead = (line) => make("th", { scope: "row" }, swatch(line), ` ${line.name}`);
const headings = (names) => make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));

function tiers(panel) {
  const place = make("div", { class: "scroll" }), picker = make("select", {});
  picker.append(...panel.tables.map((table, at) => make("option", { value: at }, table.name)));
  const paintTable = () => {
    const table = panel.tables[picker.value];
    const rows = [...state.shown].sort((a, b) => a - b).filter((at) => table.rows[at].some((cell) => cell)).map((at) => {
      const cells = table.rows[at].map((cell) => {
        if (!cell) return make("td", {}, "–");
        const [mean, error, values] = cell, spread = error === null ? "" : ` ± ${error.toFixed(1)}`;
        return make("td", { title: `seeds ${values.map(number).join(", ")}` }, mean.toFixed(1), make("small", {}, spread));
      });
      return make("tr", {}, rowHead(data.lines[at]), ...cells, make("td", {}, String(Math.max(...table.rows[at].map((cell) => (cell ? cell[2].length : 0))))));
    });
    place.replaceChildren(make("table", {}, headings(["", ...table.columns, "seeds"]), make("tbody", {}, ...rows)));
  };
  picker.addEventListener("change", paintTable);
  repainted.push(paintTable);
  const note = make("small", {}, "mean ± its standard error over seeds, %; one seed has none. No test of significance.");
  const head = make("figcaption", {}, make("b", {}, panel.title), note, make("label", { class: "picker" }, "Measured by ", picker));
  return make("figure", { class: "whole", "data-metric": "tiers" }, head, place);
}

function stages(panel) {
  const bars = draw("svg", { class: "chart bars", role: "img" }), place = make("div", { class: "scroll" });
  const paintBars = () => {
    const rows = [...state.shown].sort((a, b) => a - b).map((at) => ({ line: data.lines[at], at, values: panel.medians[at] })).filter(({ values }) => values.some((value) => value !== null));
    const longest = Math.max(...rows.map(({ values }) => values.slice(0, -1).reduce((sum, value) => sum + value, 0)), 1e-9);
    const WIDTH = 900, NAME = 150, END = 110, TALL = 26;
    bars.setAttribute("viewBox", `0 0 ${WIDTH} ${rows.length * TALL + 4}`);
    bars.setAttribute("aria-label", "Stacked bars; the table below has their numbers");
    bars.replaceChildren();
    const reference = panel.reference === null ? null : panel.medians[panel.reference].at(-1);
    const totals = (values) => (reference ? `${(values.at(-1) / reference).toFixed(2)}x, ` : "") + `${number(values.at(-1))} s`;
    rows.forEach(({ line, values }, row) => {
      let x = NAME;
      const y = row * TALL + 3;
      bars.append(draw("text", { class: "name", x: NAME - 8, y: y + 15, "text-anchor": "end" }, line.name));
      values.slice(0, -1).forEach((value, stage) => {
        const width = (value / longest) * (WIDTH - NAME - END);
        bars.append(draw("rect", { class: `stage${stage % 6}`, x, y, width, height: TALL - 6 }));
        if (width > panel.stages[stage].length * 6.2 + 8) {
          bars.append(draw("text", { class: `stage${stage % 6}-text`, x: x + 5, y: y + 15 }, panel.stages[stage]));
        }
        x += width;
      });
      bars.append(draw("text", { class: "total", x: x + 6, y: y + 15 }, totals(values)));
    });
    const body = rows.map(({ line, values }) => make("tr", {}, rowHead(line), ...values.map((value) => make("td", {}, number(value))),
      make("td", {}, reference ? `${(values.at(-1) / reference).toFixed(2)}x` : "–")));
    place.replaceChildren(make("table", {}, headings(["seconds", ...panel.stages, "whole step", "of GRPO's"]), make("tbody", {}, ...body)));
  };
  repainted.push(paintBars);
  return make("figure", { class: "whole", "data-metric": "stages" }, caption(panel), bars, place);
}

// ---- completions: of one problem side by side
function samples(panel) {
  const reward = make("select", {}, ...["all", "right", "wrong"].map((name) => make("option", {}, name)));
  const level = (weight) => `d${WEIGHTS.filter((edge) => weight >= edge).length}`;
  const legend = make("div", { class: "legend" }, make("span", {}, "weight "));
  [`below ${WEIGHTS[0]}`, ...WEIGHTS.slice(1).map((edge, at) => `${WEIGHTS[at]} to ${edge}`), `${WEIGHTS.at(-1)} or more`]
    .forEach((text, at) => legend.append(make("span", { class: `token d${at}` }, ` ${text} `)));
  const list = make("div", {});
  const paintCards = () => {
    const chosen = data.samples.filter((one) => state.shown.has(one.line) && (reward.value === "all" || (one.reward > 0) === (reward.value === "right")));
    list.replaceChildren(...grouped(chosen).map((all) => make("div", { class: "problem" },
      make("h3", {}, `${all[0].problem}, gold ${all[0].gold}`), make("p", {}, all[0].prompt),
      make("div", { class: "cards" }, ...all.map((one) => card(one, level))))));
    if (!chosen.length) list.append(make("p", { class: "none" }, "no completion fits"));
  };
  reward.addEventListener("change", paintCards);
  repainted.push(paintCards);
  list.addEventListener("mouseover", (event) => (event.target.matches("[data-at]") ? tellToken(event.target) : hush()));
  list.addEventListener("mouseleave", hush);
  list.addEventListener("focusin", (event) => { if (event.target.matches("[data-at]")) tellToken(event.target); });
  list.addEventListener("focusout", hush);
  list.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], all = [...event.target.parentElement.querySelectorAll("[data-at]")];
    const next = by && event.target.matches("[data-at]") ? all[all.indexOf(event.target) + by] : undefined;
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  const filters = make("div", { class: "filters" }, make("label", {}, "Graded ", reward), legend);
  return make("figure", { class: "whole", "data-metric": "samples" }, caption(panel), filters, list);
}

function grouped(all) {
  const found = new Map();  // by the prompt: another seed's problems may have the same names
  for (const one of all) found.set(one.prompt, [...(found.get(one.prompt) ?? []), one]);
  return [...found.values()];
}

function card(one, level) {
  const line = data.lines[one.line], tokens = make("div", { class: "tokens" });
  one.tokens.forEach((token, at) => {
    const [, blank, text] = token.match(/^(\s*)(.*)$/s);  // a line under two words would make them one
    const scored = at < one.weights.length, answer = one.segments && at >= one.segments[1] && at < one.segments[2];
    const classes = `token ${scored ? level(one.weights[at]) : "off"}${answer ? " answer" : ""}`;
    const span = make("span", { class: classes, "data-at": at, tabindex: at ? -1 : 0 }, text || blank || "∅");
    span.known = [one, at];
    if (text) tokens.append(blank);
    tokens.append(span);
  });
  const about = ` ${one.reward > 0 ? "✓ right" : "✗ wrong"}, advantage ${number(one.advantage)}, ${one.run}, step ${one.step} `;
  const head = make("h4", {}, swatch(line), ` ${line.name}`, make("small", {}, about));
  if (one.link) head.append(make("a", { href: one.link }, "inspector"));
  return make("article", {}, head, tokens);
}

function tellToken(span) {
  const [one, at] = span.known, place = span.getClientRects()[0];
  const part = !one.segments ? "no answer: every token weighs 1" : at < one.segments[0] ? "reasoning" : at < one.segments[1] ? "marker" : at < one.segments[2] ? "answer" : "end";
  const weight = at < one.weights.length ? `weight ${number(one.weights[at])}, token advantage ${number(one.weights[at] * one.advantage)}` : "not weighted";
  open(place.left - 10, place.bottom - 8, make("div", {}, make("b", {}, span.textContent), ` token ${at + 1} of ${one.tokens.length}, ${part}`), make("div", {}, weight));
}

// ---- controls
function repaint() {
  widest = farthest();
  for (const one of charts) paint(one);
  for (const again of repainted) again();
}

function show(at, on) {
  if (on) state.shown.add(at); else state.shown.delete(at);
  document.querySelector(`#lines input[value="${at}"]`).checked = on;
  repaint();
}

function fade(at) {
  for (const group of document.querySelectorAll(".line")) group.classList.toggle("faded", at !== null && Number(group.dataset.line) !== at);
}

function controls() {
  data.lines.forEach((line, at) => {
    const box = make("input", { type: "checkbox", value: at, checked: "" });
    const chip = make("label", { class: "chip", title: at < 9 ? `key ${at + 1}` : "" }, box, swatch(line), line.name);
    box.addEventListener("change", () => show(at, box.checked));
    for (const kind of ["mouseenter", "focusin"]) chip.addEventListener(kind, () => fade(at));
    for (const kind of ["mouseleave", "focusout"]) chip.addEventListener(kind, () => fade(null));
    $("lines").append(chip);
  });
  const everything = () => { for (const at of data.lines.keys()) show(at, true); };
  $("all").addEventListener("click", everything);
  $("smoothing").value = state.smoothing;
  const smooth = () => {
    state.smoothing = Number($("smoothing").value);
    $("window").textContent = state.smoothing === 1 ? "none" : `${state.smoothing} steps`;
    repaint();
  };
  $("smoothing").addEventListener("input", smooth);
  $("axis").addEventListener("change", () => { state.axis = $("axis").value; hush(); repaint(); });
  $("seeds").addEventListener("change", () => { state.seeds = $("seeds").checked; repaint(); });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "light dark"
      ? matchMedia("(prefers-color-scheme: dark)").matches : root.style.colorScheme === "dark";
    root.style.colorScheme = dark ? "light" : "dark";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hush();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input[type='range']")) return;
    if (event.key === "0") everything();
    const at = Number(event.key) - 1;
    if (/^[1-9]$/.test(event.key) && at < data.lines.length) show(at, !state.shown.has(at));
  });
  smooth();
}

function start() {
  $("title").textContent = data.title;
  $("notes").append(...data.notes.map((note) => make("li", {}, note)));
  $("runs").append(...data.lines.flatMap((line) => [make("dt", {}, swatch(line), ` ${line.name}`), make("dd", {}, line.runs
    .map((run) => `${run.name} (seed ${run.seed}, ${run.steps} steps${run.finished ? "" : ", not finished"})`).join("; "))]));
  $("provenance").textContent = JSON.stringify(data.provenance, null, 1);
  const kinds = { curve: chart, tiers, stages, samples };
  $("sections").append(...data.sections.map((section) => make("section", {}, make("h2", {}, section.name),
    make("div", { class: "panels" }, ...section.panels.map((panel) => kinds[panel.kind](panel))))));
  controls();
  requestAnimationFrame(() => { document.documentElement.dataset.opened = Math.round(performance.now()); });
}

start();
