// Lines in a frame, and the cursor that reads them.

const FEW_POINTS = 12; // up to this number, each gets a dot
const MOST_ROWS = 16; // of the note at the cursor
const NARROW = 640; // in narrower windows the note is below the chart, which it would cover
const MOST_NAMED = 14; // lines with their names at their ends
const NAME_WIDTH = 150; // pixels at most
const NAME_HEIGHT = 14;
const REACH = 8; // pixels between the cursor and a point that it still reads

class Chart {
  constructor(figure, data, shows) {
    this.plot = figure.querySelector(".plot");
    this.data = data;
    this.shows = shows; // whether an arm is shown, by its number
    this.frame = 0;
    this.points = []; // as they are drawn, line by line
    this.stops = []; // where the cursor can be: x and its place
    this.slider = figure.querySelector("input[type=range]");
    this.slider?.addEventListener("input", () => {
      this.frame = Number(this.slider.value);
      const label = data.labels[this.frame];
      figure.querySelector("output").textContent = label;
      this.slider.setAttribute("aria-valuetext", label);
      this.draw();
    });
    this.slider?.setAttribute("aria-valuetext", data.labels[0]);
    this.listen();
  }

  visible(frame) {
    return this.data.frames[frame].filter((line) => this.shows(line.arm));
  }

  draw() {
    this.leave();
    const width = Math.round(this.plot.clientWidth);
    if (!width) return;
    const height = Math.round(Math.max(230, Math.min(400, width * (width > 640 ? 0.4 : 0.66))));
    this.points = [];
    this.stops = [];
    if (!this.layOut(width, height)) {
      const anyHidden = this.data.frames.flat().some((line) => !this.shows(line.arm));
      this.plot.replaceChildren(drawNothing(width, anyHidden));
      return;
    }
    const svg = emptyDrawing(width, height);
    this.plot.replaceChildren(svg);
    this.drawAxes(svg);
    const [bands, curves] = [drawn("g", {}), drawn("g", {})];
    svg.append(bands, curves);
    for (const line of this.visible(this.frame)) this.drawLine(line, bands, curves);
    this.drawNames(curves);
    this.cursor = drawn("g", { class: "cursor" });
    svg.append(this.cursor);
    const stops = new Map(this.points.flat().map((point) => [point.x, point.px]));
    this.stops = [...stops].sort((a, b) => a[0] - b[0]);
  }

  /** Scales and ticks of all frames together, so that frames can be compared; false if there is nothing. */
  layOut(width, height) {
    const { data } = this;
    const xs = [];
    const ys = [];
    for (const frame of data.frames.keys()) {
      for (const line of this.visible(frame)) {
        const grid = data.grids[line.x];
        line.y.forEach((y, i) => {
          if (!this.fits(grid[i], y)) return;
          xs.push(grid[i]);
          ys.push(y, line.low[i], line.high[i]);
        });
      }
    }
    let [rangeX, rangeY] = [rangeOf(xs, data.xLog), rangeOf(ys, data.yLog)];
    if (!rangeX || !rangeY) return false;
    rangeX = padded(rangeX, data.xLog, 0.01);
    rangeY = padded(rangeY, data.yLog, 0.06);
    const [top, bottom] = [26, height - 42];
    const ticks = (range, log, count, whole) => (log ? logTicks(...range, count) : linearTicks(...range, count, whole));
    const ticksY = ticks(rangeY, data.yLog, Math.floor((bottom - top) / 42), false);
    const left = Math.ceil(Math.max(20, ...ticksY.map((tick) => textWidth(tick.text)))) + 10;
    const right = width - 14 - this.roomForNames(width);
    const ticksX = ticksThatFit(right - left, (count) => ticks(rangeX, data.xLog, count, data.whole));
    const [x, y] = [makeScale(rangeX, left, right, data.xLog), makeScale(rangeY, bottom, top, data.yLog)];
    Object.assign(this, { x, y, rangeX, ticksX, ticksY, top, bottom, left, right, width, height });
    return true;
  }

  /** The width of the names at the ends of lines; 0 in a narrow window, where the legend has them. */
  roomForNames(width) {
    const names = this.visible(this.frame).map((line) => line.label);
    const named = width >= NARROW && this.data.frames.length === 1 && names.length > 1 && names.length <= MOST_NAMED;
    this.names = named ? new Map(names.map((name) => [name, fitted(name, NAME_WIDTH)])) : null;
    return named ? Math.ceil(Math.max(...[...this.names.values()].map((name) => textWidth(name)))) + 10 : 0;
  }

