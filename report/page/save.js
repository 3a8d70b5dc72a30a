// What a reader can save as a file: tables as CSV, and the names of files.

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

// A number with a sign, or a range that begins with one.
const SIGNED = /^[+-][\d.,]+(e[+-]?\d+)?( to [+-]?[\d.,]+(e[+-]?\d+)?)?( %| \(95\s%\))?$/i;

// A table as CSV (RFC 4180): numbers without separators of thousands, and an empty field for an unknown value. A text that
// a spreadsheet would read as a formula gets an apostrophe in front.
export function csvOf(table) {
  const numeric = [...(table.tHead?.rows[0].cells ?? [])].map((heading) => heading.classList.contains("number"));
  const plain = (text, i) => {
    if (text === "–") return "";
    if (numeric[i] && /^[+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?$/i.test(text)) return text.replaceAll(",", "");
    return /^[=+\-@\t\r]/.test(text) && !SIGNED.test(text) ? `'${text}` : text;
  };
  const field = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return [...table.rows].map((row) => `${[...row.cells].map((cell, i) => field(plain(cell.textContent.trim(), i))).join(",")}\r\n`).join("");
}
