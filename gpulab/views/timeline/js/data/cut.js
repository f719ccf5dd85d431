// Cuts a tile from a sheet, as gpulab/views/timeline/tiles/cutting.py cuts it from the run: boxes at least a bin wide
// are kept, the others are summed into bins, by row and colour. A sheet has the format of a tile, with every box.

const BINS = 512;
const ARRAYS = { f64: Float64Array, f32: Float32Array, i32: Int32Array, u16: Uint16Array, u8: Uint8Array };

function headOf(blob) {
  const length = new DataView(blob).getUint32(0, true);
  return JSON.parse(new TextDecoder().decode(new Uint8Array(blob, 4, length)));
}

// Undo the byte order of the file, which stores a column byte plane by byte plane for better compression.
function unshuffled(blob) {
  const head = headOf(blob);
  const bytes = new Uint8Array(blob);
  const curves = head.curves.flatMap((each) => [
    [each.offset_at, each.count, "f64"],
    [each.offset_low, each.count, "f32"],
    [each.offset_high, each.count, "f32"],
  ]);
  for (const [offset, count, type] of [...Object.values(head.columns), ...curves]) {
    const width = ARRAYS[type].BYTES_PER_ELEMENT;
    if (width < 2) continue;
    const planes = bytes.slice(offset, offset + count * width);
    for (let item = 0; item < count; item++)
      for (let plane = 0; plane < width; plane++) bytes[offset + item * width + plane] = planes[plane * count + item];
  }
  return blob;
}

class TileCutter {
  constructor(blob, start, end) {
    Object.assign(this, { blob, start, end, head: headOf(blob), bin: (end - start) / BINS });
    this.columns = {};
    for (const [name, [offset, count, type]] of Object.entries(this.head.columns))
      this.columns[name] = new ARRAYS[type](blob, offset, count);
  }

  tile(level, index) {
    const { single, layers } = this.split();
    const parts = [];
    let size = 0;
    const put = (array) => {
      const at = size;
      parts.push([at, new Uint8Array(array.buffer, array.byteOffset, array.byteLength)]);
      size += Math.ceil(array.byteLength / 8) * 8;
      return at;
    };
    const { names, notes } = this.head;
    const texts = { name: this.renumbered("name", names, single), note: this.renumbered("note", notes, single) };
    const columns = {};
    for (const [name, [, , type]] of Object.entries(this.head.columns)) {
      const values = texts[name]?.codes ?? ARRAYS[type].from(single, (at) => this.columns[name][at]);
      columns[name] = [put(values), single.length, type];
    }
    const bins_of = this.shares(layers).map(({ row, key, values }) => ({ row, key, offset: put(values) }));
    const curves = this.head.curves.flatMap((curve) => this.curve(curve, put));
    const head = { level, index, start_ns: this.start, end_ns: this.end, bins: BINS, binned: bins_of.length > 0 };
    return assembled({ ...head, names: texts.name.texts, notes: texts.note.texts, columns, bins_of, curves }, parts, size);
  }

  // Split the boxes into single boxes, and the time that the others fill in each bin, by row and colour.
  split() {
    const { start, dur, row, key } = this.columns;
    const [single, layers, next] = [[], new Map(), this.nextSingle()];
    let [current, reach] = [-1, -Infinity];
    for (let at = 0; at < row.length; at++) {
      // The boxes of a row are sorted; where they overlap, the time belongs to the box that began first.
      if (row[at] !== current) [current, reach] = [row[at], -Infinity];
      const from = Math.max(start[at], reach);
      reach = Math.max(reach, start[at] + dur[at]);
      if (!this.overlaps(at)) continue;
      if (dur[at] >= this.bin) single.push(at);
      else {
        // Do not count time that the next single box covers: it is longer than this box, and ends later.
        const to = Math.min(start[at] + dur[at], next[at]);
        if (to > from) this.fill(layers, row[at], key[at], Math.max(from, this.start), Math.min(to, this.end));
      }
    }
    return { single, layers };
  }

  overlaps(at) {
    const { start, dur } = this.columns;
    return start[at] < this.end && start[at] + dur[at] > this.start;
  }

  // For each box, the start of the next single box of its row.
  nextSingle() {
    const { start, dur, row } = this.columns;
    const starts = new Float64Array(row.length).fill(Infinity);
    for (let at = row.length - 2; at >= 0; at--) {
      if (row[at + 1] !== row[at]) continue;
      const isSingle = this.overlaps(at + 1) && dur[at + 1] >= this.bin;
      starts[at] = isSingle ? start[at + 1] : starts[at + 1];
    }
    return starts;
  }

