// Lookups in the visible tiles: boxes, bins, steps and curve values at a point.

import { clamp, reading, share, span } from "../drawing/format.js";

function same(a, b) {
  return !!a && !!b && a.row === b.row && a.start === b.start && a.dur === b.dur;
}

class Finder {
  constructor(timeline) {
    Object.assign(this, { t: timeline });
  }

  // The single boxes of a row in view, sorted by time and without duplicates.
  boxes(row) {
    const boxes = new Map();
    const { start, end } = this.t.view;
    for (const { tile, a, b } of this.t.pieces) {
      const c = tile.columns;
      for (let i = 0; i < tile.count; i++) {
        if (c.row[i] !== row || c.start[i] >= b || c.start[i] + c.dur[i] <= a) continue;
        if (c.start[i] < end && c.start[i] + c.dur[i] > start) boxes.set(`${c.start[i]} ${c.dur[i]}`, [tile, i]);
      }
    }
    return [...boxes.values()].map(([tile, i]) => tile.box(i)).sort((a, b) => a.start - b.start || b.dur - a.dur);
  }

  piece(at) {
    return this.t.pieces.find(({ a, b }) => at >= a && at < b);
  }

  // The box of a row at a time, or else the nearest one within some pixels.
  box(row, at, pixels = 3) {
    let best = null;
    let minDistance = pixels / this.t.view.scale + 1e-9;
    for (const { tile } of this.t.pieces) {
      const c = tile.columns;
      for (let i = 0; i < tile.count; i++) {
        if (c.row[i] !== row) continue;
        const distance = Math.max(c.start[i] - at, at - c.start[i] - c.dur[i], 0);
        if (distance > minDistance || (distance === minDistance && best && c.dur[i] >= best.dur)) continue;
        [best, minDistance] = [{ tile, i, dur: c.dur[i] }, distance];
      }
    }
    return best && best.tile.box(best.i);
  }

  // The content of the bin at a point: [{key, part, width}], empty without a bin.
  bins(row, at) {
    const piece = this.piece(at);
    if (!piece) return [];
    const { tile } = piece;
    const width = (tile.end - tile.start) / tile.bins;
    const bin = clamp(Math.floor((at - tile.start) / width), 0, tile.bins - 1);
    const layers = tile.binsOf.filter((each) => each.row === row && each.share[bin]);
    return layers.map(({ key, share: shares }) => ({ key, part: shares[bin] / 255, width }));
  }

  step(at, side = 0) {
    const group = this.t.lanes.stepsOf[side];
    return group ? this.box(group.first, at, 0.001) : null;
  }

  value(group, at) {
    const piece = this.piece(at);
    const curve = piece && piece.tile.curves.find(({ row }) => row === group.first);
    if (!curve || !curve.at.length) return null;
    let [low, high] = [0, curve.at.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (curve.at[middle] <= at) low = middle;
      else high = middle;
    }
    const i = Math.abs(curve.at[high] - at) < Math.abs(curve.at[low] - at) ? high : low;
    const isOutside = at < curve.at[0] || at > curve.at[curve.at.length - 1];
    if (isOutside && Math.abs(curve.at[i] - at) * this.t.view.scale > 8) return null;
    return { at: curve.at[i], low: curve.low[i], high: curve.high[i] };
  }

  reading(group, at) {
    const value = this.value(group, at);
    if (!value || Number.isNaN(value.high)) return "not measured here";
    const [low, high] = [reading(value.low, group), reading(value.high, group)];
    return low === high ? high : `${low} to ${high}`;
  }

  // The duration of a box, with its share of the step.
  durationText(box) {
    const group = this.t.lanes.groupOf[box.row];
    const step = this.t.stepRows.has(box.row) ? null : this.step(box.start + box.dur / 2, group.side);
    return span(box.dur) + (step && step.dur >= box.dur ? ` · ${share(box.dur / step.dur)} of ${step.name}` : "");
  }
}

export { Finder, same };
