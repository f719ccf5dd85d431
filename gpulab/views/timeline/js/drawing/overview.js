// Around the lanes: the whole run in a strip, and the colours in view.

import { NEUTRAL, clamp, make, write } from "./format.js";

// The whole run in a strip, with the window in view as a frame to drag.
class Overview {
  constructor(timeline, place) {
    Object.assign(this, { t: timeline, canvas: make("canvas", "overview", place), grabbed: null });
    this.canvas.setAttribute("aria-hidden", "true"); // Home, 0 and the arrows do the same
    this.pen = this.canvas.getContext("2d");
    const options = { signal: timeline.over.signal };
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event), options);
    this.canvas.addEventListener("pointermove", (event) => this.drag(event), options);
    const drop = () => (this.grabbed = null);
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, drop, options);
  }

  grab(event) {
    const { view } = this.t;
    this.canvas.setPointerCapture(event.pointerId);
    const at = this.at(event);
    const inside = at >= view.start && at <= view.end;
    this.grabbed = inside ? at - view.start : view.span / 2;
    this.drag(event);
  }

  drag(event) {
    if (this.grabbed === null) return;
    const first = this.at(event) - this.grabbed;
    this.t.view.jump(first, first + this.t.view.span);
    this.t.moved();
  }

  at(event) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return ((event.clientX - left) / width) * this.t.view.limit;
  }

  // The first rows of a few groups: the ledger, the main thread, the GPUs; others where there is room.
  rows() {
    const { groups, sides } = this.t.lanes;
    const rank = ({ id }) => [/(^|:)ledger$/, /(^|:)thread:0$/, /(^|:)gpu\d+:/, /./].findIndex((each) => each.test(id));
    const most = sides.length > 1 ? 4 : 9;
    const chosen = sides.flatMap((_, side) => {
      const drawn = groups.filter((g) => g.side === side && g.kind === "boxes" && !/(^|:)steps$/.test(g.id));
      return drawn.sort((a, b) => rank(a) - rank(b)).slice(0, most);
    });
    return chosen.map(({ first }) => first).sort((a, b) => a - b);
  }

  paint(dpr) {
    const { pen, canvas, t } = this;
    const [w, h] = [t.root.clientWidth, 34];
    const wide = Math.round(w * dpr);
    if (canvas.width !== wide) Object.assign(canvas, { width: wide, height: Math.round(h * dpr) });
    pen.setTransform(dpr, 0, 0, dpr, 0, 0);
    pen.clearRect(0, 0, w, h);
    const tile = t.tiles.held.get("0/0");
    if (tile) pen.drawImage(this.strip(tile), 0, 2, w, h - 4);
    const scale = w / t.view.limit;
    pen.fillStyle = t.painter.shade;
    for (const [start, end] of t.shades) pen.fillRect(start * scale, 0, Math.max((end - start) * scale, 1.5), 4);
    this.frame(t.view.start * scale, t.view.end * scale, w, h);
  }

  frame(from, to, w, h) {
    const { pen, t } = this;
    const wide = Math.max(to - from, 5);
    const left = clamp(from - (wide - (to - from)) / 2, 0, w - wide);
    pen.globalAlpha = 0.72;
    pen.fillStyle = t.painter.page;
    pen.fillRect(0, 0, left, h);
    pen.fillRect(left + wide, 0, w, h);
    pen.globalAlpha = 1;
    pen.strokeStyle = t.painter.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, 1, wide - 2, h - 2);
  }

  strip(tile) {
    if (this.made === tile && this.picture) return this.picture;
    const rows = this.rows();
    const picture = document.createElement("canvas");
    const each = Math.max(2, Math.floor(30 / Math.max(rows.length, 1)));
    Object.assign(picture, { width: 1024, height: each * Math.max(rows.length, 1) });
    const pen = picture.getContext("2d");
    const bin = 1024 / tile.bins;
    for (const { row, key, share: shares } of tile.binsOf) {
      const at = rows.indexOf(row);
      pen.fillStyle = this.t.painter.colours[key] || NEUTRAL;
      if (at >= 0) shares.forEach((part, b) => {
        pen.globalAlpha = Math.min(1, part / 255 + 0.08 * (part > 0));
        if (part) pen.fillRect(b * bin, at * each, bin, each - 0.5);
      });
    }
    pen.globalAlpha = 1;
    const { start, dur, row, key } = tile.columns;
    for (let i = 0; i < tile.count; i++) {
      const at = rows.indexOf(row[i]);
      pen.fillStyle = this.t.painter.colours[key[i]] || NEUTRAL;
      const scale = 1024 / this.t.view.limit;
      if (at >= 0) pen.fillRect(start[i] * scale, at * each, Math.max(dur[i] * scale, 0.5), each - 0.5);
    }
    Object.assign(this, { made: tile, picture });
    return picture;
  }
}

// Names and colours of what is in view, and no others.
class Legend {
  constructor(timeline, place) {
    Object.assign(this, { t: timeline, shown: "" });
    this.node = make("ul", "legend", place);
    this.node.setAttribute("aria-label", "colours in view");
    this.state = make("div", "state", place);
  }

  update(painter) {
    const keys = this.t.header.keys.map((_, index) => index).filter((index) => painter.seen.has(index));
    if (keys.join() !== this.shown) {
      this.shown = keys.join();
      this.node.replaceChildren();
      for (const index of keys) {
        const line = make("li", "", this.node);
        make("span", "swatch", line).style.background = painter.colours[index];
        make("span", "", line, this.t.header.keys[index].label);
      }
    }
    const said = [];
    if (painter.binned) said.push("showing bins: what is narrower than a pixel is drawn as the share of time it fills");
    const why = this.t.source.offline ? "this file holds no finer detail here" : "the kernel gave no finer detail here";
    if (this.t.poor) said.push(why);
    write(this.state, said.join(" · "));
  }
}

export { Legend, Overview };
