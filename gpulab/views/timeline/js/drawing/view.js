// The visible window, the rows with their labels, and the ticks of the time axis.

import { button, clamp, make, trim, unitOf } from "./format.js";

const AXIS = 24; // px, height of the time axis above the lanes
const FINEST_NS = 400; // the narrowest window
const EASE_MS = 45; // time constant of zoom animations
const HEIGHTS = { steps: 18, ledger: 22, collectives: 14, boxes: 18, nested: 16, curve: 40 };
const LOW_LANE = 13; // px, of one of many ranks

// The visible window, and the target window of an animation.
class View {
  constructor(header, isStill) {
    Object.assign(this, { limit: Math.max(header.span_ns, 1), width: 1, isStill });
    this.finest = Math.min(FINEST_NS, this.limit);
    [this.start, this.end] = this.fitted(...header.home);
    this.target = [this.start, this.end];
  }

  get span() {
    return this.end - this.start;
  }

  get scale() {
    return this.width / this.span;
  }

  x(ns) {
    return (ns - this.start) * this.scale;
  }

  at(x) {
    return this.start + x / this.scale;
  }

  fitted(start, end) {
    const width = clamp(end - start, this.finest, this.limit);
    const first = clamp((start + end) / 2 - width / 2, 0, this.limit - width);
    return [first, first + width];
  }

  jump(start, end) {
    [this.start, this.end] = this.fitted(start, end);
    this.target = [this.start, this.end];
  }

  go(start, end) {
    this.target = this.fitted(start, end);
    if (this.isStill()) this.jump(...this.target);
  }

  pan(part) {
    const [start, end] = this.target;
    this.go(start + part * (end - start), end + part * (end - start));
  }

  zoom(factor, at) {
    const [start, end] = this.target;
    const share = clamp((at - this.start) / this.span, 0, 1); // keep the point at its position on the screen
    const width = clamp((end - start) * factor, this.finest, this.limit);
    const first = clamp(at - share * width, 0, this.limit - width);
    this.go(first, first + width);
  }

  // Move one frame closer to the target; return whether the animation goes on.
  glide(elapsed) {
    const [start, end] = this.target;
    if (this.start === start && this.end === end) return false;
    const part = 1 - Math.exp(-elapsed / EASE_MS);
    const distance = Math.max(Math.abs(start - this.start), Math.abs(end - this.end));
    if (distance * this.scale < 0.5 && distance < 0.004 * (end - start)) this.jump(start, end);
    else {
      // The width changes by a constant ratio, so that a zoom over four decades is as smooth as one over one.
      const width = this.span * ((end - start) / this.span) ** part;
      const change = end - start - this.span;
      const progress = change ? (width - this.span) / change : part;
      const first = this.start + (start - this.start) * progress;
      [this.start, this.end] = this.fitted(first, first + width);
    }
    return true;
  }
}

// The positions of all rows, and their labels: left of the lanes, or above them if the page is narrow.
class Lanes {
  constructor(header, parent, onFold) {
    Object.assign(this, { header, parent, onFold, version: 0, narrow: false, height: 0 });
    this.groups = header.groups.map((group) => ({ ...group }));
    const rows = Math.max(0, ...this.groups.map((group) => group.first + group.rows));
    this.groupOf = new Array(rows).fill(null);
    for (const group of this.groups) this.groupOf.fill(group, group.first, group.first + group.rows);
    this.stepsOf = header.sides.map((_, side) => this.groups.find((g) => g.side === side && /(^|:)steps$/.test(g.id)));
    this.top = new Float64Array(rows).fill(-1);
    this.heights = new Float64Array(rows);
    this.sides = [];
    this.labels = new Map();
    this.arrange(false);
  }

  rowHeight(group) {
    if (group.kind === "curve") return HEIGHTS.curve;
    if (this.header.low_lanes && this.header.sides[group.side].lane) return LOW_LANE;
    return HEIGHTS[group.id.split(":").at(-1)] || (group.rows > 1 ? HEIGHTS.nested : HEIGHTS.boxes);
  }

  arrange(narrow) {
    Object.assign(this, { narrow, version: this.version + 1, sides: [] });
    this.top.fill(-1);
    const { sides } = this.header;
    const lanes = sides.flatMap(({ lane }, index) => (lane ? [index] : []));
    const runs = sides.flatMap(({ lane }, index) => (lane ? [] : [index]));
    const start = 4;
    let y = start;
    for (const index of lanes) y = this.placeSide(index, y, false);
    if (lanes.length) y += 8;
    for (const index of runs) y = this.placeSide(index, y, sides.length > 1);
    for (const index of lanes.length ? runs : []) this.sides[index].linesFrom = start; // the steps of the rank in detail cross all lanes
    this.height = y;
    this.order = [...this.top.keys()].filter((row) => this.top[row] >= 0).sort((a, b) => this.top[a] - this.top[b]);
    this.label();
  }

