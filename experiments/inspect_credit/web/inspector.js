"use strict";
// Text from completions is only ever set as textContent: nothing in it can become a part of the page.
const data = JSON.parse(document.getElementById("data").textContent);
const SCALES = {
  weight: { edges: [0.125, 0.25, 0.5, 0.8, 1.25, 1.75, 2.5, 4], map: "d" },
  ratio: { edges: [0.5, 0.8, 0.9, 0.97, 1.03, 1.1, 1.2, 2], map: "d" },
  advantage: { shares: [-0.6, -0.3, -0.1, -0.01, 0.01, 0.1, 0.3, 0.6], map: "d" },
  amount: { shares: [1, 2, 3, 4, 5, 6, 7, 8].map((part) => part / 9), map: "s" },
};
const BINS = 24;
const $ = (id) => document.getElementById(id);
const shown = { left: 0, right: null, chosen: 0 };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "text"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function number(value) {
  if (value === null || value === undefined) return "none";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

function quantile(values, share) {
  const ordered = [...values].sort((a, b) => a - b);
  const place = share * (ordered.length - 1);
  const below = ordered[Math.floor(place)];
  return below + (ordered[Math.ceil(place)] - below) * (place - Math.floor(place));
}

// ---- signals: scales and legends
const weights = data.signals.flatMap((signal, index) => (signal.kind === "weight" ? [index] : []));
const logged = (name) => data.signals.findIndex((signal) => signal.source === data.signals[0].source && signal.name === name);
const SURPRISAL = logged("surprisal"), ADVANTAGE = logged("advantage"), CAUSAL = logged("causal"), ERROR = logged("error");
const label = (index) => `${data.signals[index].name}, ${data.signals[index].source}`;
const valuesOf = (completion, index) => completion.values[index];
const importanceOf = (completion, index) => completion.importance[weights.indexOf(index)];
const thresholdOf = (completion, index) => completion.thresholds[weights.indexOf(index)];
const reasoningOf = (completion) => (completion.segments ? completion.segments[0] : 0);
const edges = new Map();

function edgesOf(index) {
  if (!edges.has(index)) {
    const { kind } = data.signals[index];
    if (kind === "mark") edges.set(index, [0.5]);
    else if (SCALES[kind].edges) edges.set(index, SCALES[kind].edges);
    else {
      const sizes = data.completions.flatMap((completion) => valuesOf(completion, index).map(Math.abs));
      const largest = (sizes.length ? quantile(sizes, 0.99) : 0) || 1;
      edges.set(index, SCALES[kind].shares.map((share) => share * largest));
    }
  }
  return edges.get(index);
}

function levelOf(index, value) {
  const level = edgesOf(index).filter((edge) => value >= edge).length;
  const { kind } = data.signals[index];
  return kind === "mark" ? ["s0", "s7"][level] : SCALES[kind].map + level;
}

function legend(index) {
  const signal = data.signals[index], borders = edgesOf(index).map(number);
  const texts = signal.kind === "mark" ? ["no", "yes"] : [
    `below ${borders[0]}`,
    ...borders.slice(1).map((border, at) => `${borders[at]} to ${border}`),
    `${borders[borders.length - 1]} or more`,
  ];
  const middle = [edgesOf(index)[0] - 1, ...edgesOf(index)];
  const swatches = texts.map((text, at) => make("span", { class: `token ${levelOf(index, middle[at])}` }, ` ${text} `));
  const head = make("span", { class: "what" }, make("b", {}, label(index)), ` ${signal.about}`);
  return make("div", { class: "legend" }, head, ...swatches);
}

// ---- completions: a card each; its tokens are coloured when it comes near the window, or is printed. Until then it holds its
// text, so that the browser's own search finds it.
const cards = data.completions.map((completion, row) => {
  const right = completion.correct;
  const title = `#${row + 1} ${completion.benchmark} ${completion.problem}: ${right ? "✓ right" : "✗ wrong"}`;
  const answer = completion.segments ? "" : ", no answer: every token weighs 1";
  const about = `, reward ${number(completion.reward)}, advantage ${number(completion.advantage)}, gold ${completion.gold}${answer}`;
  const agreement = make("span", { class: "agreement" });
  const element = make("article", { "data-row": row });
  const sides = make("div", { class: "sides" });
  element.append(make("h2", {}, title, make("small", {}, about, agreement)));
  sides.append(make("div", { class: "tokens" }, completion.tokens.join("")));
  element.append(make("p", { class: "prompt" }, completion.prompt), sides);
  return { row, completion, right, element, sides, agreement, near: false, stale: true };
});

function holds(card, text) {
  const { problem, prompt, tokens, gold } = card.completion;
  card.text ??= [problem, prompt, tokens.join(""), gold].join("\n").toLowerCase();
  return card.text.includes(text);
}

function tokenElements(completion, index) {
  const values = valuesOf(completion, index), segments = completion.segments;
  return completion.tokens.flatMap((token, at) => {
    const classes = ["token"];
    classes.push(at < values.length ? levelOf(index, values[at]) : "off");
    if (segments && at >= segments[1] && at < segments[2]) classes.push("answer");
    if (CAUSAL >= 0 && completion.values[CAUSAL][at]) classes.push("causal");
    if (ERROR >= 0 && !completion.correct && completion.values[ERROR][at]) classes.push("error");
    const [, blank, text] = token.match(/^(\s*)(.*)$/s);  // a line under two words would make them one
    const span = make("span", { class: classes.join(" "), "data-at": at, tabindex: at ? -1 : 0 }, text || blank || "∅");
    return text ? [blank, span] : [span];
  });
}

function fill(card) {
  if (!card.stale) return;
  card.stale = false;
  const { completion } = card;
  card.sides.replaceChildren(...sidesShown().map((index) => {
    const tokens = make("div", { class: "tokens", "data-signal": index, role: "group", "aria-label": label(index) });
    tokens.append(...tokenElements(completion, index));
    return make("div", {}, ...(shown.right === null ? [] : [make("h3", {}, label(index))]), tokens);
  }));
}

const sidesShown = () => (shown.right === null ? [shown.left] : [shown.left, shown.right]);
const visible = () => cards.filter((card) => !card.element.hidden);
const nearness = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = cards[target.dataset.row];
    card.near = isIntersecting;
    if (card.near) fill(card);
  }
}, { rootMargin: "800px" });

