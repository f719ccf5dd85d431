// Cuts a tile from a sheet, as gpulab/views/timeline/tiles/cutting.py cuts it from the run: what is at least a bin wide is told
// one by one, the rest is summed into bins, by row and colour. A sheet has the form of a tile, and tells every box.

const BINS = 512;
const ARRAYS = { f64: Float64Array, f32: Float32Array, i32: Int32Array, u16: Uint16Array, u8: Uint8Array };

function headOf(blob) {
  const length = new DataView(blob).getUint32(0, true);
  return JSON.parse(new TextDecoder().decode(new Uint8Array(blob, 4, length)));
}

// In the file the bytes of a column stand plane by plane, which compresses better: back to item by item.
function inOrder(blob) {
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
    const { kept, layers } = this.sort();
    const parts = [];
    let size = 0;
    const put = (array) => {
      const at = size;
      parts.push([at, new Uint8Array(array.buffer, array.byteOffset, array.byteLength)]);
      size += Math.ceil(array.byteLength / 8) * 8;
      return at;
    };
    const texts = { name: this.renumbered("name", this.head.names, kept), note: this.renumbered("note", this.head.notes, kept) };
    const columns = {};
    for (const [name, [, , type]] of Object.entries(this.head.columns)) {
      const values = texts[name]?.codes ?? ARRAYS[type].from(kept, (at) => this.columns[name][at]);
      columns[name] = [put(values), kept.length, type];
    }
    const bins_of = this.shares(layers).map(({ row, key, values }) => ({ row, key, offset: put(values) }));
    const curves = this.head.curves.flatMap((curve) => this.curve(curve, put));
    const head = { level, index, start_ns: this.start, end_ns: this.end, bins: BINS, binned: bins_of.length > 0 };
    return assembled({ ...head, names: texts.name.texts, notes: texts.note.texts, columns, bins_of, curves }, parts, size);
  }

  // The boxes that are told, and by row and colour what the others fill of each bin.
  sort() {
    const { start, dur, row, key } = this.columns;
    const [kept, layers, next] = [[], new Map(), this.next()];
    let [current, reach] = [-1, -Infinity];
    for (let at = 0; at < row.length; at++) {
      // A row's boxes stand in order; where some overlap, a moment belongs to the one that began first.
      if (row[at] !== current) [current, reach] = [row[at], -Infinity];
      const own = Math.max(start[at], reach);
      reach = Math.max(reach, start[at] + dur[at]);
      if (!this.reaches(at)) continue;
      if (dur[at] >= this.bin) kept.push(at);
      else {
        // Nor is told twice what a box told by itself covers: it is longer than this one, so it goes on beyond its end.
        const end = Math.min(start[at] + dur[at], next[at]);
        if (end > own) this.fill(layers, row[at], key[at], Math.max(own, this.start), Math.min(end, this.end));
      }
    }
    return { kept, layers };
  }

  reaches(at) {
    const { start, dur } = this.columns;
    return start[at] < this.end && start[at] + dur[at] > this.start;
  }

  // For each box, when the next one of its row begins that is told by itself.
  next() {
    const { start, dur, row } = this.columns;
    const found = new Float64Array(row.length).fill(Infinity);
    for (let at = row.length - 2; at >= 0; at--) {
      if (row[at + 1] !== row[at]) continue;
      const told = this.reaches(at + 1) && dur[at + 1] >= this.bin;
      found[at] = told ? start[at + 1] : found[at + 1];
    }
    return found;
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

  // Shares of each bin, 0 to 255: any work is at least 1, and a bin with any idle has at most 254 in its row.
  shares(layers) {
    const rows = Map.groupBy ? Map.groupBy(layers.values(), ({ row }) => row) : grouped(layers.values());
    return [...rows.values()].flatMap((each) => {
      const values = each.map(({ filled }) => Uint8Array.from(filled, (ns) => (ns > 0 ? Math.max(1, Math.floor((ns * 255) / this.bin)) : 0)));
      for (let bin = 0; bin < BINS; bin++) {
        const total = each.reduce((sum, { filled }) => sum + filled[bin], 0);
        if (total <= 0) continue;
        const full = total >= this.bin * (1 - 1e-9);
        const aim = full ? 255 : Math.min(254, Math.max(1, Math.round((total * 255) / this.bin)));
        let largest = 0;
        each.forEach(({ filled }, at) => (largest = filled[bin] > each[largest].filled[bin] ? at : largest));
        const others = values.reduce((sum, value, at) => sum + (at === largest ? 0 : value[bin]), 0);
        values[largest][bin] = Math.min(255, Math.max(1, aim - others));
      }
      return each.map(({ row, key }, at) => ({ row, key, values: values[at] }));
    });
  }

  // The texts that the kept boxes have, and their numbers.
  renumbered(column, texts, kept) {
    const numbers = new Map([[0, 0]]);
    const codes = Uint16Array.from(kept, (at) => {
      const old = this.columns[column][at];
      if (!numbers.has(old)) numbers.set(old, numbers.size);
      return numbers.get(old);
    });
    return { codes, texts: [...numbers.keys()].map((old) => texts[old]) };
  }

  // The points of a curve within, and the last before and the first after.
  curve({ row, offset_at, offset_low, offset_high, count }, put) {
    const at = new Float64Array(this.blob, offset_at, count);
    let first = at.findIndex((ns) => ns >= this.start);
    let last = at.findLastIndex((ns) => ns <= this.end);
    first = first < 0 ? count - 1 : Math.max(0, first - 1);
    last = Math.min(count - 1, Math.max(first, last + 1));
    if (last < 0) return [];
    const of = (Kind, offset) => put(new Kind(this.blob, offset, count).slice(first, last + 1));
    const offsets = { offset_at: of(Float64Array, offset_at), offset_low: of(Float32Array, offset_low), offset_high: of(Float32Array, offset_high) };
    return [{ row, ...offsets, count: last + 1 - first }];
  }
}

function grouped(layers) {
  const rows = new Map();
  for (const layer of layers) rows.set(layer.row, [...(rows.get(layer.row) ?? []), layer]);
  return rows;
}

// The bytes of a tile. Offsets count from its beginning, so the head is written with the length that it has then.
function assembled(head, parts, size) {
  let room = 0;
  for (;;) {
    const moved = (offset) => offset + room;
    const told = {
      ...head,
      columns: Object.fromEntries(Object.entries(head.columns).map(([name, [offset, ...more]]) => [name, [moved(offset), ...more]])),
      bins_of: head.bins_of.map((each) => ({ ...each, offset: moved(each.offset) })),
      curves: head.curves.map((each) => ({
        ...each,
        offset_at: moved(each.offset_at),
        offset_low: moved(each.offset_low),
        offset_high: moved(each.offset_high),
      })),
    };
    const text = new TextEncoder().encode(JSON.stringify(told));
    const needed = Math.ceil((4 + text.length) / 8) * 8;
    if (needed > room) {
      room = needed;
      continue;
    }
    const out = new Uint8Array(room + size);
    out.fill(32, 4, room); // spaces
    new DataView(out.buffer).setUint32(0, room - 4, true);
    out.set(text, 4);
    for (const [at, bytes] of parts) out.set(bytes, room + at);
    return out.buffer;
  }
}

export { TileCutter, headOf, inOrder };
