// Student's t distribution, as scipy.stats.t computes it; a test compares the two.
const TINY = 1e-300;
const MOST_STEPS = 20000;
// From here on the normal distribution with a correction is equally exact: Abramowitz and Stegun, 26.7.8.
const NEARLY_NORMAL = 1e5;
const LANCZOS = [0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7];

function logGamma(x) {
  const series = LANCZOS.slice(1).reduce((sum, c, i) => sum + c / (x + i), LANCZOS[0]);
  const t = x + 6.5;
  return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(t) - t + Math.log(series);
}

// The continued fraction of the incomplete beta function, by Lentz's method (Numerical Recipes, 6.4).
function betaFraction(a, b, x) {
  let c = 1;
  let d = 1 / (1 - ((a + b) * x) / (a + 1) || TINY);
  let h = d;
  for (let m = 1; m < MOST_STEPS; m += 1) {
    for (const step of [(m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m)), (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1))]) {
      d = 1 / (1 + step * d || TINY);
      c = 1 + step / c || TINY;
      h *= d * c;
    }
    if (Math.abs(d * c - 1) < 1e-15) break;
  }
  return h;
}

// The regularized incomplete beta function; `rest` is 1 - x, given because it may be far smaller than x.
function incompleteBeta(a, b, x, rest) {
  if (x <= 0) return 0;
  if (rest <= 0) return 1;
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(rest));
  return x < (a + 1) / (a + b + 2) ? (front * betaFraction(a, b, x)) / a : 1 - (front * betaFraction(b, a, rest)) / b;
}

// The upper tail of the standard normal distribution for z of at least 0.
function normalTail(z) {
  const x = (z * z) / 2;
  const front = Math.exp(-x) * Math.sqrt(x / Math.PI);
  if (x < 1.5) {
    let term = 2;
    let sum = 2;
    for (let n = 1; term > sum * 1e-17; n += 1) {
      term *= x / (n + 0.5);
      sum += term;
    }
    return (1 - front * sum) / 2;
  }
  let b = x + 0.5;
  let c = 1 / TINY;
  let d = 1 / b;
  let h = d;
  for (let n = 1; n < MOST_STEPS; n += 1) {
    const a = -n * (n - 0.5);
    b += 2;
    d = 1 / (a * d + b || TINY);
    c = b + a / c || TINY;
    h *= d * c;
    if (Math.abs(d * c - 1) < 1e-16) break;
  }
  return (front * h) / 2;
}

// The probability of a value above t; NaN if df is not above 0.
export function studentTail(t, df) {
  if (!(df > 0) || Number.isNaN(t)) return NaN;
  if (t < 0) return 1 - studentTail(-t, df);
  if (t === Infinity) return 0;
  if (df === Infinity) return normalTail(t);
  if (df > NEARLY_NORMAL) return normalTail((t * (1 - 1 / (4 * df))) / Math.sqrt(1 + (t * t) / (2 * df)));
  const whole = df + t * t;
  return incompleteBeta(df / 2, 0.5, df / whole, (t * t) / whole) / 2;
}

const found = new Map();

// The value below which a share p, from 0.5 to below 1, of the distribution lies.
export function studentQuantile(p, df) {
  if (!(df > 0)) return NaN;
  const key = `${p} ${df}`;
  if (!found.has(key)) {
    let low = 0;
    let high = 1;
    while (studentTail(high, df) > 1 - p && high < 1e300) high *= 2;
    for (let step = 0; step < 200 && high - low > 1e-14 * high; step += 1) {
      const middle = (low + high) / 2;
      if (studentTail(middle, df) > 1 - p) low = middle;
      else high = middle;
    }
    found.set(key, (low + high) / 2);
  }
  return found.get(key);
}