// ---- what is chosen changes what is shown
function repaint() {
  for (const card of cards) {
    card.stale = true;
    if (card.near) fill(card);
  }
  $("legends").replaceChildren(...sidesShown().map(legend));
  summarise();
}

function filter() {
  const reward = $("reward").value, benchmark = $("benchmark").value, text = $("search").value.toLowerCase();
  for (const card of cards) {
    const fits = (!reward || card.right === (reward === "right")) && (!benchmark || card.completion.benchmark === benchmark);
    card.element.hidden = !(fits && (!text || holds(card, text)));
  }
  const left = visible();
  if (left.length && cards[shown.chosen].element.hidden) choose(left[0].row);
  else summarise();
}

function agreementShown() {
  const pair = [shown.left, shown.right].sort((a, b) => a - b);
  const found = shown.right === null ? undefined : data.agreement.find(([a, b]) => a === pair[0] && b === pair[1]);
  return found && found[2];
}

function summarise() {
  const left = visible(), agreement = agreementShown();
  for (const card of cards) {
    card.agreement.textContent = agreement ? `, rank agreement ${number(agreement[card.row])}` : "";
  }
  let text = `${left.length} of ${cards.length} completions`;
  if (agreement) {
    const known = left.map((card) => agreement[card.row]).filter((value) => value !== null);
    const mean = known.length ? number(known.reduce((sum, value) => sum + value, 0) / known.length) : "none";
    text += `; rank agreement (Spearman) of the two: mean ${mean} over ${known.length} of them`;
  } else if (shown.right !== null) text += "; the two have no order to be compared";
  for (const index of sidesShown()) text += causalShare(index, left);
  $("summary").textContent = text;
  const chosen = cards[shown.chosen];
  $("histograms").replaceChildren(...sidesShown().flatMap((index) => [
    histogram(`${label(index)}: completion #${chosen.row + 1}`, [chosen.completion], index),
    histogram(`${label(index)}: all ${left.length} shown`, left.map((card) => card.completion), index),
  ]));
}

