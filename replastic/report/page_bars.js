// One bar for each arm, with its range as a whisker, its value and the number of seeds as text.

const ROW = 28;

class BarChart {
  constructor(figure, data, shows) {
    this.plot = figure.querySelector(".plot");
    this.data = data;
    this.shows = shows;
  }

  draw() {
    const width = Math.round(this.plot.clientWidth);
    if (!width) return;
    const bars = this.data.bars.filter((bar) => this.shows(bar.arm) && isNumber(bar.value));
    const height = bars.length * ROW + 50;
    if (!bars.length) {
      this.plot.replaceChildren(drawNothing(width, this.data.bars.some((bar) => !this.shows(bar.arm))));
      return;
    }
    const svg = emptyDrawing(width, height);
    this.plot.replaceChildren(svg);
    this.write = alike(bars.map((bar) => bar.value));
    const [least, most] = rangeOf(bars.flatMap(({ value, low, high }) => [0, value, low, high]), false);
    const reach = (most - least || 1) * 0.02;
    const range = [least < 0 ? least - reach : 0, most > 0 || least === 0 ? most + reach : 0];
    const widest = Math.max(...bars.map((bar) => textWidth(bar.label)));
    const left = Math.ceil(Math.min(widest, width * 0.34)) + 10;
    const right = width - Math.ceil(Math.max(...bars.map((bar) => textWidth(this.words(bar))))) - 14;
    const area = { top: 2, bottom: bars.length * ROW + 4, left, right };
    const scale = makeScale(range, left, right, false);
    const ticks = ticksThatFit(right - left, (count) => linearTicks(...range, count, false));
    drawAxisX(svg, ticks, scale, { ...area, grid: true });
    bars.forEach((bar, row) => svg.append(this.drawBar(bar, area.top + (row + 0.5) * ROW, scale, area, width)));
    svg.append(drawn("line", { class: "axis", x1: scale(0), x2: scale(0), y1: area.top, y2: area.bottom }));
    const label = { class: "label", x: right, y: height - 6, "text-anchor": "end" };
    svg.append(drawn("text", label, fitted(this.data.label, right)));
  }

  drawBar(bar, middle, scale, { left }, width) {
    const group = drawn("g", { class: bar.ink, "data-arm": bar.arm });
    const between = isNumber(bar.low) && isNumber(bar.high);
    const hint = between ? `${this.words(bar)}, ${shortNumber(bar.low)} to ${shortNumber(bar.high)}` : this.words(bar);
    group.append(drawn("title", {}, `${bar.label}: ${hint}`));
    const name = { class: "name", x: left - 10, y: middle, dy: "0.32em", "text-anchor": "end" };
    group.append(drawn("text", name, fitted(bar.label, left - 10)));
    const [from, to] = [scale(0), scale(bar.value)];
    group.append(
      drawn("rect", { class: "bar", x: Math.min(from, to), y: middle - 8, width: Math.abs(to - from), height: 16, rx: 2 }),
    );
    if (between && bar.low < bar.high) {
      const [low, high] = [scale(bar.low), scale(bar.high)];
      const d = `M${low},${middle}H${high}M${low},${middle - 4}v8M${high},${middle - 4}v8`;
      group.append(drawn("path", { class: "range", d }));
    }
    const value = { class: "name", x: width - 2, y: middle, dy: "0.32em", "text-anchor": "end" };
    group.append(drawn("text", value, this.words(bar)));
    return group;
  }

  words({ value, n }) {
    return `${this.write(value)} (n = ${n})`;
  }
}
