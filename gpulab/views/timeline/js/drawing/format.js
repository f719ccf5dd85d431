// Formats numbers and times, and creates page elements.

const NEUTRAL = "#8A8A8A"; // for boxes without a colour of their own
const NO_ROW = 65535; // no linked row

function make(tag, name, parent, text) {
  const node = document.createElement(tag);
  if (name) node.className = "gpulab-tl-" + name;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function button(parent, text, title, onClick, name = "button") {
  const node = make("button", name, parent, text);
  node.type = "button";
  if (title) node.title = title;
  node.addEventListener("click", onClick);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
const unitOf = (ns) => UNITS.find(([size]) => ns >= size) || UNITS[3];
const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
const UNKNOWN = "not measured";

// The following functions format numbers like gpulab/wording.py; tests/views/timeline/test_number_formats.py compares them.

// A fixed number of decimals, rounded half to even as in Python; "<1" if not zero but too small to show.
function fixed(value, decimals) {
  if (value === 0) return "0";
  const exact = value.toFixed(decimals + 40);
  const end = exact.indexOf(".") + (decimals ? decimals + 1 : 0);
  const cut = exact.slice(0, end);
  const tie = /^\.?50*$/.test(exact.slice(end));
  const text = tie && "02468".includes(cut.at(-1)) ? cut : value.toFixed(decimals);
  if (/[1-9]/.test(text)) return text.replace(/\B(?=(\d{3})+(?!\d))(?<!\.\d*)/g, ",");
  const least = (10 ** -decimals).toFixed(decimals);
  return value > 0 ? `<${least}` : `>-${least}`;
}

// Three significant digits without trailing zeros: "4.56", "12", "1,234".
function number(value) {
  if (value === 0) return "0";
  const exponent = Number(value.toExponential(2).split("e")[1]);
  return trim(fixed(value, Math.max(0, 2 - exponent)));
}

// The number in the smallest unit in which it is less than one of the next unit.
function inUnit(value, factor, units) {
  if (!Number.isFinite(value)) return UNKNOWN;
  const texts = units.map((unit, power) => number(value / factor ** power));
  const fits = texts.findIndex((text) => Math.abs(Number(text.replaceAll(",", ""))) < factor);
  const index = fits < 0 ? units.length - 1 : fits;
  return `${texts[index]} ${units[index]}`;
}

const bytes = (value) => inUnit(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const quantity = (value, unit) => (Number.isFinite(value) ? `${fixed(value, 0)} ${unit}` : UNKNOWN);
const share = (part) => quantity(100 * part, "%");

const round = (value) => (value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value)); // half to even

// A duration: "4.56 ms", "12 s", "2 min 5 s".
function span(ns) {
  if (!Number.isFinite(ns)) return UNKNOWN;
  const seconds = round(ns / 1e9);
  if (seconds < 120) {
    const [size, unit] = UNITS.findLast(([size]) => Number((ns / size).toPrecision(3)) < 1000) || UNITS[0];
    return `${size === 1 ? fixed(ns, 0) : number(ns / size)} ${unit}`;
  }
  const minutes = Math.floor(seconds / 60);
  const rounded = round(seconds / 60);
  const [whole, unit, rest, part] =
    minutes < 120 ? [minutes, "min", seconds % 60, "s"] : [Math.floor(rounded / 60), "h", rounded % 60, "min"];
  return `${fixed(whole, 0)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
}

// A point in time, with the precision that a window of this width needs.
function moment(ns, window) {
  const [size, unit] = unitOf(Math.max(Math.abs(ns), window, 1));
  const digits = clamp(Math.ceil(Math.log10(size / Math.max(window / 1000, 1))), 0, 9);
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

function reading(value, group) {
  if (Number.isNaN(value)) return UNKNOWN;
  if (group.format === "percent") return share(value);
  if (group.format === "bytes") return bytes(value) + ((group.unit || "").endsWith("/s") ? "/s" : "");
  if (group.format === "number" && group.unit) return quantity(value, group.unit);
  return Number.isFinite(value) ? `${number(value)} ${group.unit || ""}`.trim() : UNKNOWN;
}

// A kernel name without the prefixes that all kernels of a library share, so that more of it fits into a box.
function shortened(name) {
  return name.replace(/^void /, "").replace(/\b(at::native::|at::cuda::|\(anonymous namespace\)::)/g, "");
}

function rgb(colour) {
  const hex = /^#([0-9a-f]{6})$/i.exec(colour);
  const number = parseInt(hex ? hex[1] : NEUTRAL.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

// Black or white, whichever has the higher contrast on a colour (WCAG relative luminance).
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