// Where the task knows them: how much of a weight lies on the tokens that carry the computation.
function causalShare(index, left) {
  if (CAUSAL < 0 || data.signals[index].kind !== "weight") return "";
  let tokens = 0, causal = 0, weight = 0, all = 0;
  for (const { completion } of left) {
    valuesOf(completion, index).forEach((value, at) => {
      const mark = completion.values[CAUSAL][at];
      tokens += 1; causal += mark; all += value; weight += mark * value;
    });
  }
  const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`;
  return tokens ? `; causal tokens: ${percent(causal, tokens)} of the reasoning, ${percent(weight, all)} of the weight of ${label(index)}` : "";
}

function choose(row) {
  cards[shown.chosen].element.classList.remove("chosen");
  shown.chosen = row;
  cards[row].element.classList.add("chosen");
  summarise();
}

// ---- histograms: of a weight its importance, with the threshold of its gate
function histogram(title, completions, index) {
  const gated = data.signals[index].kind === "weight" && data.completions.some((one) => importanceOf(one, index).length);
  const points = completions.flatMap((completion) => {
    const values = gated ? importanceOf(completion, index) : valuesOf(completion, index).slice(0, reasoningOf(completion));
    const threshold = gated ? thresholdOf(completion, index) : null;
    return values.map((value) => ({ value, side: threshold === null ? "" : value >= threshold ? "boosted" : "suppressed" }));
  });
  const levels = gated ? completions.map((completion) => thresholdOf(completion, index)).filter((level) => level !== null) : [];
  const caption = make("figcaption", {}, make("b", {}, title), make("br"));
  if (!points.length) return make("figure", {}, caption, "no reasoning tokens");
  const logarithmic = gated && points.some(({ value }) => value > 0);
  const at = (value) => (logarithmic ? Math.log10(value) : value);
  const positions = points.filter(({ value }) => !logarithmic || value > 0).map(({ value }) => at(value));
  const low = positions.reduce((a, b) => Math.min(a, b)), high = positions.reduce((a, b) => Math.max(a, b));
  const width = (high - low) / BINS || 1;
  const binOf = (value) => (logarithmic && value <= 0 ? 0 : 1 + Math.min(BINS - 1, Math.floor((at(value) - low) / width)));
  const counts = Array.from({ length: BINS + 1 }, () => ({ boosted: 0, suppressed: 0, "": 0 }));
  for (const { value, side } of points) counts[binOf(value)][side] += 1;
  const most = Math.max(...counts.map((count) => count.boosted + count.suppressed + count[""]));
  const LEFT = 30, BOTTOM = 96, TALL = 84, STEP = 11;
  const picture = make("svg", { viewBox: "0 0 320 112", role: "img" });
  const x = (value) => LEFT + (logarithmic && value <= 0 ? STEP / 2 : STEP + ((at(value) - low) / width) * STEP);
  if (levels.length) {
    const [from, to] = [quantile(levels, 0.1), quantile(levels, 0.9)].map(x);
    picture.append(make("rect", { class: "band", x: from, y: BOTTOM - TALL, width: to - from, height: TALL }));
  }
  counts.forEach((count, bin) => {
    let top = BOTTOM;
    for (const side of ["suppressed", "", "boosted"]) {
      const height = (TALL * count[side]) / most;
      top -= height;
      if (height) picture.append(make("rect", { class: `bar ${side}`, x: LEFT + bin * STEP + 1.5, y: top, width: STEP - 3, height }));
    }
  });
  picture.append(make("line", { class: "axis", x1: LEFT, x2: LEFT + (BINS + 1) * STEP, y1: BOTTOM, y2: BOTTOM }));
  picture.append(make("text", { x: LEFT - 4, y: BOTTOM - TALL + 8, "text-anchor": "end" }, String(most)));
  const value = (position) => number(logarithmic ? 10 ** position : position);
  if (logarithmic) picture.append(make("text", { x: LEFT, y: BOTTOM + 12 }, "0"));
  picture.append(make("text", { x: LEFT + STEP, y: BOTTOM + 12, "text-anchor": "start" }, value(low)));
  picture.append(make("text", { x: LEFT + (BINS + 1) * STEP, y: BOTTOM + 12, "text-anchor": "end" }, value(high)));
  let said = `${points.length} reasoning tokens by ${gated ? "importance" : data.signals[index].name}${logarithmic ? ", logarithmic" : ""}`;
  if (levels.length) {
    const middle = quantile(levels, 0.5);
    picture.append(make("line", { class: "threshold", x1: x(middle), x2: x(middle), y1: BOTTOM - TALL - 6, y2: BOTTOM }));
    const boosted = points.filter(({ side }) => side === "boosted").length;
    said += `; dashed: the gate's threshold${levels.length > 1 ? ", median, and its middle 80 % in grey" : ""}, ${number(middle)}`;
    said += `; from it on (filled) ${boosted}, below (hollow) ${points.length - boosted}`;
  } else if (gated) said += "; no threshold";
  picture.setAttribute("aria-label", `${title}: ${said}`);
  caption.append(said);
  return make("figure", {}, caption, picture);
}

