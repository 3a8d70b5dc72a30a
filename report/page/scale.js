// Axes: positions of values, and ticks.

export function scaleOf(values, isLog, from, to) {
  const usable = values.filter((value) => Number.isFinite(value) && (!isLog || value > 0));
  let low = Infinity;
  let high = -Infinity;
  for (const value of usable) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!usable.length) [low, high] = isLog ? [1, 10] : [0, 1];
  if (isLog) {
    [low, high] = low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  } else {
    low = Math.min(0, low);
    high = high > low ? high + (high - low) * 0.06 : low + 1;
  }
  const at = isLog ? Math.log : (value) => value;
  const place = (value) => from + ((at(value) - at(low)) / (at(high) - at(low))) * (to - from);
  return { low, high, isLog, place, shows: (value) => !isLog || value > 0 };
}

// At most about `most` round values between the ends of a scale.
export function ticksOf(scale, most) {
  if (scale.isLog) {
    for (const steps of [[1, 2, 5], [1, 3], [1]]) {
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
