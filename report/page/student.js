// Student's t distribution, as scipy.stats.t computes it; a test compares the two.

// Beyond this the distribution is the normal one to all digits.
const MOST_DF = 1e14;

// Points and weights of the double-exponential rule for integrals from 0 to infinity.
const RULE = Array.from({ length: 81 }, (_, i) => {
  const x = (i - 40) / 12;
  const point = Math.exp((Math.PI / 2) * Math.sinh(x));
  return [point, (point * (Math.PI / 2) * Math.cosh(x)) / 12];
});

function powerOfCosh(w, df) {
  return Math.exp((-df / 2) * Math.log1p(Math.sinh(w) ** 2));
}

// The integral of cosh(w) ** -df from `from` to infinity.
function integral(from, df) {
  const width = 1 / (df * Math.tanh(from) + Math.min(df, Math.sqrt(df)));
  return width * RULE.reduce((sum, [point, weight]) => sum + weight * powerOfCosh(from + width * point, df), 0);
}

// With t = sqrt(df) sinh(w) the density of w is proportional to cosh(w) ** -df.
function placeOf(t, df) {
  return Math.asinh(t / Math.sqrt(df));
}

// The probability of a value above t; NaN if df is not above 0.
export function studentTail(t, df) {
  if (!(df > 0) || Number.isNaN(t)) return NaN;
  if (t < 0) return 1 - studentTail(-t, df);
  const most = Math.min(df, MOST_DF);
  return integral(placeOf(t, most), most) / (2 * integral(0, most));
}

const found = new Map();

// The value below which a share p, from 0.5 to below 1, of the distribution lies.
export function studentQuantile(p, df) {
  if (!(df > 0)) return NaN;
  const key = `${p} ${df}`;
  if (!found.has(key)) {
    // The tail is convex, so Newton's method from 0 rises to the quantile.
    const most = Math.min(df, MOST_DF);
    const wanted = (1 - p) * 2 * integral(0, most);
    let [t, step] = [0, 1];
    while (step > 1e-9 * t) {
      const w = placeOf(t, most);
      step = ((integral(w, most) - wanted) / powerOfCosh(w, most + 1)) * Math.sqrt(most);
      t += step;
    }
    found.set(key, t);
  }
  return found.get(key);
}
