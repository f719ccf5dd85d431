// Tiles: the decoder of one tile, as Python encodes it (tile.py), and the cache of all loaded tiles.
//
// Tile `index` of `level` covers one span of time, with single boxes where they are wide enough to be visible, and
// with bins (shares of time) where they are not. Names are untrusted data from a trace.

import { clamp, rgb } from "../drawing/format.js";

const TILE_PX = 600; // a tile is drawn 600 to 1200 px wide, so that two or three cover a view
const MAX_TILES = 60;
const MAX_PICTURES = 8; // pictures of bins cached in addition to the visible ones: they are large
const MAX_REQUESTS = 3; // concurrent requests
const RETRY_MS = 4000; // time after which a failed request is repeated
const TYPES = { f64: Float64Array, u16: Uint16Array, u8: Uint8Array, i32: Int32Array, f32: Float32Array };

// One tile: columns of boxes, bins, and samples of curves.
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
    this.byKey = this.groupedByKey();
    this.search = { text: "", names: null };
    this.picture = { version: "", canvas: null };
  }

  // Boxes by colour, so that the painter sets each colour once.
  groupedByKey() {
    const groups = new Map();
    this.columns.key.forEach((key, index) => {
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(index);
    });
    return groups;
  }

  // For each name, whether it contains the text; cached for the last text.
  matches(text) {
    if (this.search.text !== text) {
      this.search = { text, names: this.names.map((name) => name.toLowerCase().includes(text)) };
    }
    return this.search.names;
  }

  box(index) {
    const c = this.columns;
    return {
      row: c.row[index], id: c.id[index], start: c.start[index], dur: c.dur[index], key: c.key[index],
      name: this.names[c.name[index]], note: this.notes[c.note[index]],
      partnerAt: c.partner_at[index], partnerRow: c.partner_row[index],
    };
  }

  // The bins of all rows as a picture, one texel per bin, stacked from the bottom; idle time stays transparent.
  pictureOf(lanes, colours, dpr) {
    const version = `${lanes.version}/${dpr}`;
    if (this.picture.version === version) return this.picture.canvas;
    this.picture = { version, canvas: null };
    const layers = this.binsOf.filter(({ row }) => lanes.isShown(row));
    if (!layers.length) return null;
    const canvas = document.createElement("canvas");
    canvas.width = this.bins;
    canvas.height = Math.max(1, Math.ceil(lanes.height * dpr));
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(canvas.width, canvas.height);
    const texels = new Uint32Array(image.data.buffer);
    const filled = new Map();
    for (const layer of layers) this.stack(layer, lanes, colours, dpr, texels, filled);
    pen.putImageData(image, 0, 0);
    this.picture.canvas = canvas;
    return canvas;
  }

  stack({ row, key, share: shares }, lanes, colours, dpr, texels, filled) {
    if (!filled.has(row)) filled.set(row, { sum: new Uint16Array(this.bins), top: new Uint16Array(this.bins) });
    const { sum, top } = filled.get(row);
    const floor = Math.round((lanes.top[row] + lanes.heights[row]) * dpr) - 1;
    const height = Math.round(lanes.heights[row] * dpr);
    const [r, g, b] = rgb(colours[key]);
    const colour = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    for (let bin = 0; bin < this.bins; bin++) {
      if (!shares[bin]) continue;
      sum[bin] += shares[bin];
      // Any work is at least one pixel high; with any idle time at least one pixel stays free.
      const maxHeight = sum[bin] >= 255 ? height : height - 1;
      const reach = Math.min(Math.max(top[bin] + 1, Math.floor((sum[bin] / 255) * height)), maxHeight);
      for (let y = top[bin]; y < reach; y++) texels[(floor - y) * this.bins + bin] = colour;
      top[bin] = Math.max(top[bin], reach);
    }
  }
}

// The tiles that are loaded, requested, or missing in the source.
class Tiles {
  constructor(source, onLoad) {
    Object.assign(this, { source, onLoad, loaded: new Map(), requested: new Set(), missing: new Map(), bytes: [] });
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

  // Indices of the tiles of a level that overlap a window.
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
    const tile = this.loaded.get(key);
    if (tile) {
      this.loaded.delete(key); // move to the end: most recently used
      this.loaded.set(key, tile);
    }
    return tile;
  }

  isMissing(level, index) {
    const since = this.missing.get(`${level}/${index}`);
    return since !== undefined && (this.source.offline || performance.now() - since < RETRY_MS);
  }

  // Select what to draw for a window: adjacent pieces of tiles, and whether all have the requested level.
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
        pieces.push(...this.substitutes(level, a, b));
        if (this.isMissing(level, index)) poor = true;
        else full = false;
      }
    }
    return { pieces, full, poor };
  }

  // Return finer tiles if all are loaded, or else the nearest coarser tile, stretched.
  substitutes(level, a, b) {
    for (const other of [level + 1, ...Array.from({ length: level }, (_, up) => level - 1 - up)]) {
      if (other > this.deepest) continue;
      const tiles = this.indices(other, a, b).map((index) => this.loaded.get(`${other}/${index}`));
      const piece = (tile) => ({ tile, a: Math.max(a, tile.start), b: Math.min(b, tile.end) });
      if (tiles.every(Boolean)) return tiles.map(piece);
    }
    return [];
  }

  // Request the tiles of a window; queued requests for other tiles are dropped.
  request(level, start, end) {
    const middle = (start + end) / 2;
    const targets = new Map([["0/0", [0, 0]]]); // the whole run: for the overview, and until finer tiles arrive
    for (const index of this.indices(level, start, end)) {
      let [l, i] = [level, index];
      while (l > 0 && this.isMissing(l, i)) {
        i = Math.floor(((i + 0.5) * this.width(l)) / this.width(l - 1));
        l -= 1;
      }
      targets.set(`${l}/${i}`, [l, i]);
    }
    this.queue = [...targets.entries()]
      .filter(([key, at]) => !this.loaded.has(key) && !this.requested.has(key) && !this.isMissing(...at))
      .sort(([, a], [, b]) => this.distance(a, middle) - this.distance(b, middle));
    this.sendRequests();
  }

  distance([level, index], middle) {
    return level === 0 ? -1 : Math.abs((index + 0.5) * this.width(level) - middle);
  }

  sendRequests() {
    while (this.queue.length && this.requested.size < MAX_REQUESTS) this.fetch(...this.queue.shift());
  }

  async fetch(key, [level, index]) {
    this.requested.add(key);
    let tile = null;
    try {
      const blob = await this.source.tile(level, index);
      tile = blob ? new Tile(blob) : null;
    } catch (error) {
      console.warn("gpulab: a tile of the timeline could not be read", error);
    }
    this.requested.delete(key);
    if (tile) this.store(key, tile);
    else {
      this.missing.set(key, performance.now());
      if (!this.source.offline) setTimeout(this.onLoad, RETRY_MS + 50);
    }
    this.sendRequests();
    this.onLoad();
  }

  store(key, tile) {
    this.missing.delete(key);
    this.loaded.set(key, tile);
    this.bytes.push(tile.size);
    for (const old of this.loaded.keys()) {
      if (this.loaded.size <= MAX_TILES) break;
      if (old !== "0/0") this.loaded.delete(old);
    }
  }

  // Drop pictures of bins except the most recent ones, because they are large.
  prune(used) {
    let count = 0;
    for (const tile of [...this.loaded.values()].reverse()) {
      if (!tile.picture.canvas || used.has(tile)) continue;
      if (++count > MAX_PICTURES) tile.picture = { version: "", canvas: null };
    }
  }
}

export { Tile, Tiles };