// ---- what is known of a token
function tell(token) {
  const { completion } = cards[token.closest("article").dataset.row], at = Number(token.dataset.at);
  const segments = completion.segments;
  const part = !segments ? "no answer" : at < segments[0] ? "reasoning" : at < segments[1] ? "marker" : at < segments[2] ? "answer" : "end";
  const rows = sidesShown().flatMap((index) => {
    const values = valuesOf(completion, index), { kind, name } = data.signals[index];
    if (kind !== "weight") return [[label(index), number(values[at])]];
    const scored = at < values.length;
    const importance = importanceOf(completion, index)[at];
    return [
      [`${label(index)}: weight`, number(scored ? values[at] : 1)],
      [`${label(index)}: importance`, scored ? number(importance) : "not scored"],
    ];
  });
  rows.push(["logprob when drawn", number(-completion.values[SURPRISAL][at])]);
  rows.push(["token advantage", number(completion.values[ADVANTAGE][at])]);
  data.signals.forEach((signal, index) => {
    if (signal.kind === "mark" && completion.values[index][at]) rows.push([signal.name, signal.source]);
  });
  const head = make("div", {}, make("b", {}, token.textContent.trim() || "(blank)"), ` token ${at + 1} of ${completion.tokens.length}, ${part}`);
  const list = make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  const tip = $("tip");
  tip.replaceChildren(head, list);
  tip.hidden = false;
  token.setAttribute("aria-describedby", "tip");
  const place = token.getClientRects()[0], box = tip.getBoundingClientRect();
  const below = place.bottom + 6 + box.height < window.innerHeight;
  tip.style.left = `${Math.max(4, Math.min(place.left, window.innerWidth - box.width - 8))}px`;
  tip.style.top = `${below ? place.bottom + 6 : Math.max(4, place.top - box.height - 6)}px`;
}

