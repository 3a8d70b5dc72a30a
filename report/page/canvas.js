// Colours and marks for drawing on a canvas.

export const deviceColour = (place) => `d${place % 8}`;

// The page's colours by their names in its styles, light or dark.
export function inkOf() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "line", "paper", ...[..."01234567"].map(deviceColour)];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// Five shapes, so that series can be told apart without colours. Those after the first five repeat.
const CORNERS = [
  [[0, -1.15], [1.1, 0.9], [-1.1, 0.9]],
  [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  [[0, 1.15], [1.1, -0.9], [-1.1, -0.9]],
];

export function mark(context, shape, x, y, r) {
  context.beginPath();
  if (shape % 5 === 0) context.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape % 5 === 1) context.rect(x - r * 0.9, y - r * 0.9, 1.8 * r, 1.8 * r);
  else {
    for (const [dx, dy] of CORNERS[(shape % 5) - 2]) context.lineTo(x + dx * r, y + dy * r);
    context.closePath();
  }
}
