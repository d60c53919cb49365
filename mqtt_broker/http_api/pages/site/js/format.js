// Numbers, sizes, times and payloads as people read them.

const NUMBER = new Intl.NumberFormat("en-US");
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

/** A count with its thousands: 15,000. */
export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return NUMBER.format(Math.round(value));
}

/** A short number for tiles and axes: 1200 as 1.2k. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [most, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= most) return `${three(value / most)}${unit}`;
  }
  return three(value);
}

function three(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(Number(value.toFixed(digits)));
}

/** A rate: 1.2k/s. */
export function rate(value) {
  return value === null || value === undefined ? "–" : `${short(value)}/s`;
}

/** A size: 12.4 MB, in powers of 1024 as the settings have them. */
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? NUMBER.format(size) : three(size)} ${UNITS[unit]}`;
}

/** A duration of seconds: 12 ms, 4.2 s, 3 min 4 s, 2 h 5 min, 12 d 3 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${three(seconds * 1000)} ms`;
  if (seconds < 60) return `${three(seconds)} s`;
  const whole = Math.round(seconds);
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [large, name, small, rest] of steps) {
    if (whole >= large) {
      const left = Math.floor((whole % large) / small);
      return `${Math.floor(whole / large)} ${name}${left ? ` ${left} ${rest}` : ""}`;
    }
  }
  return `${whole} s`;
}

/** A number of milliseconds: 0.4 ms, 12 ms, 1.2 s. */
export function milliseconds(value) {
  return value === null || value === undefined ? "–" : value === 0 ? "0 ms" : duration(value / 1000);
}

/** A share: 0.123 as 12.3 %. */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${three(value * 100)} %`;
}

const two = (value) => String(value).padStart(2, "0");

/** The time of day of Unix seconds, in the browser's zone: 12:00:01. */
export function clock(at, { millis = false } = {}) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return millis ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** Date and time of Unix seconds: the time alone if it is today. */
export function moment(at, now = Date.now() / 1000, options = {}) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return "–";
  if (date.toDateString() === new Date(now * 1000).toDateString()) return clock(at, options);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at, options)}`;
}

/** How long ago: 4 s ago. */
export function ago(at, now = Date.now() / 1000) {
  if (at === null || at === undefined) return "–";
  const seconds = now - at;
  return seconds < 1 ? "now" : `${duration(seconds < 60 ? Math.round(seconds) : seconds)} ago`;
}

/** A protocol level as people call it: 4 is MQTT 3.1.1. */
export function mqttVersion(level) {
  return { 3: "3.1", 4: "3.1.1", 5: "5" }[level] ?? "–";
}

/** Words of a name: queued_bytes as "queued bytes". */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

const NAMES = { qos: "QoS", tls: "TLS", cpu: "CPU", id: "Id", dup: "Repeated", ms: "ms" };

/** A name of the API as a label: `queued_bytes` is "Queued", its value says that it is a size. */
export function label(name) {
  const plain = /_per_s$/.test(name) ? name : String(name).replace(/_(s|at|bytes|ms)$/, "");
  const text = words(plain).split(" ").map((one) => NAMES[one] ?? one).join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const UTF8 = new TextDecoder("utf-8", { fatal: true });

/** Payload bytes as text where they are text, else in hexadecimal. */
export function payloadText(raw, most = 4096) {
  const part = raw.subarray(0, most);
  const more = raw.length > most ? ` … ${bytes(raw.length)} in all` : "";
  try {
    const text = UTF8.decode(raw.length > most ? whole(part) : part);
    if (!/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text)) return text + more;
  } catch {
    // Not UTF-8.
  }
  return hex(part) + more;
}

/** Leave out a character that is cut at the end. */
function whole(raw) {
  let end = raw.length;
  while (end > 0 && (raw[end - 1] & 0xc0) === 0x80) end -= 1;
  return end > 0 && raw[end - 1] >= 0xc0 ? raw.subarray(0, end - 1) : raw;
}

// Characters that nobody sees, or that change the order of those around them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** A name of a client with its unseen characters written out: U+202E as \u202e. */
export function visible(text) {
  return String(text).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Bytes in hexadecimal. */
export function hex(raw) {
  return Array.from(raw, (one) => one.toString(16).padStart(2, "0")).join(" ");
}

/** The bytes of base64. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}

/** Bytes as base64. */
export function toBase64(raw) {
  let text = "";
  for (const one of raw) text += String.fromCharCode(one);
  return btoa(text);
}

/** JSON indented, other text as it is. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Seconds of a text such as 10m, 2h, 45s or 1d; null if it is none. */
export function seconds(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?\s*$/.exec(text);
  if (!found) return null;
  return Number(found[1]) * { s: 1, m: 60, min: 60, h: 3600, d: 86400 }[found[2] ?? "s"];
}
