// Tiles: one as Python packed it (tile.py), and all that are held.
//
// Tile `index` of `level` covers one stretch of time, with boxes where they are wide enough to be seen and with bins,
// shares of time, where they are not. Names are data from a trace.

import { clamp, rgb } from "../drawing/format.js";

const TILE_PX = 600; // a tile is drawn 600 to 1200 px wide, so that two or three cover a view
const MOST_TILES = 60;
const MOST_PICTURES = 8; // pictures of bins kept beside those in view: they are large
const FLIGHTS = 3; // requests under way at once
const RETRY_MS = 4000; // a kernel that did not answer is asked again after this
const TYPES = { f64: Float64Array, u16: Uint16Array, u8: Uint8Array, i32: Int32Array, f32: Float32Array };

// One tile as Python packed it: columns of boxes, bins, pieces of curves.
class Tile {
  constructor(blob) {
    const view = ArrayBuffer.isView(blob);
    const bytes = view ? blob.buffer.slice(blob.byteOffset, blob.byteOffset + blob.byteLength) : blob;
    const length = new DataView(bytes).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    Object.assign(this, { level: head.level, index: head.index, start: head.start_ns, end: head.end_ns });
    Object.assign(this, { size: bytes.byteLength, binned: head.binned, names: head.names, notes: head.notes });
    this.columns = {};
    for (const [name, [offset, count, type]] of Object.entries(head.columns)) {
      this.columns[name] = new TYPES[type](bytes, offset, count);
    }
    this.count = this.columns.start.length;
    this.bins = head.bins;
    const bins = (offset) => new Uint8Array(bytes, offset, head.bins);
    this.binsOf = head.bins_of.map(({ row, key, offset }) => ({ row, key, share: bins(offset) }));
    this.curves = head.curves.map((curve) => ({
      row: curve.row,
      at: new Float64Array(bytes, curve.offset_at, curve.count),
      low: new Float32Array(bytes, curve.offset_low, curve.count),
      high: new Float32Array(bytes, curve.offset_high, curve.count),
    }));
    this.byKey = this.grouped();
    this.matched = { text: "", names: null };
    this.picture = { version: "", canvas: null };
  }

  // Boxes by colour, so that a picture changes its pen once for each.
  grouped() {
    const groups = new Map();
    this.columns.key.forEach((key, index) => {
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(index);
    });
    return groups;
  }

  // For each name, whether it contains the text; remembered while the text stays.
  matches(text) {
    if (this.matched.text !== text) {
      this.matched = { text, names: this.names.map((name) => name.toLowerCase().includes(text)) };
    }
    return this.matched.names;
  }

  box(index) {
    const c = this.columns;
    return {
      row: c.row[index], id: c.id[index], start: c.start[index], dur: c.dur[index], key: c.key[index],
      name: this.names[c.name[index]], note: this.notes[c.note[index]],
      partnerAt: c.partner_at[index], partnerRow: c.partner_row[index],
    };
  }

  // The bins of a row as a picture, one texel wide each, stacked from the bottom; what is left empty is idle.
  pictureOf(lanes, colours, dpr) {
    const version = `${lanes.version}/${dpr}`;
    if (this.picture.version === version) return this.picture.canvas;
    this.picture = { version, canvas: null };
    const shown = this.binsOf.filter(({ row }) => lanes.shows(row));
    if (!shown.length) return null;
    const canvas = document.createElement("canvas");
    canvas.width = this.bins;
    canvas.height = Math.max(1, Math.ceil(lanes.height * dpr));
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(canvas.width, canvas.height);
    const texels = new Uint32Array(image.data.buffer);
    const filled = new Map();
    for (const each of shown) this.stack(each, lanes, colours, dpr, texels, filled);
    pen.putImageData(image, 0, 0);
    this.picture.canvas = canvas;
    return canvas;
  }

  stack({ row, key, share: shares }, lanes, colours, dpr, texels, filled) {
    if (!filled.has(row)) filled.set(row, { sum: new Uint16Array(this.bins), top: new Uint16Array(this.bins) });
    const { sum, top } = filled.get(row);
    const floor = Math.round((lanes.top[row] + lanes.tall[row]) * dpr) - 1;
    const height = Math.round(lanes.tall[row] * dpr);
    const [r, g, b] = rgb(colours[key]);
    const colour = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    for (let bin = 0; bin < this.bins; bin++) {
      if (!shares[bin]) continue;
      sum[bin] += shares[bin];
      // Any work is at least one pixel high, and any idle leaves at least one pixel free.
      const most = sum[bin] >= 255 ? height : height - 1;
      const reach = Math.min(Math.max(top[bin] + 1, Math.floor((sum[bin] / 255) * height)), most);
      for (let y = top[bin]; y < reach; y++) texels[(floor - y) * this.bins + bin] = colour;
      top[bin] = Math.max(top[bin], reach);
    }
  }
}

