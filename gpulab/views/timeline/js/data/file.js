// What a file holds of a run, asked as the kernel would be (gpulab/views/timeline/tiles/file_budget.py says what it holds).

import { TileCutter, headOf, inOrder } from "./cut.js";

const OPEN_PIECES = 24; // pieces kept unpacked
const MOST_HITS = 50;
const MOST_KERNELS = 10;
const LEDGER = /^(beside:)?ledger$/;
const WORK = /^(beside:)?gpu-?\d+:(stream|others|communication)/; // copies are no kernels

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).arrayBuffer();
}

class HeldRun {
  constructor(data) {
    this.header = data.header;
    this.until = data.until; // the run's own end: tiles go on a little
    this.packed = new Map(data.pieces.map(([level, index, sheet, text]) => [`${level}/${index}`, { sheet, text }]));
    this.open = new Map();
    this.index = unpacked(data.names).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
  }

  width(level) {
    return Math.max(1, Math.ceil(this.header.span_ns / 2 ** level));
  }

  // Where a tile is: itself, or the sheet that it is cut from; null where the file does not go so deep.
  place(level, index) {
    for (let [l, i] = [level, index]; l >= 0; [l, i] = [l - 1, i >> 1]) {
      const found = this.packed.get(`${l}/${i}`);
      if (found) return l === level || found.sheet ? { key: `${l}/${i}`, sheet: found.sheet } : null;
    }
    return null;
  }

  read(key) {
    if (!this.open.has(key)) this.open.set(key, unpacked(this.packed.get(key).text).then(inOrder));
    for (const old of this.open.keys()) {
      if (this.open.size <= OPEN_PIECES) break;
      this.open.delete(old);
    }
    return this.open.get(key);
  }

  async tile(level, index) {
    const found = this.place(level, index);
    if (!found) return null;
    const blob = await this.read(found.key);
    if (!found.sheet) return blob;
    const start = index * this.width(level);
    return new TileCutter(blob, start, Math.min(start + this.width(level), this.header.span_ns)).tile(level, index);
  }

  async search(text) {
    const { names, all } = await this.index;
    const wanted = text.trim().toLowerCase();
    const found = wanted ? names.filter(({ name }) => name.toLowerCase().includes(wanted)) : [];
    const sum = (key) => found.reduce((total, each) => total + each[key], 0);
    const shown = found.slice(0, MOST_HITS);
    const note = all ? "of each name the longest is listed" : "the file knows the names that take most time";
    return { count: sum("count"), total_ns: sum("total_ns"), hits: shown.map((each) => each.longest), names: shown, note };
  }

  // The finest pieces that the file has of a window, which do not overlap.
  cover(start, end, level = 0, index = 0) {
    const [first, last] = [index * this.width(level), Math.min((index + 1) * this.width(level), this.header.span_ns)];
    if (last <= start || first >= end) return [];
    const key = `${level}/${index}`;
    const here = this.packed.get(key);
    if (!here) return null;
    if (!here.sheet) {
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
      const tile = new Stretch(await this.read(piece.key), piece, piece.start === from);
      for (const row of tile.rows()) {
        const group = groupOf(row);
        if (LEDGER.test(group.id)) sums[group.side].account(tile, row);
        else if (WORK.test(group.id)) sums[group.side].work(tile, row);
      }
    }
    const sides = this.header.sides.map(({ name }, side) => ({ name, ...sums[side].told(this.header.keys) }));
    return { start_ns: from, end_ns: to, sides };
  }
}

// A piece, and the stretch of it that is asked about; `first`: the window begins with it.
class Stretch {
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

  // Each box of a row with the time of it that lies within, and whether it is met here for the first time.
  *boxes(row) {
    for (let at = 0; at < this.row.length; at++) {
      if (this.row[at] !== row) continue;
      const [start, end] = [this.starts[at], this.starts[at] + this.durs[at]];
      const inside = Math.min(end, this.end) - Math.max(start, this.start);
      const met = this.first || start >= this.start;
      if (inside > 0) yield { inside, key: this.keys[at], name: this.head.names[this.names[at]], met };
    }
  }

  // The time that the bins of a row hold within, by key.
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

// What a brushed window of one side comes to.
class Sums {
  constructor(span) {
    Object.assign(this, { span, parts: new Map(), labels: new Map(), kernels: new Map(), about: false, unnamed: 0 });
  }

  account(tile, row) {
    const add = ({ key, inside }) => this.parts.set(key, (this.parts.get(key) ?? 0) + inside);
    for (const box of tile.boxes(row)) {
      this.labels.set(box.key, box.name);
      add(box);
    }
    for (const bin of tile.bins(row)) {
      this.about = true;
      add(bin);
    }
  }

  work(tile, row) {
    for (const { name, inside, met } of tile.boxes(row)) {
      if (!this.kernels.has(name)) this.kernels.set(name, { name, count: 0, total_ns: 0 });
      const kernel = this.kernels.get(name);
      kernel.count += met;
      kernel.total_ns += inside;
    }
    for (const { inside } of tile.bins(row)) this.unnamed += inside;
  }

  told(keys) {
    let left = this.span;
    const whole = [...this.parts].map(([key, ns]) => [key, Math.min(Math.round(ns), this.span)]).sort(([a], [b]) => a - b);
    const ledger = whole.map(([key, ns]) => {
      const given = Math.min(ns, left); // what is about right may not come to more than there is
      left -= given;
      return { key: keys[key].key, label: this.labels.get(key) ?? keys[key].label, ns: given };
    });
    if (left > 0) ledger.push({ key: "unrecorded", label: "nothing recorded", ns: left });
    const named = [...this.kernels.values()].sort((a, b) => b.total_ns - a.total_ns);
    const kernels = named.slice(0, MOST_KERNELS).map((each) => {
      const total_ns = Math.round(each.total_ns);
      const count = Math.max(1, each.count);
      return { ...each, count, total_ns, mean_ns: total_ns / count };
    });
    const seen = named.reduce((total, each) => total + each.total_ns, 0);
    const notes = [];
    if (this.about) notes.push("about: this file holds bins of this window");
    if (this.unnamed > 0) {
      const share = Math.round((100 * this.unnamed) / (this.unnamed + seen));
      notes.push(`${share} % of the GPU's time here is in bins, without names`);
    }
    return { ledger, kernels, note: notes.join("; ") };
  }
}


export { HeldRun };