  placeSide(index, top, titled) {
    let y = top + (titled ? 24 : 0);
    const side = this.header.sides[index];
    for (const group of this.groups.filter((each) => each.side === index)) y = this.placeGroup(group, y);
    this.sides[index] = { ...side, titled, top, bottom: y };
    return y + (side.lane ? 0 : 6);
  }

  placeGroup(group, y) {
    group.top = y;
    if (this.narrow) y += 17;
    const height = this.rowHeight(group);
    for (let row = group.first; row < group.first + (group.folded ? 1 : group.rows); row++) {
      this.top[row] = y;
      this.heights[row] = height - 1;
      y += height;
    }
    group.bottom = y;
    return y + (this.header.sides[group.side].lane ? 1 : 5);
  }

  isShown(row) {
    return row < this.top.length && this.top[row] >= 0;
  }

  // Return the row itself, or the first row of its group if the group is folded.
  visibleRow(row) {
    return this.isShown(row) ? row : row < this.groupOf.length && this.groupOf[row] ? this.groupOf[row].first : -1;
  }

  rowAt(y) {
    return this.order.find((row) => y >= this.top[row] && y < this.top[row] + this.heights[row] + 1) ?? -1;
  }

  title(row) {
    const group = this.groupOf[row];
    if (!group) return "";
    const depth = group.rows > 1 ? `, level ${row - group.first + 1}` : "";
    const { name } = this.header.sides[group.side];
    const side = this.header.sides.length > 1 && name !== group.name ? `${name}: ` : "";
    return side + group.name + depth;
  }

  fold(group, folded = !group.folded) {
    if (group.rows < 2 || group.folded === folded) return;
    group.folded = folded;
    this.arrange(this.narrow);
    this.onFold(group);
  }

  label() {
    for (const side of this.sides) this.labelSide(side);
    for (const group of this.groups) this.labelGroup(group);
  }

  labelSide(side) {
    if (!side.titled) return;
    const key = `side ${side.name} ${this.sides.indexOf(side)}`;
    if (!this.labels.has(key)) {
      const node = make("div", "side", this.parent);
      make("strong", "", node, side.name);
      make("span", "soft", node, side.source);
      this.labels.set(key, node);
    }
    this.labels.get(key).style.top = `${side.top}px`;
  }

  labelGroup(group) {
    if (!this.labels.has(group)) this.labels.set(group, this.newLabel(group));
    const node = this.labels.get(group);
    node.style.top = `${group.top}px`;
    node.style.height = `${(this.narrow ? 17 : group.bottom - group.top) - 1}px`;
    if (group.rows > 1) node.setAttribute("aria-expanded", String(!group.folded));
  }

  newLabel(group) {
    const folds = group.rows > 1;
    const { parent } = this;
    const node = folds ? button(parent, undefined, "", () => this.fold(group), "label") : make("div", "label", parent);
    node.title = group.about ? `${group.name}: ${group.about}` : group.name;
    if (folds) make("span", "arrow", node).setAttribute("aria-hidden", "true");
    make("span", "name", node, group.name);
    if (group.kind === "curve") group.value = make("span", "value", node);
    return node;
  }
}

// Round numbers for the time axis; far from zero they are relative to a base that is written once.
class Ticks {
  constructor(view) {
    const minStep = (view.span * 84) / view.width;
    const power = 10 ** Math.floor(Math.log10(minStep));
    const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= minStep));
    const far = view.end / step > 2000;
    const decade = 10 ** Math.ceil(Math.log10(view.span));
    const base = far ? Math.floor(view.start / decade) * decade : 0;
    const [size, unit] = unitOf(far ? Math.max(step, 1) * 100 : Math.max(view.end / 2, step));
    const digits = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
    this.base = far && base ? `${this.exact(base)} +` : "";
    this.all = [];
    for (let at = Math.ceil(view.start / step) * step; at <= view.end; at += step) {
      this.all.push({ x: view.x(at), text: `${((at - base) / size).toFixed(digits)} ${unit}` });
    }
  }

  exact(ns) {
    const [size, unit] = unitOf(ns);
    return `${trim((ns / size).toFixed(9))} ${unit}`;
  }
}

export { AXIS, FINEST_NS, View, Lanes, Ticks };
