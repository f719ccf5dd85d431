// Words and numbers of the timeline, and the few things that make a page of them.

const NEUTRAL = "#8A8A8A"; // what has no colour of its own
const NO_ROW = 65535; // no linked row

function make(tag, name, parent, text) {
  const node = document.createElement(tag);
  if (name) node.className = "gpulab-tl-" + name;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function button(parent, text, title, act, name = "button") {
  const node = make("button", name, parent, text);
  node.type = "button";
  if (title) node.title = title;
  node.addEventListener("click", act);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const unitOf = (ns) => UNITS.find(([size]) => ns >= size) || UNITS[3];
const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

// Three significant digits: "4.56 ms".
function span(ns) {
  if (ns > 0 && ns < 1) return "< 1 ns";
  const [size, unit] = unitOf(Math.max(ns, 1) * 1.0005);
  const value = ns / size;
  return `${value >= 100 || size === 1 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ${unit}`;
}

// A point in time, as finely as a window of this width needs.
function moment(ns, window) {
  const [size, unit] = unitOf(Math.max(Math.abs(ns), window, 1));
  const digits = clamp(Math.ceil(Math.log10(size / Math.max(window / 1000, 1))), 0, 9);
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

const share = (part) => (part >= 0.0995 ? `${(100 * part).toFixed(0)} %` : `${(100 * part).toPrecision(1)} %`);

function reading(value, group) {
  if (Number.isNaN(value)) return "not read";
  if (group.format === "percent") return `${(100 * value).toFixed(0)} %`;
  if (group.format === "bytes") {
    const [size, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([s]) => value >= s) || [1, "B"];
    return `${trim((value / size).toPrecision(3))} ${unit}${(group.unit || "").endsWith("/s") ? "/s" : ""}`;
  }
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${group.unit || ""}`.trim();
}

// What a box has room for: without the prefixes that all kernels of a library share.
function shortened(name) {
  return name.replace(/^void /, "").replace(/\b(at::native::|at::cuda::|\(anonymous namespace\)::)/g, "");
}

function rgb(colour) {
  const hex = /^#([0-9a-f]{6})$/i.exec(colour);
  const number = parseInt(hex ? hex[1] : NEUTRAL.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

// Black or white, whichever is read more easily on this colour (WCAG relative luminance).
function inkOn(colour) {
  const [r, g, b] = rgb(colour).map((part) => {
    const s = part / 255;
    return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#fff" : "#000";
}

export { NEUTRAL, NO_ROW, make, button, write, clamp, unitOf, trim, span, moment, share };
export { reading, shortened, rgb, inkOn };
