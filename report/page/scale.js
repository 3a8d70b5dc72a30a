// Axes: positions of values, ticks, and how both are drawn.
import { number } from "./words.js";

function endsOf(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

// Whether values, all above 0, span at least this ratio, so that a logarithmic axis shows more.
export function isWide(values, ratio) {
  const [low, high] = endsOf(values);
  return low > 0 && high >= ratio * low;
}

export function scaleOf(values, isLog, from, to) {
  const usable = values.filter((value) => Number.isFinite(value) && (!isLog || value > 0));
  let [low, high] = usable.length ? endsOf(usable) : isLog ? [1, 10] : [0, 1];
  const isZero = low === 0 && high === 0;
  if (isLog) {
    [low, high] = low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  } else {
    low = Math.min(0, low);
    high = high > low ? high + (high - low) * 0.06 : low + 1;
  }
  const at = isLog ? Math.log : (value) => value;
  const place = (value) => from + ((at(value) - at(low)) / (at(high) - at(low))) * (to - from);
  return { low, high, isLog, isZero, place, shows: (value) => !isLog || value > 0 };
}

// At most about `most` round values between the ends of a scale.
export function ticksOf(scale, most) {
  if (scale.isZero) return [0];
  if (scale.isLog && scale.high > 3 * scale.low) {
    for (const steps of [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let power = Math.floor(Math.log10(scale.low)); power <= Math.ceil(Math.log10(scale.high)); power += 1) {
        for (const step of steps) ticks.push(step * 10 ** power);
      }
      const inside = ticks.filter((tick) => tick >= scale.low && tick <= scale.high);
      if (inside.length <= most + 2) return inside.length > 1 ? inside : [scale.low, scale.high];
    }
  }
  const raw = (scale.high - scale.low) / most;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((candidate) => candidate >= raw);
  const ticks = [];
  for (let tick = Math.ceil(scale.low / step); tick * step <= scale.high; tick += 1) ticks.push(tick * step);
  return ticks;
}

// Draw an axis below or left of `area`, {left, right, top, bottom}, with a line over the area at each tick. Labels that
// would overlap the one before are left out.
export function drawAxis(context, ink, scale, isX, area, { label = "", ticks = null, most = isX ? Math.max(4, (area.right - area.left) / 90) : 6, text = number }) {
  context.textAlign = isX ? "center" : "right";
  context.textBaseline = isX ? "top" : "middle";
  context.lineWidth = 1;
  context.strokeStyle = ink.line;
  context.fillStyle = ink.muted;
  let free = -Infinity;
  for (const tick of ticks?.filter((value) => value >= scale.low && value <= scale.high) ?? ticksOf(scale, most)) {
    const at = scale.place(tick);
    context.beginPath();
    context.moveTo(isX ? at : area.left, isX ? area.top : at);
    context.lineTo(isX ? at : area.right, isX ? area.bottom : at);
    context.stroke();
    const words = text(tick);
    const half = context.measureText(words).width / 2;
    if (!isX) context.fillText(words, area.left - 6, at);
    else if (at - half > free) {
      context.fillText(words, at, area.bottom + 6);
      free = at + half + 4;
    }
  }
  context.fillStyle = ink.ink;
  context.textAlign = isX ? "center" : "left";
  const [x, y] = isX ? [(area.left + area.right) / 2, area.bottom + 26] : [8, area.top - 14];
  if (label) context.fillText(label, x, y, area.right - (isX ? area.left : 8));
}

// Draw values that hold until their times, as a line of steps that begins at `from`; gaps in the values are bridged.
export function drawSteps(context, across, up, times, values, from) {
  let before = null;
  context.lineWidth = 1.6;
  context.beginPath();
  times.forEach((time, i) => {
    if (!Number.isFinite(values[i])) return;
    context.lineTo(before ?? from, up.place(values[i]));
    before = across.place(time);
    context.lineTo(before, up.place(values[i]));
  });
  context.stroke();
}
