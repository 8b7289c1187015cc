"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.documentElement;

// Light or dark: the reader's choice goes before the system's.
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.style.colorScheme = dark ? "light" : "dark";
});

// What is folded away: all at once, on paper always, and where an address leads into it.
const folds = all("main details");
const unfold = document.getElementById("unfold");
const first = folds.map((fold) => fold.open);
unfold.addEventListener("click", () => {
  const wide = unfold.getAttribute("aria-pressed") !== "true";
  unfold.setAttribute("aria-pressed", String(wide));
  unfold.textContent = wide ? "Fold again" : "Unfold all";
  folds.forEach((fold, at) => { fold.open = wide || first[at]; });
});
let before = [];
addEventListener("beforeprint", () => {
  before = folds.map((fold) => fold.open);
  folds.forEach((fold) => { fold.open = !fold.classList.contains("source"); });
});
addEventListener("afterprint", () => folds.forEach((fold, at) => { fold.open = before[at]; }));
function lead() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", lead);

// Tables: a click on a heading sorts, the next one turns the order round, the third gives back the first one.
function value(text) {
  const found = text.trim().replace(/\u2212/g, "-").match(/^[<>=≥≤\s]*([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)/i);
  return found ? Number(found[1].replace(/,/g, "")) : null;
}
function compare(a, b) {
  if (a === "" || b === "") return a === b ? 0 : null;
  const [x, y] = [value(a), value(b)];
  return x !== null && y !== null ? x - y : a.localeCompare(b);
}
for (const table of all("main table")) {
  const body = table.tBodies[0];
  if (!body) continue;
  const rows = [...body.rows];
  const text = (row, at) => (row.cells[at] ? row.cells[at].textContent.trim() : "");
  all("thead th", table).forEach((head, at) => {
    const filled = rows.map((row) => text(row, at)).filter((cell) => cell !== "");
    if (filled.length && filled.every((cell) => value(cell) !== null)) rows.forEach((row) => row.cells[at]?.classList.add("number"));
    if (rows.length < 2 || !head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next;
      all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
      if (order) head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const sorted = [...rows];
      if (order) {
        sorted.sort((one, other) => {
          const [a, b] = [text(one, at), text(other, at)];
          return compare(a, b) === null ? (a === "" ? 1 : -1) : sign * compare(a, b); // empty cells stay last
        });
      }
      body.append(...sorted);
    });
  });
}

// Pictures: as wide as the page, or as they are.
for (const image of all("figure img")) {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  const turn = () => image.parentElement.classList.toggle("large");
  image.addEventListener("click", turn);
  image.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    turn();
  });
}

// Where the reader is.
const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
const places = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
function mark() {
  const passed = places.filter((place) => place.getBoundingClientRect().top < innerHeight / 3);
  const here = links.get((passed.at(-1) ?? places[0])?.id);
  for (const link of links.values()) if (link !== here) link.removeAttribute("aria-current");
  here?.setAttribute("aria-current", "location");
}
addEventListener("scroll", mark, { passive: true });

lead();
mark();
root.dataset.opened = "true";
