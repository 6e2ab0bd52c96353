// Numbers and scales: how values are written, where ticks stand, how a curve is smoothed.

const fill = (text, values) => text.replace(/{(\w+)}/g, (_, key) => values[key]);

/** A value as people read it: five digits that count. */
function shown(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return size >= 1e4 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(5)));
}

/** A value of a curve: what was not finite is null there. */
const orNaN = (value) => (value === null ? "NaN" : shown(value));

/** A label of an axis, with as many digits as tell it from its neighbour `step` away. */
function tickLabel(value, step) {
  const size = Math.abs(value);
  if (size < step * 1e-6) return "0";
  if (size >= 1e9 || (size < 1e-2 && step < 1e-3)) {
    const digits = Math.max(0, Math.floor(Math.log10(size) + 1e-9) - Math.floor(Math.log10(step) + 1e-9));
    return value.toExponential(Math.min(4, digits)).replace(/\.0+e/, "e").replace("e+", "e");
  }
  for (const [unit, letter] of [[1e6, "M"], [1e3, "k"]]) {
    if (size >= unit && (unit === 1e6 || size >= 1e4 || step >= 1e3)) return trimmed(value / unit, step / unit) + letter;
  }
  return trimmed(value, step);
}

const trimmed = (value, step) =>
  String(Number(value.toFixed(Math.max(0, Math.min(8, 1 - Math.floor(Math.log10(step) + 1e-9))))));

/** Round numbers between low and high, about `count` of them. */
function ticks(low, high, count, least = 0) {
  const span = high - low;
  // Numbers that differ in their last digits only cannot be told apart by ticks.
  if (!(span > Math.abs(high) * 1e-12) || !isFinite(span)) return { at: [low], step: Math.abs(low) || 1 };
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999));
  const at = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) at.push(index * step);
  return { at, step };
}

/** Seconds at round times. */
function timeTicks(low, high, count) {
  const units = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const rough = (high - low) / count;
  if (rough < 1 || rough > 86400) return ticks(low, high, count);
  const step = units.find((unit) => unit >= rough) || 86400;
  const at = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high; index++) at.push(index * step);
  return { at, step };
}

/** Powers of ten, and what lies between them where there are few. */
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first) / 6));
  const factors = last - first <= 1 ? [1, 1.5, 2, 3, 5, 7] : last - first <= 3 ? [1, 2, 5] : [1];
  const at = [];
  for (let power = first; power <= last; power += stride) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) at.push(value);
    }
  }
  return at.length > 1 ? { at, step: 0 } : ticks(low, high, 4);
}

/** Short times for an axis, long ones for the cursor. */
function timeLabel(seconds, step) {
  if (step < 1) return `${trimmed(seconds, step)}s`;
  if (step < 60 && seconds < 60) return `${Math.round(seconds)}s`;
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60, rest = Math.round(seconds % 60);
  if (step >= 86400 || hours >= 240) return `${Number((seconds / 86400).toFixed(1))}d`;
  if (hours === 0) return step < 60 ? `${minutes}:${String(rest).padStart(2, "0")}` : `${minutes}m`;
  return minutes || step < 3600 ? `${hours}h${String(minutes).padStart(2, "0")}` : `${hours}h`;
}

function duration(seconds, text) {
  if (seconds < 60) return fill(text.short_seconds, { seconds: Number(seconds.toPrecision(3)) });
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (hours === 0) return fill(text.minutes_seconds, { minutes, seconds: whole % 60 });
  if (hours < 48) return fill(text.hours_minutes, { hours, minutes });
  return fill(text.days_hours, { days: Math.floor(hours / 24), hours: hours % 24 });
}

/** A mean under a bell over neighbours, as wide as `amount` in [0, 1] says; gaps stay gaps. It lags behind nothing. */
function smoothed(values, amount) {
  const width = Math.max(0.5, amount ** 1.5 * values.length * 0.06), reach = Math.ceil(width * 2.5);
  const weights = Array.from({ length: reach + 1 }, (_, at) => Math.exp(-0.5 * (at / width) ** 2));
  return values.map((value, at) => {
    if (value === null) return null;
    let sum = 0, weight = 0;
    for (let other = Math.max(0, at - reach); other <= Math.min(values.length - 1, at + reach); other++) {
      if (values[other] === null) continue;
      const share = weights[Math.abs(other - at)];
      sum += share * values[other];
      weight += share;
    }
    return sum / weight;
  });
}

/** The place of `x` in rising numbers: the index of the last that is not above it. */
function placeOf(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** From one rising list to another, straight between its points. */
function between(from, to, x) {
  if (!from.length) return 0;
  const at = placeOf(from, x);
  if (x <= from[0] || at + 1 >= from.length) return to[x <= from[0] ? 0 : at];
  return to[at] + ((to[at + 1] - to[at]) * (x - from[at])) / (from[at + 1] - from[at] || 1);
}
