// What a reader can save as a file: tables as CSV, Markdown and LaTeX, and the names of files.

// A name for a file: `slug("Study demo: KV blocks")` is "study-demo-kv-blocks".
export function slug(...words) {
  return words.join(" ").toLowerCase().replace(/[^a-z0-9._]+/g, "-").replace(/^[-.]+|-+$/g, "").slice(0, 120) || "kvsweep";
}

export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// The texts of a table: a list of rows, the headings first.
export function textsOf(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
}

export function numericOf(table) {
  return [...(table.tHead?.rows[0].cells ?? [])].map((heading) => heading.classList.contains("number"));
}

// A number with a sign, or a range that begins with one.
const SIGNED = /^[+-][\d.,]+(e[+-]?\d+)?( to [+-]?[\d.,]+(e[+-]?\d+)?)?( %| \(95\s%\))?$/i;

// CSV as in RFC 4180: numbers without separators of thousands, and an empty field for an unknown value. A text that a
// spreadsheet would read as a formula gets an apostrophe in front.
export function csvOf(texts, numeric = []) {
  const plain = (text, i) => {
    if (text === "–") return "";
    if (numeric[i] && /^[+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?$/i.test(text)) return text.replaceAll(",", "");
    return /^[=+\-@\t\r]/.test(text) && !SIGNED.test(text) ? `'${text}` : text;
  };
  const field = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return texts.map((row) => `${row.map((text, i) => field(plain(text, i))).join(",")}\r\n`).join("");
}

export function markdownOf(texts, numeric = []) {
  const escaped = (text) => text.replace(/[\\|`*_[\]]/g, "\\$&").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replace(/\s*\n\s*/g, " ");
  const line = (parts) => `| ${parts.join(" | ")} |\n`;
  const [headings, ...rows] = texts.map((row) => row.map(escaped));
  return [line(headings), line(headings.map((_, i) => (numeric[i] ? "---:" : "---"))), ...rows.map(line)].join("");
}

// A table for LaTeX, with the rules of the package booktabs.
export function latexOf(texts, numeric = []) {
  const named = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "★": "$\\star$", "☆": "$\\circ$" };
  const escaped = (text) => text.replace(/[\\~^&%$#_{}★☆]/g, (sign) => named[sign] ?? `\\${sign}`).replace(/\s*\n\s*/g, " ");
  const line = (parts) => `${parts.join(" & ")} \\\\\n`;
  const [headings, ...rows] = texts.map((row) => row.map(escaped));
  const columns = headings.map((_, i) => (numeric[i] ? "r" : "l")).join("");
  return `\\begin{tabular}{${columns}}\n\\toprule\n${line(headings)}\\midrule\n${rows.map(line).join("")}\\bottomrule\n\\end{tabular}\n`;
}
