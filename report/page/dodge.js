// Move points with the same horizontal position apart, those of a series next to each other, between `left` and `right`:
// whiskers at the same place would hide each other. Points whose position is measured (`xLow` is known) are not moved.
export function dodge(points, left, right, radius) {
  const movable = points.filter((point) => point.xLow === undefined && Number.isFinite(point.px));
  const columns = Map.groupBy(movable, ({ px }) => px);
  const places = [...columns.keys()].sort((a, b) => a - b);
  const gap = places.slice(1).reduce((least, place, i) => Math.min(least, place - places[i]), right - left);
  for (const [place, column] of columns) {
    const room = Math.min(0.6 * gap, 2 * (place - left), 2 * (right - place));
    const step = Math.min(2 * radius + 3, room / column.length);
    column.sort((a, b) => a.series - b.series || a.y - b.y);
    column.forEach((point, i) => (point.px = place + (i - (column.length - 1) / 2) * step));
  }
}
