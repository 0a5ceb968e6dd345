// Chapters: which arms are shown, and redrawing what that changes.

const FRAME = 12; // milliseconds of drawing at a time, so that a page with many figures stays responsive
const stale = new Set();

function drawLater(drawings) {
  if (!stale.size) requestAnimationFrame(drawSome);
  for (const drawing of drawings) stale.add(drawing);
}

/** Draws what is visible first, and the rest when there is time. */
function drawSome() {
  const until = performance.now() + FRAME;
  const far = new Map([...stale].map((drawing) => [drawing, farFromView(drawing.plot)]));
  for (const [drawing, distance] of [...far].sort((a, b) => a[1] - b[1])) {
    stale.delete(drawing);
    drawing.draw();
    if (distance > 0 && performance.now() > until) break; // after one: there must be an end to it
  }
  if (stale.size) requestAnimationFrame(drawSome);
}

function drawAllNow() {
  for (const drawing of stale) drawing.draw();
  stale.clear();
}

function farFromView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return Math.max(0, top - innerHeight, -bottom);
}

class Chapter {
  constructor(element) {
    this.element = element;
    this.buttons = [...element.querySelectorAll("button.arm")];
    const shows = (arm) => arm < 0 || this.isOn(this.buttons[arm]);
    this.drawings = [...element.querySelectorAll("figure.chart, figure.bars")].map((figure) => {
      const data = JSON.parse(figure.querySelector("script").textContent);
      return figure.classList.contains("bars") ? new BarChart(figure, data, shows) : new Chart(figure, data, shows);
    });
    for (const button of this.buttons) this.listen(button);
    for (const button of element.querySelectorAll("[data-change]")) {
      button.addEventListener("click", () => this.change(this.buttons, button.dataset.change));
    }
    for (const table of element.querySelectorAll("table")) makeSortable(table);
    this.tell();
    this.watchSizes();
  }

  isOn(button) {
    return button.getAttribute("aria-pressed") === "true";
  }

  listen(button) {
    button.addEventListener("click", () => this.change([button], "invert"));
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && this.pick(button.dataset.arm));
    button.addEventListener("pointerleave", () => this.pick(null));
  }

  change(buttons, how) {
    const next = { all: () => true, none: () => false, invert: (button) => !this.isOn(button) }[how];
    for (const button of buttons) button.setAttribute("aria-pressed", next(button));
    this.tell();
    drawLater(this.drawings);
  }

  /** Dims rows of tables and updates the count in the legend. */
  tell() {
    const count = this.element.querySelector(".count");
    if (count) count.textContent = `${this.buttons.filter(this.isOn).length} of ${this.buttons.length}`;
    for (const row of this.element.querySelectorAll("tr[data-arm]")) {
      row.classList.toggle("dimmed", !this.isOn(this.buttons[row.dataset.arm]));
    }
  }

  /** Fades all other arms while the pointer is on the name of one. */
  pick(arm) {
    const picked = arm !== null && this.isOn(this.buttons[arm]);
    for (const part of this.element.querySelectorAll(".plot [data-arm]")) {
      part.classList.toggle("faint", picked && part.dataset.arm !== arm);
    }
  }

  watchSizes() {
    const byPlot = new Map(this.drawings.map((drawing) => [drawing.plot, drawing]));
    const widths = new Map();
    const sizes = new ResizeObserver((entries) => {
      const changed = entries.filter(({ target }) => widths.get(target) !== target.clientWidth);
      for (const { target } of changed) widths.set(target, target.clientWidth);
      drawLater(changed.map(({ target }) => byPlot.get(target)));
    });
    for (const plot of byPlot.keys()) sizes.observe(plot);
    const legend = this.element.querySelector(".legend");
    const legendHeight = () => this.element.style.setProperty("--legend", `${legend.offsetHeight}px`);
    if (legend) new ResizeObserver(legendHeight).observe(legend); // headings that are jumped to stay below it
  }
}

tip.start();
for (const element of document.querySelectorAll(".chapter")) new Chapter(element);
addEventListener("beforeprint", drawAllNow);