  fill(layers, row, key, from, to) {
    const name = row * 256 + key;
    if (!layers.has(name)) layers.set(name, { row, key, filled: new Float64Array(BINS) });
    const { filled } = layers.get(name);
    const last = Math.min(BINS - 1, Math.floor((to - this.start) / this.bin));
    for (let bin = Math.max(0, Math.floor((from - this.start) / this.bin)); bin <= last; bin++) {
      const left = this.start + bin * this.bin;
      filled[bin] += Math.max(0, Math.min(to, left + this.bin) - Math.max(from, left));
    }
  }

  // Shares of each bin, 0 to 255: any work is at least 1; with any idle time the sum over a row is at most 254.
  shares(layers) {
    const rows = Map.groupBy ? Map.groupBy(layers.values(), ({ row }) => row) : grouped(layers.values());
    const share = (ns) => (ns > 0 ? Math.max(1, Math.floor((ns * 255) / this.bin)) : 0);
    return [...rows.values()].flatMap((rowLayers) => {
      const values = rowLayers.map(({ filled }) => Uint8Array.from(filled, share));
      for (let bin = 0; bin < BINS; bin++) {
        const total = rowLayers.reduce((sum, { filled }) => sum + filled[bin], 0);
        if (total <= 0) continue;
        const full = total >= this.bin * (1 - 1e-9);
        const target = full ? 255 : Math.min(254, Math.max(1, Math.round((total * 255) / this.bin)));
        let largest = 0;
        rowLayers.forEach(({ filled }, at) => (largest = filled[bin] > rowLayers[largest].filled[bin] ? at : largest));
        const others = values.reduce((sum, value, at) => sum + (at === largest ? 0 : value[bin]), 0);
        values[largest][bin] = Math.min(255, Math.max(1, target - others));
      }
      return rowLayers.map(({ row, key }, at) => ({ row, key, values: values[at] }));
    });
  }

  // The texts of the single boxes, and the number of the text of each box.
  renumbered(column, texts, single) {
    const numbers = new Map([[0, 0]]);
    const codes = Uint16Array.from(single, (at) => {
      const old = this.columns[column][at];
      if (!numbers.has(old)) numbers.set(old, numbers.size);
      return numbers.get(old);
    });
    return { codes, texts: [...numbers.keys()].map((old) => texts[old]) };
  }

  // The points of a curve inside the tile, with the last one before and the first one after it.
  curve({ row, offset_at, offset_low, offset_high, count }, put) {
    const at = new Float64Array(this.blob, offset_at, count);
    let first = at.findIndex((ns) => ns >= this.start);
    let last = at.findLastIndex((ns) => ns <= this.end);
    first = first < 0 ? count - 1 : Math.max(0, first - 1);
    last = Math.min(count - 1, Math.max(first, last + 1));
    if (last < 0) return [];
    const copy = (Kind, offset) => put(new Kind(this.blob, offset, count).slice(first, last + 1));
    return [{
      row,
      offset_at: copy(Float64Array, offset_at),
      offset_low: copy(Float32Array, offset_low),
      offset_high: copy(Float32Array, offset_high),
      count: last + 1 - first,
    }];
  }
}

function grouped(layers) {
  const rows = new Map();
  for (const layer of layers) rows.set(layer.row, [...(rows.get(layer.row) ?? []), layer]);
  return rows;
}

// The bytes of a tile. Offsets count from its start, so the length of the head is found by iteration.
function assembled(head, parts, size) {
  let headSize = 0;
  for (;;) {
    const shift = (offset) => offset + headSize;
    const columns = Object.entries(head.columns).map(([name, [offset, ...rest]]) => [name, [shift(offset), ...rest]]);
    const fullHead = {
      ...head,
      columns: Object.fromEntries(columns),
      bins_of: head.bins_of.map((each) => ({ ...each, offset: shift(each.offset) })),
      curves: head.curves.map((each) => ({
        ...each,
        offset_at: shift(each.offset_at),
        offset_low: shift(each.offset_low),
        offset_high: shift(each.offset_high),
      })),
    };
    const text = new TextEncoder().encode(JSON.stringify(fullHead));
    const needed = Math.ceil((4 + text.length) / 8) * 8;
    if (needed > headSize) {
      headSize = needed;
      continue;
    }
    const out = new Uint8Array(headSize + size);
    out.fill(32, 4, headSize); // spaces
    new DataView(out.buffer).setUint32(0, headSize - 4, true);
    out.set(text, 4);
    for (const [at, bytes] of parts) out.set(bytes, headSize + at);
    return out.buffer;
  }
}

export { TileCutter, headOf, unshuffled };