function step(token, key) {
  const all = [...token.parentElement.children], at = all.indexOf(token);
  const places = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 };
  if (key in places) return all[places[key]];
  const row = Number(token.closest("article").dataset.row), order = visible(), place = order.findIndex((card) => card.row === row);
  const next = order[place + (key === "ArrowDown" ? 1 : -1)];
  if (!next) return undefined;
  fill(next);
  return next.sides.querySelector(`[data-signal="${token.parentElement.dataset.signal}"] .token`);
}

// Each signal stands once under Show; where it was computed with several weights, a second box says with which.
function choice(side) {
  const name = $(side).value, from = $(`${side}-from`), kept = from.value;
  const sources = data.signals.filter((signal) => signal.name === name).map((signal) => signal.source);
  from.replaceChildren(...sources.map((source) => make("option", { value: source }, source)));
  if (sources.includes(kept)) from.value = kept;
  from.hidden = !sources.length;
  return name ? data.signals.findIndex((signal) => signal.name === name && signal.source === from.value) : null;
}

function cycle(by) {
  const select = $("left");
  select.selectedIndex = (select.selectedIndex + by + select.options.length) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

function listen() {
  const list = $("completions"), hide = () => { $("tip").hidden = true; };
  list.addEventListener("mouseover", (event) => (event.target.matches(".token") ? tell(event.target) : hide()));
  list.addEventListener("mouseleave", hide);
  list.addEventListener("focusin", (event) => {
    if (!event.target.matches(".token")) return;
    for (const other of event.target.parentElement.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    event.target.tabIndex = 0;
    const row = Number(event.target.closest("article").dataset.row);
    if (row !== shown.chosen) choose(row);
    tell(event.target);
  });
  list.addEventListener("focusout", hide);
  list.addEventListener("click", (event) => {
    const card = event.target.closest("article");
    if (card) choose(Number(card.dataset.row));
  });
  list.addEventListener("keydown", (event) => {
    if (!event.target.matches(".token") || !/^(Arrow|Home|End)/.test(event.key)) return;
    event.preventDefault();
    const next = step(event.target, event.key);
    if (next) next.focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
    if (event.key === "/") { event.preventDefault(); $("search").focus(); }
    if (event.key === "[" || event.key === "]") cycle(event.key === "]" ? 1 : -1);
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const side of ["left", "right"]) {
    for (const id of [side, `${side}-from`]) $(id).addEventListener("change", () => { shown[side] = choice(side); repaint(); });
  }
  window.addEventListener("beforeprint", () => cards.forEach(fill));
  for (const id of ["reward", "benchmark"]) $(id).addEventListener("change", filter);
  $("search").addEventListener("input", filter);
  $("marks").addEventListener("change", (event) => list.classList.toggle("marked", event.target.checked));
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "light dark"
      ? matchMedia("(prefers-color-scheme: dark)").matches : root.style.colorScheme === "dark";
    root.style.colorScheme = dark ? "light" : "dark";
  });
}

function open() {
  $("title").textContent = data.title;
  $("notes").append(...data.notes.map((note) => make("li", {}, note)));
  $("facts").append(...Object.entries(data.facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  $("provenance").textContent = JSON.stringify(data.provenance, null, 1);
  for (const side of ["left", "right"]) {
    const names = new Set(data.signals.map((signal) => signal.name));
    $(side).append(...[...names].map((name) => make("option", { value: name }, name)));
    shown[side] = choice(side);
  }
  const benchmarks = [...new Set(data.completions.map((completion) => completion.benchmark))].sort();
  $("benchmark").append(...benchmarks.map((name) => make("option", { value: name }, name)));
  $("oracle").hidden = CAUSAL < 0 && ERROR < 0;
  $("completions").append(...cards.map((card) => card.element));
  listen();
  cards[0].element.classList.add("chosen");
  repaint();
  for (const card of cards) nearness.observe(card.element);
  requestAnimationFrame(() => { document.documentElement.dataset.opened = Math.round(performance.now()); });
}

open();
