// Numbers and times for people.

const thin = "\u202f";

// number with three digits that count.
export function num(x: number | undefined): string {
  if (x === undefined || !Number.isFinite(x)) return "–";
  const a = Math.abs(x);
  if (a === 0) return "0";
  if (a < 0.01) return "<" + thin + "0.01";
  if (a < 10) return trim(x.toFixed(2));
  if (a < 100) return trim(x.toFixed(1));
  if (a < 100_000) return group(Math.round(x));
  const units = ["", "k", "M", "G", "T"];
  let k = 0, y = x;
  while (Math.abs(y) >= 1000 && k < units.length - 1) { y /= 1000; k++; }
  return trim(y.toPrecision(3)) + thin + units[k];
}

const trim = (text: string) => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
export const group = (n: number) => String(n).replace(/\B(?=(\d{3})+$)/g, thin);

export const percent = (x: number | undefined) => x === undefined ? "–" : trim((100 * x).toFixed(1)) + thin + "%";
export const times = (x: number | undefined) => x === undefined || x === 0 ? "–" : x.toFixed(2) + thin + "×";
export const rate = (x: number | undefined) => num(x) + "/s";
export const money = (x: number | undefined, currency: string | undefined) => x === undefined ? "–" : num(x) + thin + (currency ?? "");

export function bytes(x: number | undefined): string {
  if (x === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let k = 0;
  while (x >= 1000 && k < units.length - 1) { x /= 1000; k++; }
  return trim(x.toPrecision(3).replace(/e.*/, "")) + thin + units[k];
}

// age of a time, or how long until it.
export function age(text: string | number | Date | undefined, now = Date.now()): string {
  if (text === undefined) return "–";
  const t = new Date(text).getTime();
  return Number.isFinite(t) && t > 0 ? span((now - t) / 1000) : "–";
}

export function span(seconds: number): string {
  const s = Math.abs(seconds);
  if (s < 60) return Math.floor(s) + thin + "s";
  if (s < 3600) return Math.floor(s / 60) + thin + "min";
  if (s < 48 * 3600) return Math.floor(s / 3600) + thin + "h";
  return Math.floor(s / 86400) + thin + "d";
}

// brief time in seconds, which may be far below one.
export const brief = (s: number | undefined) => s === undefined ? "–" : s < 1 ? num(1000 * s) + thin + "ms" : s < 60 ? num(s) + thin + "s" : span(s);

export function clock(text: string | number | undefined): string {
  if (text === undefined) return "–";
  const t = new Date(text);
  const two = (n: number) => String(n).padStart(2, "0");
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

// byName orders what is equal otherwise, as rows of a stream come in any order.
export const byName = (a: string, b: string) => a < b ? -1 : a > b ? 1 : 0;

// zoneName of a zone; nodes without the label are in one without a name.
export const zoneName = (name: string | undefined) => name || "(no zone)";

export const plural = (n: number, one: string, many = one + "s") => group(n) + " " + (n === 1 ? one : many);

// yaml of a JSON value, in the order that it has.
export function yaml(value: unknown, indent = ""): string {
  if (Array.isArray(value)) {
    if (value.length === 0) return " []\n";
    return "\n" + value.map((v) => {
      const text = yaml(v, indent + "  ");
      return indent + "-" + (text.startsWith("\n") ? " " + text.slice(1 + indent.length + 2) : text);
    }).join("");
  }
  if (value !== null && typeof value === "object") {
    const all = Object.entries(value);
    if (all.length === 0) return " {}\n";
    return "\n" + all.map(([k, v]) => indent + scalar(k) + ":" + yaml(v, v !== null && typeof v === "object" ? indent + (Array.isArray(v) ? "" : "  ") : indent)).join("");
  }
  return " " + scalar(value) + "\n";
}

const plain = /^[A-Za-z_/][\w ./@+-]*$/;
const words = /^(true|false|null|yes|no|on|off|y|n|~)$/i;

function scalar(v: unknown): string {
  if (typeof v !== "string") return String(v);
  return plain.test(v) && !words.test(v) && !v.endsWith(" ") ? v : JSON.stringify(v);
}

// csv of rows. A text that a spreadsheet would take for a formula is marked as text.
export function csv(rows: (string | number | undefined)[][]): string {
  return rows.map((row) => row.map((v) => {
    let text = v === undefined ? "" : String(v);
    if (typeof v === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }).join(",")).join("\r\n") + "\r\n";
}
