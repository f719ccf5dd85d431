// The overview strip above the lanes, and the legend below them.

import { NEUTRAL, clamp, make, write } from "./format.js";

// The whole run in a strip, with a frame around the visible window that can be dragged.
class Overview {
  constructor(timeline, parent) {
    Object.assign(this, { t: timeline, canvas: make("canvas", "overview", parent), dragOffset: null });
    this.canvas.setAttribute("aria-hidden", "true"); // keys do the same: Home, 0 and the arrows
    this.pen = this.canvas.getContext("2d");
    const options = { signal: timeline.over.signal };
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event), options);
    this.canvas.addEventListener("pointermove", (event) => this.drag(event), options);
    const drop = () => (this.dragOffset = null);
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, drop, options);
  }

  grab(event) {
    const { view } = this.t;
    this.canvas.setPointerCapture(event.pointerId);
    const at = this.at(event);
    const inside = at >= view.start && at <= view.end;
    this.dragOffset = inside ? at - view.start : view.span / 2;
    this.drag(event);
  }

  drag(event) {
    if (this.dragOffset === null) return;
    const first = this.at(event) - this.dragOffset;
    this.t.view.jump(first, first + this.t.view.span);
    this.t.viewChanged();
  }

  at(event) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return ((event.clientX - left) / width) * this.t.view.limit;
  }

  // Select the first rows of a few groups: ledger, main thread and GPUs; others if there is space.
  rows() {
    const { groups, sides } = this.t.lanes;
    const rank = ({ id }) => [/(^|:)ledger$/, /(^|:)thread:0$/, /(^|:)gpu\d+:/, /./].findIndex((each) => each.test(id));
    const max = sides.length > 1 ? 4 : 9;
    const selected = sides.flatMap(({ lane }, side) => {
      const candidates = groups.filter((g) => g.side === side && g.kind === "boxes" && !/(^|:)steps$/.test(g.id));
      return candidates.sort((a, b) => rank(a) - rank(b)).slice(0, lane ? 1 : max);
    });
    return selected.map(({ first }) => first).sort((a, b) => this.t.lanes.top[a] - this.t.lanes.top[b]);
  }

  paint(dpr) {
    const { pen, canvas, t } = this;
    const [w, h] = [t.root.clientWidth, 34];
    const width = Math.round(w * dpr);
    if (canvas.width !== width) Object.assign(canvas, { width, height: Math.round(h * dpr) });
    pen.setTransform(dpr, 0, 0, dpr, 0, 0);
    pen.clearRect(0, 0, w, h);
    const tile = t.tiles.loaded.get("0/0");
    if (tile) pen.drawImage(this.strip(tile), 0, 2, w, h - 4);
    const scale = w / t.view.limit;
    pen.fillStyle = t.painter.shade;
    for (const [start, end] of t.shades) pen.fillRect(start * scale, 0, Math.max((end - start) * scale, 1.5), 4);
    this.frame(t.view.start * scale, t.view.end * scale, w, h);
  }

  frame(from, to, w, h) {
    const { pen, t } = this;
    const width = Math.max(to - from, 5);
    const left = clamp(from - (width - (to - from)) / 2, 0, w - width);
    pen.globalAlpha = 0.72;
    pen.fillStyle = t.painter.page;
    pen.fillRect(0, 0, left, h);
    pen.fillRect(left + width, 0, w, h);
    pen.globalAlpha = 1;
    pen.strokeStyle = t.painter.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, 1, width - 2, h - 2);
  }

  strip(tile) {
    if (this.pictureTile === tile && this.picture) return this.picture;
    const rows = this.rows();
    const picture = document.createElement("canvas");
    const rowHeight = Math.max(2, Math.floor(30 / Math.max(rows.length, 1)));
    Object.assign(picture, { width: 1024, height: rowHeight * Math.max(rows.length, 1) });
    const pen = picture.getContext("2d");
    const bin = 1024 / tile.bins;
    for (const { row, key, share: shares } of tile.binsOf) {
      const at = rows.indexOf(row);
      pen.fillStyle = this.t.painter.colours[key] || NEUTRAL;
      if (at >= 0) shares.forEach((part, b) => {
        pen.globalAlpha = Math.min(1, part / 255 + 0.08 * (part > 0));
        if (part) pen.fillRect(b * bin, at * rowHeight, bin, rowHeight - 0.5);
      });
    }
    pen.globalAlpha = 1;
    const { start, dur, row, key } = tile.columns;
    for (let i = 0; i < tile.count; i++) {
      const at = rows.indexOf(row[i]);
      pen.fillStyle = this.t.painter.colours[key[i]] || NEUTRAL;
      const scale = 1024 / this.t.view.limit;
      if (at >= 0) pen.fillRect(start[i] * scale, at * rowHeight, Math.max(dur[i] * scale, 0.5), rowHeight - 0.5);
    }
    Object.assign(this, { pictureTile: tile, picture });
    return picture;
  }
}

// The legend of the colours in view.
class Legend {
  constructor(timeline, parent) {
    Object.assign(this, { t: timeline, content: "" });
    this.node = make("ul", "legend", parent);
    this.node.setAttribute("aria-label", "colours in view");
    this.state = make("div", "state", parent);
  }

  update(painter) {
    const isNamed = ({ key }) => key === "step"; // every box of the row "steps" has a name
    const visible = (_, index) => painter.visibleKeys.has(index);
    const keys = this.t.header.keys.flatMap((key, index) => (visible(key, index) && !isNamed(key) ? [index] : []));
    if (keys.join() !== this.content) {
      this.content = keys.join();
      this.node.replaceChildren();
      for (const index of keys) {
        const line = make("li", "", this.node);
        make("span", "swatch", line).style.background = painter.colours[index];
        make("span", "", line, this.t.header.keys[index].label);
      }
      const line = make("li", "", this.node);
      make("span", "swatch", line).classList.add("gpulab-tl-idle");
      make("span", "", line, "no event at this time");
    }
    const notes = [];
    if (painter.binned) notes.push("showing bins: events too short to draw separately appear as the share of time they fill");
    const source = this.t.source.offline ? "this file has" : "the kernel sent";
    if (this.t.poor) notes.push(`${source} no finer detail here`);
    write(this.state, notes.join(" · "));
  }
}

export { Legend, Overview };