// The tiles that are held, on their way, or not to be had.
class Tiles {
  constructor(source, arrived) {
    Object.assign(this, { source, arrived, held: new Map(), flying: new Set(), missing: new Map(), bytes: [] });
    this.queue = [];
    this.span = source.header.span_ns;
    this.deepest = source.header.deepest;
  }

  width(level) {
    return Math.max(1, Math.ceil(this.span / 2 ** level));
  }

  levelFor(scale) {
    return clamp(Math.floor(Math.log2((this.span * scale) / TILE_PX)), 0, this.deepest);
  }

  // Indices of the tiles of a level that reach into a window.
  indices(level, start, end) {
    const width = this.width(level);
    const last = Math.ceil(this.span / width) - 1;
    const first = clamp(Math.floor(start / width), 0, last);
    const out = [];
    for (let index = first; index <= clamp(Math.ceil(end / width) - 1, first, last); index++) out.push(index);
    return out;
  }

  get(level, index) {
    const key = `${level}/${index}`;
    const tile = this.held.get(key);
    if (tile) {
      this.held.delete(key); // to the young end of the map
      this.held.set(key, tile);
    }
    return tile;
  }

  lacks(level, index) {
    const since = this.missing.get(`${level}/${index}`);
    return since !== undefined && (this.source.offline || performance.now() - since < RETRY_MS);
  }

  // What to draw for a window: pieces of tiles side by side, and whether each is the one that was wanted.
  cover(level, start, end) {
    const pieces = [];
    let full = true;
    let poor = false;
    for (const index of this.indices(level, start, end)) {
      const width = this.width(level);
      const [a, b] = [index * width, Math.min((index + 1) * width, this.span)];
      const exact = this.get(level, index);
      if (exact) pieces.push({ tile: exact, a, b });
      else {
        pieces.push(...this.instead(level, a, b));
        if (this.lacks(level, index)) poor = true;
        else full = false;
      }
    }
    return { pieces, full, poor };
  }

  // Finer tiles where all are held, else the nearest coarser one, stretched.
  instead(level, a, b) {
    for (const other of [level + 1, ...Array.from({ length: level }, (_, up) => level - 1 - up)]) {
      if (other > this.deepest) continue;
      const found = this.indices(other, a, b).map((index) => this.held.get(`${other}/${index}`));
      const piece = (tile) => ({ tile, a: Math.max(a, tile.start), b: Math.min(b, tile.end) });
      if (found.every(Boolean)) return found.map(piece);
    }
    return [];
  }

  // What is in view now; requests not yet sent for anything else are forgotten.
  want(level, start, end) {
    const middle = (start + end) / 2;
    const wanted = new Map([["0/0", [0, 0]]]); // the whole run: the overview, and what there is until better comes
    for (const index of this.indices(level, start, end)) {
      let [l, i] = [level, index];
      while (l > 0 && this.lacks(l, i)) {
        i = Math.floor(((i + 0.5) * this.width(l)) / this.width(l - 1));
        l -= 1;
      }
      wanted.set(`${l}/${i}`, [l, i]);
    }
    this.queue = [...wanted.entries()]
      .filter(([key, at]) => !this.held.has(key) && !this.flying.has(key) && !this.lacks(...at))
      .sort(([, a], [, b]) => this.distance(a, middle) - this.distance(b, middle));
    this.pump();
  }

  distance([level, index], middle) {
    return level === 0 ? -1 : Math.abs((index + 0.5) * this.width(level) - middle);
  }

  pump() {
    while (this.queue.length && this.flying.size < FLIGHTS) this.fetch(...this.queue.shift());
  }

  async fetch(key, [level, index]) {
    this.flying.add(key);
    let tile = null;
    try {
      const blob = await this.source.tile(level, index);
      tile = blob ? new Tile(blob) : null;
    } catch (error) {
      console.warn("gpulab: a tile of the timeline could not be read", error);
    }
    this.flying.delete(key);
    if (tile) this.hold(key, tile);
    else {
      this.missing.set(key, performance.now());
      if (!this.source.offline) setTimeout(this.arrived, RETRY_MS + 50);
    }
    this.pump();
    this.arrived();
  }

  hold(key, tile) {
    this.missing.delete(key);
    this.held.set(key, tile);
    this.bytes.push(tile.size);
    for (const old of this.held.keys()) {
      if (this.held.size <= MOST_TILES) break;
      if (old !== "0/0") this.held.delete(old);
    }
  }

  // Pictures of bins are large: only the last few are kept.
  prune(used) {
    let kept = 0;
    for (const tile of [...this.held.values()].reverse()) {
      if (!tile.picture.canvas || used.has(tile)) continue;
      if (++kept > MOST_PICTURES) tile.picture = { version: "", canvas: null };
    }
  }
}

export { Tile, Tiles };
