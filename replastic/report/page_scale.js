// Ranges, ticks, scales, and numbers as text. The page_*.js and page.js are one module, put together by page.py.

const MINUS = "−";
const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const PLAIN = 1e4; // below it no unit: four digits are read more easily than 1k
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function superscript(whole) {
  const digits = [...String(Math.abs(whole))].map((digit) => SUPERSCRIPTS[digit]).join("");
  return (whole < 0 ? "⁻" : "") + digits;
}

/** 1.23×10⁻⁵; plain 10⁻⁵ where the factor is 1. */
function scientific(value, digits) {
  const [factor, exponent] = Math.abs(value).toExponential(digits).split("e");
  const trimmed = String(Number(factor));
  const power = `10${superscript(Number(exponent))}`;
  return (value < 0 ? MINUS : "") + (trimmed === "1" ? power : `${trimmed}×${power}`);
}

/** A single value, with four digits. */
function shortNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return scientific(value, 3);
  const rounded = Number.isInteger(value) ? value : Number(value.toPrecision(4));
  return String(rounded).replace("-", MINUS);
}

/** A number of epochs, steps or tokens: 32.77M from a million on. */
function shortCount(value) {
  const [unit, letter] = UNITS.find(([size]) => value >= size && size >= 1e6) ?? [1, ""];
  return letter ? Number((value / unit).toPrecision(4)) + letter : shortNumber(value);
}

/** Values in a column: with the same decimals, unless their sizes differ a lot. */
function alike(values) {
  const sizes = values.filter((value) => isNumber(value) && value !== 0).map(Math.abs);
  const largest = Math.max(...sizes);
  const together = sizes.length && largest < 1e6 && largest >= 1e-2 && Math.min(...sizes) >= largest * 1e-2;
  if (!together) return shortNumber;
  const most = Math.max(0, 3 - Math.floor(Math.log10(largest)));
  const needed = Math.max(...sizes.map((size) => (size.toFixed(most).split(".")[1] ?? "").replace(/0+$/, "").length));
  return (value) => value.toFixed(needed).replace("-", MINUS);
}

/** Multiples of 1, 2 or 5 times a power of ten inside [low, high], about `count` of them; only integers if `whole`. */
function linearTicks(low, high, count, whole) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const [factor] = [[1, 1.5], [2, 3.5], [5, 7.5], [10, Infinity]].find(([, below]) => rough / power < below);
  let step = factor * power;
  if (whole) step = Math.max(1, Math.round(step));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    const value = Number((i * step).toPrecision(12)); // 0.3, not 0.30000000000000004
    ticks.push({ value, text: tickText(value, step, largest) });
  }
  return ticks;
}

/** All ticks of an axis with the same decimals and the same unit. */
function tickText(value, step, largest) {
  if (value === 0) return "0";
  const digits = Math.max(0, Math.ceil(Math.log10(Math.abs(value) / step)));
  if (largest < 1e-3 || largest >= 1e12) return scientific(value, digits);
  const [unit, letter] = UNITS.find(([size]) => largest >= Math.max(size, PLAIN)) ?? [1, ""];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return (value / unit).toFixed(decimals).replace("-", MINUS) + letter;
}

/** Powers of ten; with 2 and 5 times them where these are few; as on a linear axis where there is less than a decade. */
function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  const stride = Math.max(1, Math.ceil(decades / Math.max(1, count) - 0.2));
  const factors = decades * 3 <= count + 1 ? [1, 2, 5] : [1];
  const values = [];
  for (let i = Math.floor(Math.log10(low) / stride) * stride; i <= Math.ceil(Math.log10(high)); i += stride) {
    values.push(...factors.map((factor) => Number(`${factor}e${i}`)));
  }
  const inside = values.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
  if (inside.length < 2) return linearTicks(low, high, count, false);
  const plain = inside[0] >= 1e-3 && inside.at(-1) < 1e4;
  return inside.map((value) => ({ value, text: plain ? String(value) : scientific(value, 0) }));
}

/** As many ticks as their texts leave room for. */
function ticksThatFit(room, ticksOf) {
  let count = Math.max(1, Math.floor(room / 64));
  let ticks = ticksOf(count);
  const tooWide = () => ticks.reduce((sum, tick) => sum + textWidth(tick.text) + 18, 0) > room;
  while (count > 1 && tooWide()) ticks = ticksOf(--count);
  return ticks;
}

/** The least and the greatest of the values that the axis can have; null if there are none. */
function rangeOf(values, log) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isNumber(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** The range with a margin, and some height if all values are equal. It stays above 0 if no value is negative. */
function padded([low, high], log, share) {
  if (log) {
    const factor = low === high ? 2 : (high / low) ** share;
    return [low / factor, high * factor];
  }
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * share;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

/** From values to places between `start` and `end`. */
function makeScale([low, high], start, end, log) {
  const along = log ? Math.log : (value) => value;
  const [first, last] = [along(low), along(high)];
  return (value) => start + ((along(value) - first) / (last - first)) * (end - start);
}
