// Drawings as SVG, with those methods of a canvas context that the charts use.

const NS = "http://www.w3.org/2000/svg";
const ANCHORS = { left: "start", center: "middle", right: "end" };
// Shifts of the base line as shares of the letter height: not every program that reads SVG knows `dominant-baseline`.
const SHIFTS = { top: 0.8, middle: 0.35, bottom: -0.2 };

function xml(text) {
  return String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;").toWellFormed();
}

function short(value) {
  return String(Number(value.toFixed(2)));
}

export class SvgContext {
  constructor() {
    this.parts = [];
    this.path = "";
    this.measuring = document.createElement("canvas").getContext("2d");
    Object.assign(this, { fillStyle: "#000000", strokeStyle: "#000000", lineWidth: 1, globalAlpha: 1, textAlign: "left", textBaseline: "alphabetic", font: "10px sans-serif" });
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${short(x)} ${short(y)}`;
  }

  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${short(x)} ${short(y)}`;
  }

  closePath() {
    this.path += "Z";
  }

  rect(x, y, width, height) {
    this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`;
  }

  // Charts draw whole circles only.
  arc(x, y, r) {
    this.path += `M${short(x - r)} ${short(y)}a${short(r)} ${short(r)} 0 1 0 ${short(2 * r)} 0a${short(r)} ${short(r)} 0 1 0 ${short(-2 * r)} 0Z`;
  }

  add(tag, properties, text = null) {
    const alpha = this.globalAlpha < 1 ? { opacity: this.globalAlpha } : {};
    const written = Object.entries({ ...properties, ...alpha }).map(([name, value]) => ` ${name}="${xml(value)}"`).join("");
    this.parts.push(text === null ? `<${tag}${written}/>` : `<${tag}${written}>${xml(text)}</${tag}>`);
  }

  fill() {
    if (this.path) this.add("path", { d: this.path, fill: this.fillStyle });
  }

  stroke() {
    if (this.path) this.add("path", { d: this.path, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  fillRect(x, y, width, height) {
    this.add("rect", { x: short(x), y: short(y), width: short(width), height: short(height), fill: this.fillStyle });
  }

  strokeRect(x, y, width, height) {
    this.add("rect", { x: short(x), y: short(y), width: short(width), height: short(height), fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  measureText(text) {
    this.measuring.font = this.font;
    return this.measuring.measureText(text);
  }

  fillText(text, x, y, most = Infinity) {
    const [, weight, size] = this.font.match(/^(?:(\S+) )?([\d.]+)px/);
    const squeezed = this.measureText(text).width > most ? { textLength: short(most), lengthAdjust: "spacingAndGlyphs" } : {};
    this.add("text", {
      x: short(x), y: short(y + (SHIFTS[this.textBaseline] ?? 0) * Number(size)), fill: this.fillStyle,
      "font-family": "DejaVu Sans, Arial, sans-serif", "font-size": size, ...(weight ? { "font-weight": weight } : {}),
      "text-anchor": ANCHORS[this.textAlign] ?? "start", ...squeezed,
    }, text);
  }

  // The whole drawing as the text of a file.
  text(width, height, title) {
    const size = `width="${short(width)}" height="${short(height)}" viewBox="0 0 ${short(width)} ${short(height)}"`;
    return `<svg xmlns="${NS}" ${size}><title>${xml(title)}</title>${this.parts.join("")}</svg>\n`;
  }
}