  /** Each name at the height of its line's last point, or as near to it as the others allow. */
  drawNames(curves) {
    if (!this.names) return;
    const ends = this.points.filter((points) => points.length).map((points) => points.at(-1)).sort((a, b) => a.py - b.py);
    const heights = apart(ends.map((end) => end.py), NAME_HEIGHT, this.top, this.bottom);
    for (const [i, { line, px, py }] of ends.entries()) {
      const at = { x: this.right + 10, y: heights[i].toFixed(1), dy: "0.32em" };
      const { label, ink, arm } = line;
      curves.append(drawn("text", { class: `line-name ${ink}`, "data-arm": arm, ...at }, this.names.get(label)));
      if (Math.abs(heights[i] - py) < 2 && this.right - px < 2) continue;
      const leader = { x1: px, y1: py, x2: this.right + 7, y2: heights[i] };
      curves.append(drawn("line", { class: `leader ${ink}`, "data-arm": arm, ...leader }));
    }
  }

  fits(x, y) {
    return isNumber(x) && isNumber(y) && !(this.data.xLog && x <= 0) && !(this.data.yLog && y <= 0);
  }

  drawAxes(svg) {
    const { data, left, right, top, bottom } = this;
    for (const mark of data.marks) {
      if (!isNumber(mark) || mark < this.rangeX[0] || mark > this.rangeX[1]) continue;
      svg.append(drawn("line", { class: "mark", x1: this.x(mark), x2: this.x(mark), y1: top, y2: bottom }));
    }
    drawAxisY(svg, this.ticksY, this.y, this);
    drawAxisX(svg, this.ticksX, this.x, this);
    svg.append(drawn("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    const said = (label, log) => fitted(label + (log ? " (log scale)" : ""), this.width - 8);
    svg.append(drawn("text", { class: "label", x: 0, y: 12 }, said(data.y, data.yLog)));
    const labelX = { class: "label", x: right, y: this.height - 5, "text-anchor": "end" };
    svg.append(drawn("text", labelX, said(data.x, data.xLog)));
  }

  drawLine(line, bands, curves) {
    const grid = this.data.grids[line.x];
    const pieces = [[]]; // between gaps
    line.y.forEach((y, i) => {
      if (!this.fits(grid[i], y)) {
        if (pieces.at(-1).length) pieces.push([]);
        return;
      }
      pieces.at(-1).push({ line, i, x: grid[i], y, px: this.x(grid[i]), py: this.y(y) });
    });
    const points = pieces.flat();
    this.points.push(points);
    for (const piece of pieces) this.drawBand(line, piece, bands);
    const path = pieces.map((piece) => piece.map(place).join("L")).filter(Boolean).map((piece) => `M${piece}`).join("");
    const attributes = { class: `line ${line.ink}`, d: path, "data-arm": line.arm };
    if (line.dash) attributes["stroke-dasharray"] = line.dash;
    curves.append(drawn("path", attributes));
    const dots = points.length <= FEW_POINTS ? points : pieces.filter((piece) => piece.length === 1).flat();
    for (const { px, py } of dots) {
      curves.append(drawn("circle", { class: `dot ${line.ink}`, cx: px, cy: py, r: 2.6, "data-arm": line.arm }));
    }
  }

  drawBand(line, piece, bands) {
    const inside = piece.filter(({ i }) => isNumber(line.low[i]) && isNumber(line.high[i]));
    if (inside.length < 2) {
      for (const { i, px } of inside) {
        const ends = { y1: this.edge(line.low[i]), y2: this.edge(line.high[i]), x1: px, x2: px };
        bands.append(drawn("line", { class: `whisker ${line.ink}`, "data-arm": line.arm, ...ends }));
      }
      return;
    }
    const above = inside.map(({ i, px }) => place({ px, py: this.edge(line.high[i]) }));
    const below = inside.map(({ i, px }) => place({ px, py: this.edge(line.low[i]) })).reverse();
    const d = `M${[...above, ...below].join("L")}Z`;
    bands.append(drawn("path", { class: `band ${line.ink}`, d, "data-arm": line.arm }));
  }

  /** The end of a band. On a logarithmic axis it may be at or below 0, which has no place there. */
  edge(value) {
    return this.data.yLog && value <= 0 ? this.bottom : this.y(value);
  }

  listen() {
    const { plot } = this;
    const follow = (event) => {
      if (!this.stops.length) return;
      const box = plot.getBoundingClientRect();
      const scale = this.width / box.width;
      this.read(this.nearestStop((event.clientX - box.left) * scale), (event.clientY - box.top) * scale);
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.leave());
    plot.addEventListener("blur", () => this.leave());
    plot.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const last = this.stops.length - 1;
    if (last < 0) return;
    if (event.key === "Escape") return void this.leave();
    const jump = Math.max(1, Math.round(last / 10));
    const at = this.stop ?? -1;
    const targets = {
      ArrowRight: at + 1,
      ArrowLeft: this.stop === undefined ? last : at - 1,
      PageDown: at + jump,
      PageUp: at - jump,
      Home: 0,
      End: last,
    };
    if (!(event.key in targets)) return;
    event.preventDefault();
    this.read(Math.max(0, Math.min(last, targets[event.key])));
    tip.say(this.said);
  }

  nearestStop(px) {
    return closest(this.stops, ([, place]) => Math.abs(place - px));
  }

  /** Moves the cursor to a stop and shows the value of every line there. `py`: where the pointer is, if there is one. */
  read(stop, py) {
    const [x, px] = this.stops[stop];
    const found = this.points.map((points) => this.pointAt(points, x, px)).filter(Boolean);
    found.sort((a, b) => b.y - a.y);
    const near = py === undefined ? -1 : closest(found, (point) => Math.abs(point.py - py));
    const from = Math.max(0, Math.min(near - MOST_ROWS / 2, found.length - MOST_ROWS));
    const seeds = new Set(found.map(seedsOf));
    const same = seeds.size === 1 ? [...seeds][0] : "";
    const write = alike(found.flatMap(({ line, i, y }) => [y, line.low[i], line.high[i]]));
    const rows = found.map((point, i) => rowOf(point, write, i === near, same));
    const where = this.data.whole ? shortCount(x) : shortNumber(x);
    const heading = [`${this.data.x} ${where}`, same].filter(Boolean).join(" · ");
    const box = this.plot.getBoundingClientRect();
    const scale = box.width / this.width;
    const listed = rows.slice(from, from + MOST_ROWS);
    const top = innerWidth < NARROW ? box.bottom : box.top + this.top * scale;
    tip.show(this, box.left + px * scale, top, heading, listed, rows.length - listed.length);
    this.said = `${heading}: ${rows.map((row) => `${row.label} ${row.value} ${row.interval}`.trim()).join("; ")}`;
    this.stop = stop;
    const line = drawn("line", { x1: px, x2: px, y1: this.top, y2: this.bottom });
    const dots = found.map((point) => drawn("circle", { class: point.line.ink, cx: point.px, cy: point.py, r: 3.6 }));
    this.cursor.replaceChildren(line, ...dots);
  }

  /** A line's point at x, or the nearest to it within reach: lines need not share their x. */
  pointAt(points, x, px) {
    const point = points[closest(points, (one) => Math.abs(one.px - px))];
    return point && (point.x === x || Math.abs(point.px - px) <= REACH) ? point : null;
  }

  leave() {
    this.stop = undefined;
    this.cursor?.replaceChildren();
    if (tip.owner === this) tip.hide();
  }
}

const place = ({ px, py }) => `${px.toFixed(1)},${py.toFixed(1)}`;

/** Ascending places, at least a gap apart and within limits if they fit, each near to the one that it wants. */
function apart(wanted, gap, low, high) {
  const places = [];
  for (const place of wanted) places.push(Math.max(place, places.length ? places.at(-1) + gap : low));
  let top = Math.max(high, low + gap * (places.length - 1));
  for (let i = places.length - 1; i >= 0; i--) {
    places[i] = Math.min(places[i], top);
    top = places[i] - gap;
  }
  return places;
}

/** The index of the nearest element. */
function closest(list, far) {
  let best = 0;
  for (let i = 1; i < list.length; i++) if (far(list[i]) < far(list[best])) best = i;
  return best;
}

function seedsOf({ line, i }) {
  const n = Array.isArray(line.n) ? line.n[i] : line.n;
  return n === undefined ? "" : `n = ${n}`;
}

function rowOf(point, write, near, same) {
  const { line, i, y } = point;
  const [low, high] = [line.low[i], line.high[i]];
  const between = isNumber(low) && isNumber(high) ? `${write(low)} to ${write(high)}` : "";
  const interval = [between, same ? "" : seedsOf(point)].filter(Boolean).join(", ");
  return { ink: line.ink, label: line.label, value: write(y), interval, near };
}
