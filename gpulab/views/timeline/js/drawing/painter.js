// Draws lanes, bins, boxes with their names, and the time axis: only the visible part, one colour after another.

import { NEUTRAL, inkOn, shortened } from "./format.js";
import { Curves } from "./curves.js";
import { Marks } from "./marks.js";
import { AXIS, Ticks } from "./view.js";

const MIN_NAMED_PX = 30; // boxes narrower than this have no name
const MIN_EDGED_PX = 5; // boxes narrower than this have no edge
const MAX_DRAWN_NAMES = 320; // per picture

class Painter {
  constructor(timeline, canvas) {
    Object.assign(this, { t: timeline, canvas, pen: canvas.getContext("2d"), dpr: 1, widths: new Map() });
    this.colours = timeline.header.keys.map(({ colour }) => (/^#[0-9a-f]{6}$/i.test(colour) ? colour : NEUTRAL));
    this.inks = this.colours.map(inkOn);
    this.curves = new Curves(timeline, this);
    this.marks = new Marks(timeline, this);
  }

  // Read the colours of the theme from CSS.
  readTheme() {
    const style = getComputedStyle(this.t.root);
    for (const name of ["ink", "soft", "edge", "wash", "page", "accent", "shade", "hit"]) {
      this[name] = style.getPropertyValue(`--gpulab-tl-${name}`).trim() || "#808080";
    }
    if (matchMedia("(forced-colors: active)").matches) {
      Object.assign(this, { ink: style.color, soft: style.color, edge: style.color, accent: style.color });
      Object.assign(this, { page: style.backgroundColor, wash: style.backgroundColor });
    }
    this.font = `11px ${style.fontFamily}`;
    this.widths.clear();
  }

  size(width, height) {
    this.dpr = Math.min(window.devicePixelRatio || 1, 3);
    const [w, h] = [Math.round(width * this.dpr), Math.round(height * this.dpr)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    Object.assign(this, { width, height });
  }

  snap(x) {
    return Math.round(x * this.dpr) / this.dpr;
  }

  paint() {
    const { pen, t } = this;
    this.visibleKeys = new Set();
    this.names = [];
    this.steps = [];
    this.binned = false;
    pen.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = this.font;
    pen.textBaseline = "middle";
    const ticks = new Ticks(t.view);
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, this.width, this.height - AXIS);
    pen.clip();
    pen.translate(0, AXIS - t.scroll);
    this.background(ticks);
    this.bins();
    this.boxes();
    this.boundaries();
    this.curves.paint();
    this.marks.paintShades();
    this.label();
    this.marks.paintHits();
    this.marks.paintSelection();
    this.marks.paintCursors();
    pen.restore();
    this.axis(ticks);
    this.marks.paintMeasure(t.measure);
  }

  // Draw a background for every lane, so that idle time looks like an empty lane.
  background(ticks) {
    const { pen, t } = this;
    pen.fillStyle = this.wash;
    for (const row of t.lanes.order) {
      if (t.isVisible(row)) pen.fillRect(0, t.lanes.top[row], this.width, t.lanes.heights[row]);
    }
    pen.fillStyle = this.edge;
    for (const { x } of ticks.all) pen.fillRect(this.snap(x), t.scroll, 1 / this.dpr, this.height);
    if (t.lanes.sides.length < 2) return;
    for (const side of t.lanes.sides) if (side.titled) pen.fillRect(0, side.top + 2, this.width, 1);
  }

  bins() {
    const { pen, t } = this;
    pen.imageSmoothingEnabled = false;
    if (t.query) pen.globalAlpha = 0.25;
    for (const { tile, a, b } of t.pieces) {
      if (b <= t.view.start || a >= t.view.end) continue;
      const picture = tile.pictureOf(t.lanes, this.colours, this.dpr);
      if (!picture) continue;
      const binNs = (tile.end - tile.start) / tile.bins;
      const [from, to] = [Math.max(a, t.view.start), Math.min(b, t.view.end)];
      const [sx, sw] = [(from - tile.start) / binNs, Math.max((to - from) / binNs, 1e-6)];
      this.noteBins(tile, Math.floor(sx), Math.ceil(sx + sw));
      const x = this.snap(t.view.x(from));
      pen.drawImage(picture, sx, 0, sw, picture.height, x, 0, this.snap(t.view.x(to)) - x, picture.height / this.dpr);
    }
    pen.globalAlpha = 1;
  }

  // Note the colours in a range of bins, for the legend.
  noteBins(tile, first, last) {
    for (const { row, key, share } of tile.binsOf) {
      if ((this.binned && this.visibleKeys.has(key)) || !this.t.isVisible(row)) continue;
      if (!share.subarray(first, last).some(Boolean)) continue;
      this.binned = true;
      this.visibleKeys.add(key);
    }
  }

  boxes() {
    const { t } = this;
    const keys = new Set();
    this.edges = [];
    this.namedStarts = new Map();
    for (const { tile } of t.pieces) for (const key of tile.byKey.keys()) keys.add(key);
    for (const key of keys) {
      this.pen.fillStyle = this.colours[key] || NEUTRAL;
      for (const piece of t.pieces) this.boxesOf(piece, key);
    }
    this.pen.globalAlpha = 1;
    this.pen.fillStyle = "rgba(0,0,0,0.3)"; // an edge separates neighbours of the same colour
    for (const [x, y, h] of this.edges) this.pen.fillRect(x, y, 1, h);
  }

  boxesOf({ tile, a, b }, key) {
    const { pen, t } = this;
    const { view, lanes } = t;
    const { start, dur, row, name } = tile.columns;
    const matches = t.query ? tile.matches(t.query) : null;
    const [left, right] = [Math.max(a, view.start), Math.min(b, view.end)];
    if (left >= right) return;
    for (const i of tile.byKey.get(key) || []) {
      const [s, e] = [start[i], start[i] + dur[i]];
      if (e <= left || s >= right || !t.isVisible(row[i])) continue;
      const x = this.snap(view.x(Math.max(s, left)));
      const w = Math.max(this.snap(view.x(Math.min(e, right))) - x, 1);
      const [y, h] = [lanes.top[row[i]], lanes.heights[row[i]]];
      if (matches) pen.globalAlpha = matches[name[i]] ? 1 : 0.25;
      pen.fillRect(x, y, w, h);
      this.visibleKeys.add(key);
      const fullWidth = dur[i] * view.scale;
      if (fullWidth >= MIN_EDGED_PX && s >= left) this.edges.push([x, y, h]);
      if (fullWidth >= MIN_NAMED_PX && h >= 11) this.name(tile, i, key);
      if (fullWidth >= 8 && t.stepRows.has(row[i])) this.steps.push([row[i], s, e]);
    }
  }

  // Add the name of a box; a box that spans several tiles gets one name.
  name(tile, i, key) {
    const { start, dur, row, name } = tile.columns;
    if (!this.namedStarts.has(row[i])) this.namedStarts.set(row[i], new Set());
    const starts = this.namedStarts.get(row[i]);
    if (starts.has(start[i]) || !name[i]) return;
    starts.add(start[i]);
    const x = Math.max(this.t.view.x(start[i]), 0);
    const w = Math.min(this.t.view.x(start[i] + dur[i]), this.width) - x;
    if (w >= MIN_NAMED_PX) this.names.push({ x, w, row: row[i], key, text: tile.names[name[i]] });
  }

  label() {
    const { pen, t } = this;
    const widest = this.names.sort((a, b) => b.w - a.w).slice(0, MAX_DRAWN_NAMES);
    const steps = t.stepRows;
    for (const { x, w, row, key, text } of widest) {
      if (t.query && !text.toLowerCase().includes(t.query)) continue;
      pen.fillStyle = this.inks[key] || "#000";
      const label = this.fitText(shortened(text), w - 8);
      const at = steps.has(row) ? x + Math.max((w - this.textWidth(label)) / 2, 4) : x + 4;
      if (label) pen.fillText(label, at, t.lanes.top[row] + t.lanes.heights[row] / 2 + 0.5);
    }
    pen.globalAlpha = 1;
  }

  textWidth(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 5000) this.widths.clear();
      width = this.pen.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  // Shorten a name to a width; "" if fewer than three letters would remain.
  fitText(name, maxWidth) {
    if (this.textWidth(name) <= maxWidth) return name;
    const text = name.replace(/^aten::/, "");
    const width = this.textWidth(text);
    if (width <= maxWidth) return text;
    let letters = Math.floor((text.length * (maxWidth - 6)) / width);
    while (letters >= 3 && this.textWidth(text.slice(0, letters) + "…") > maxWidth) letters -= 1;
    return letters >= 3 ? text.slice(0, letters) + "…" : "";
  }

  boundaries() {
    const { pen, t } = this;
    pen.fillStyle = this.soft;
    pen.globalAlpha = 0.55;
    for (const [row, start, end] of this.steps) {
      const side = t.lanes.sides[t.lanes.groupOf[row].side];
      const [from, to] = [side.linesFrom ?? t.lanes.top[row], side.bottom];
      for (const x of [t.view.x(start), t.view.x(end)]) {
        if (x >= 0 && x <= this.width) pen.fillRect(this.snap(x) - 0.5, from, 1, to - from);
      }
    }
    pen.globalAlpha = 1;
  }

  axis(ticks) {
    const { pen } = this;
    pen.fillStyle = this.edge;
    pen.fillRect(0, AXIS - 1, this.width, 1);
    const left = ticks.base ? this.textWidth(ticks.base) + 10 : 0;
    if (ticks.base) {
      pen.fillStyle = this.ink;
      pen.fillText(ticks.base, 3, AXIS / 2);
    }
    for (const { x, text } of ticks.all) {
      const width = this.textWidth(text);
      if (x < left || x + width + 4 > this.width) continue;
      pen.fillStyle = this.soft;
      pen.fillRect(this.snap(x), AXIS - 6, 1, 5);
      pen.fillText(text, x + 4, AXIS / 2);
    }
  }
}

export { Painter };
