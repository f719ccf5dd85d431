// Answers the same queries as the kernel, from the data in the file (selected by timeline/tiles/file_budget.py).

import { TileCutter, headOf, unshuffled } from "./cut.js";

const MAX_OPEN_PIECES = 24; // pieces kept in memory uncompressed
const MAX_HITS = 50;
const MAX_KERNELS = 10;
// Rows of the timeline by the id of their group.
const LEDGER = /^(beside:)?ledger$/;
const KERNELS = /^(beside:)?gpu-?\d+:(stream|others|communication)/; // without copies

async function decompressed(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).arrayBuffer();
}

class StoredRun {
  constructor(data) {
    this.header = data.header;
    this.until = data.until; // the end of the run; the last tile ends later
    this.packed = new Map(data.pieces.map(([level, index, sheet, text]) => [`${level}/${index}`, { sheet, text }]));
    this.open = new Map();
    this.index = decompressed(data.names).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
  }

  width(level) {
    return Math.max(1, Math.ceil(this.header.span_ns / 2 ** level));
  }

  // Return the piece with a tile: the tile itself, or a sheet that contains it; null if the file has neither.
  pieceOf(level, index) {
    for (let [l, i] = [level, index]; l >= 0; [l, i] = [l - 1, i >> 1]) {
      const piece = this.packed.get(`${l}/${i}`);
      if (piece) return l === level || piece.sheet ? { key: `${l}/${i}`, sheet: piece.sheet } : null;
    }
    return null;
  }

  read(key) {
    if (!this.open.has(key)) this.open.set(key, decompressed(this.packed.get(key).text).then(unshuffled));
    for (const old of this.open.keys()) {
      if (this.open.size <= MAX_OPEN_PIECES) break;
      this.open.delete(old);
    }
    return this.open.get(key);
  }

  async tile(level, index) {
    const piece = this.pieceOf(level, index);
    if (!piece) return null;
    const blob = await this.read(piece.key);
    if (!piece.sheet) return blob;
    const start = index * this.width(level);
    return new TileCutter(blob, start, Math.min(start + this.width(level), this.header.span_ns)).tile(level, index);
  }

  async search(text) {
    const { names, all } = await this.index;
    const query = text.trim().toLowerCase();
    const matches = query ? names.filter(({ name }) => name.toLowerCase().includes(query)) : [];
    const sum = (key) => matches.reduce((total, each) => total + each[key], 0);
    const listed = matches.slice(0, MAX_HITS);
    const note = all ? "only the longest event of each name is listed" : "this file has only the names with most time";
    const hits = listed.map((each) => each.longest);
    return { count: sum("count"), total_ns: sum("total_ns"), hits, names: listed, note };
  }

  // Return the finest pieces of a window in the file, without overlap.
  cover(start, end, level = 0, index = 0) {
    const [first, last] = [index * this.width(level), Math.min((index + 1) * this.width(level), this.header.span_ns)];
    if (last <= start || first >= end) return [];
    const key = `${level}/${index}`;
    const piece = this.packed.get(key);
    if (!piece) return null;
    if (!piece.sheet) {
      const finer = [2 * index, 2 * index + 1].map((child) => this.cover(start, end, level + 1, child));
      if (finer.every(Boolean)) return finer.flat();
    }
    return [{ key, start: Math.max(first, start), end: Math.min(last, end) }];
  }

  async brush(start, end) {
    const [from, to] = [Math.max(0, Math.round(start)), Math.min(this.until, Math.round(end))];
    const sums = this.header.sides.map(() => new Sums(to - from));
    const groupOf = (row) => this.header.groups.find((group) => group.first <= row && row < group.first + group.rows);
    for (const piece of this.cover(from, to) ?? []) {
      const part = new PieceWindow(await this.read(piece.key), piece, piece.start === from);
      for (const row of part.rows()) {
        const group = groupOf(row);
        if (LEDGER.test(group.id)) sums[group.side].addLedger(part, row);
        else if (KERNELS.test(group.id)) sums[group.side].addKernels(part, row);
      }
    }
    const answers = sums.map((sum) => sum.answer(this.header.keys));
    const sides = this.header.sides.map(({ name, lane }, side) => ({ name, lane, ...answers[side] }));
    return { start_ns: from, end_ns: to, sides };
  }
}

