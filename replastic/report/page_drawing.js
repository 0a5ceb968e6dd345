// The parts of charts and bars: elements, texts that fit, axes, and the note at the cursor.

const SVG = "http://www.w3.org/2000/svg"; // a name, not an address: nothing is loaded
const TICK_LENGTH = 5;
const NOTHING_HEIGHT = 140;
const pen = document.createElement("canvas").getContext("2d");

/** An element of a drawing. Text is set as text. */
function drawn(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** An element of the page. Text is set as text. */
function made(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function textWidth(text, size = 12) {
  pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

/** Text cut to a width in pixels. */
function fitted(text, width) {
  if (textWidth(text) <= width) return text;
  let kept = [...text];
  const cut = () => kept.slice(0, -1 - Math.floor(kept.length / 20)); // in few steps, however long it is
  while (kept.length > 1 && textWidth(`${kept.join("")}…`) > width) kept = cut();
  return `${kept.join("").trimEnd()}…`;
}

function emptyDrawing(width, height) {
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
}

function drawNothing(width, anyHidden) {
  const svg = emptyDrawing(width, NOTHING_HEIGHT);
  const text = anyHidden ? "nothing to draw: its arms are hidden" : "nothing to draw";
  svg.append(drawn("text", { class: "nothing", x: width / 2, y: NOTHING_HEIGHT / 2, "text-anchor": "middle" }, text));
  return svg;
}

/** Ticks and their numbers below, or, with `grid`, lines across. */
function drawAxisX(svg, ticks, scale, { top, bottom, grid }) {
  for (const { value, text } of ticks) {
    const x = scale(value).toFixed(1);
    const [name, y1] = grid ? ["grid", top] : ["tick", bottom];
    svg.append(drawn("line", { class: name, x1: x, x2: x, y1, y2: bottom + TICK_LENGTH }));
    svg.append(drawn("text", { class: "number", x, y: bottom + 18, "text-anchor": "middle" }, text));
  }
}

function drawAxisY(svg, ticks, scale, { left, right }) {
  for (const { value, text } of ticks) {
    const y = scale(value).toFixed(1);
    svg.append(drawn("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    svg.append(drawn("text", { class: "number", x: left - 8, y, dy: "0.32em", "text-anchor": "end" }, text));
  }
}

/** The note at the cursor: one for the page, and what it says aloud when it is moved with keys. */
const tip = {
  box: made("div", "tip"),
  voice: made("div", "unseen"),
  owner: null,

  start() {
    this.box.hidden = true;
    this.voice.setAttribute("aria-live", "polite");
    document.body.append(this.box, this.voice);
  },

  /** Next to (x, y) of the window, on the side where there is room. */
  show(owner, x, y, heading, rows, more) {
    if (this.owner !== owner) this.owner?.leave();
    this.owner = owner;
    const table = made("table");
    for (const row of rows) table.append(this.row(row));
    this.box.replaceChildren(made("strong", "", heading), table);
    if (more > 0) this.box.append(made("small", "", `and ${more} more`));
    this.box.hidden = false;
    const room = document.documentElement.clientWidth;
    const { width } = this.box.getBoundingClientRect();
    const left = x + 14 + width < room ? x + 14 : x - 14 - width;
    this.box.style.left = `${Math.max(4, Math.min(left, room - width - 4)) + scrollX}px`;
    this.box.style.top = `${y + scrollY}px`;
  },

  row({ ink, label, value, interval, near }) {
    const line = made("tr", near ? "near" : "");
    const name = made("td", "name");
    name.append(made("i", ink), made("bdi", "", label));
    line.append(name, made("td", "value", value), made("td", "interval", interval));
    return line;
  },

  say(text) {
    this.voice.textContent = text;
  },

  hide() {
    this.box.hidden = true;
    this.owner = null;
  },
};