// The part of a piece inside a brushed window; `first`: the window starts in this piece.
class PieceWindow {
  constructor(blob, { start, end }, first) {
    Object.assign(this, { blob, start, end, first, head: headOf(blob) });
    const types = { f64: Float64Array, u16: Uint16Array, u8: Uint8Array };
    const column = (name) => {
      const [offset, count, type] = this.head.columns[name];
      return new types[type](blob, offset, count);
    };
    Object.assign(this, { starts: column("start"), durs: column("dur"), row: column("row") });
    Object.assign(this, { keys: column("key"), names: column("name") });
  }

  rows() {
    return new Set([...this.row, ...this.head.bins_of.map((each) => each.row)]);
  }

  // Yield each box of a row with its time in the window, and whether this is the first piece with it.
  *boxes(row) {
    for (let at = 0; at < this.row.length; at++) {
      if (this.row[at] !== row) continue;
      const [start, end] = [this.starts[at], this.starts[at] + this.durs[at]];
      const inside = Math.min(end, this.end) - Math.max(start, this.start);
      const isNew = this.first || start >= this.start;
      if (inside > 0) yield { inside, key: this.keys[at], name: this.head.names[this.names[at]], isNew };
    }
  }

  // Yield the time in the bins of a row that lies in the window, by colour key.
  *bins(row) {
    const count = this.head.bins;
    const width = (this.head.end_ns - this.head.start_ns) / count;
    for (const each of this.head.bins_of) {
      if (each.row !== row) continue;
      const shares = new Uint8Array(this.blob, each.offset, count);
      let inside = 0;
      for (let bin = 0; bin < count; bin++) {
        const first = this.head.start_ns + bin * width;
        const part = Math.min(first + width, this.end) - Math.max(first, this.start);
        if (part > 0) inside += (shares[bin] / 255) * part;
      }
      if (inside > 0) yield { key: each.key, inside };
    }
  }
}

// The ledger and the kernels of a brushed window of one side.
class Sums {
  constructor(span) {
    const maps = { parts: new Map(), labels: new Map(), kernels: new Map() };
    Object.assign(this, { span, ...maps, approximate: false, unnamed: 0 });
  }

  addLedger(part, row) {
    const add = ({ key, inside }) => this.parts.set(key, (this.parts.get(key) ?? 0) + inside);
    for (const box of part.boxes(row)) {
      this.labels.set(box.key, box.name);
      add(box);
    }
    for (const bin of part.bins(row)) {
      this.approximate = true;
      add(bin);
    }
  }

  addKernels(part, row) {
    for (const { name, inside, isNew } of part.boxes(row)) {
      if (!this.kernels.has(name)) this.kernels.set(name, { name, count: 0, total_ns: 0 });
      const kernel = this.kernels.get(name);
      kernel.count += isNew;
      kernel.total_ns += inside;
    }
    for (const { inside } of part.bins(row)) this.unnamed += inside;
  }

  answer(keys) {
    let remainder = this.span;
    const parts = [...this.parts].sort(([a], [b]) => a - b);
    const ledger = parts.map(([key, time]) => {
      const ns = Math.min(Math.round(time), remainder); // approximate parts must not sum to more than the window
      remainder -= ns;
      return { key: keys[key].key, label: this.labels.get(key) ?? keys[key].label, ns };
    });
    if (remainder > 0) ledger.push({ key: "unrecorded", label: "not recorded", ns: remainder });
    const byTime = [...this.kernels.values()].sort((a, b) => b.total_ns - a.total_ns);
    const kernels = byTime.slice(0, MAX_KERNELS).map((each) => {
      const total_ns = Math.round(each.total_ns);
      const count = Math.max(1, each.count);
      return { ...each, count, total_ns, mean_ns: total_ns / count };
    });
    const namedNs = byTime.reduce((total, each) => total + each.total_ns, 0);
    const notes = [];
    if (this.approximate) notes.push("Approximate: this file has only bins for part of this window");
    if (this.unnamed > 0) {
      const share = Math.round((100 * this.unnamed) / (this.unnamed + namedNs));
      notes.push(`${share} % of the GPU time in this window is in bins, without kernel names`);
    }
    return { ledger, kernels, note: notes.join("; ") };
  }
}

export { StoredRun };
