// Draws over the boxes: evidence, the brushed window, the selection, links, cursors, measurements.

import { AXIS } from "./view.js";
import { NO_ROW, clamp, span } from "./format.js";
import { same } from "../data/finder.js";

class Marks {
  constructor(timeline, painter) {
    Object.assign(this, { t: timeline, painter, pen: painter.pen });
  }

  // Shade evidence and the brushed window: over the boxes, under their names.
  paintShades() {
    const { t, painter } = this;
    const all = { top: t.scroll, bottom: t.scroll + painter.height };
    const firstSide = t.lanes.sides.length > 1 ? t.lanes.sides[0] : all; // findings are about the first run
    for (const [start, end] of t.shades) this.shade(start, end, firstSide, painter.shade, 0.2, 2);
    if (t.window) this.shade(...t.window, all, painter.accent, 0.16, 1);
  }

  // Mark search hits that are too short to be visible.
  paintHits() {
    const { pen, t } = this;
    if (!t.query) return;
    for (const { row, start_ns: start } of t.hits) {
      const x = t.view.x(start);
      if (!t.isVisible(row) || x < 0 || x > this.painter.width) continue;
      const y = t.lanes.top[row];
      pen.fillStyle = this.painter.page;
      pen.fillRect(x - 2, y - 1, 5, t.lanes.heights[row] + 2);
      pen.fillStyle = this.painter.hit;
      pen.fillRect(x - 1, y - 1, 3, t.lanes.heights[row] + 2);
    }
  }

  // Outline the selection, and draw the link between launch and kernel.
  paintSelection() {
    const { t } = this;
    if (t.selected) this.ring(t.selected, 2);
    if (t.hovered && !same(t.hovered, t.selected)) this.ring(t.hovered, 1);
    const linked = t.hovered || t.selected;
    if (linked && linked.partnerRow !== NO_ROW && !Number.isNaN(linked.partnerAt)) this.link(linked);
  }

  shade(start, end, { top, bottom }, colour, alpha, edge) {
    const { pen, t } = this;
    const [a, b] = [t.view.x(start), t.view.x(end)];
    if (b < 0 || a > this.painter.width) return;
    const width = Math.max(b - a, 2);
    pen.fillStyle = colour;
    pen.globalAlpha = alpha;
    // No tint if the whole view is shaded: it would only reduce the contrast.
    if (a > 0 || b < this.painter.width) pen.fillRect(a, top, width, bottom - top);
    pen.globalAlpha = 0.9;
    pen.fillRect(a, top, width, 3);
    if (width > 6) for (const x of [a, b - edge]) pen.fillRect(x, top, edge, bottom - top);
    pen.globalAlpha = 1;
  }

  ring(box, line) {
    const { pen, t } = this;
    const row = t.lanes.visibleRow(box.row);
    if (row < 0) return;
    const x = clamp(t.view.x(box.start), -4, this.painter.width + 4);
    const w = Math.max(clamp(t.view.x(box.start + box.dur), -4, this.painter.width + 4) - x, 2);
    pen.lineWidth = line + 2;
    pen.strokeStyle = this.painter.page;
    pen.strokeRect(x, t.lanes.top[row], w, t.lanes.heights[row]);
    pen.lineWidth = line;
    pen.strokeStyle = this.painter.ink;
    pen.strokeRect(x, t.lanes.top[row], w, t.lanes.heights[row]);
    pen.lineWidth = 1;
  }

  link(box) {
    const { t } = this;
    const [row, partnerRow] = [t.lanes.visibleRow(box.row), t.lanes.visibleRow(box.partnerRow)];
    if (row < 0 || partnerRow < 0) return;
    const edge = (at, other) => t.lanes.top[at] + (t.lanes.top[other] > t.lanes.top[at] ? t.lanes.heights[at] : 0);
    const start = [t.view.x(box.start), edge(row, partnerRow)];
    const end = [t.view.x(box.partnerAt), edge(partnerRow, row)];
    this.arrow(...(box.partnerAt >= box.start ? [start, end] : [end, start]));
  }

  arrow([x0, y0], [x1, y1]) {
    const { pen } = this;
    const [a, b] = [clamp(x0, -1e4, 1e4), clamp(x1, -1e4, 1e4)];
    const bend = Math.max((y1 - y0) / 2, 12);
    const head = Math.sign(y1 - y0) * 6 || 6;
    for (const [colour, width] of [[this.painter.page, 4], [this.painter.ink, 1.5]]) {
      pen.strokeStyle = pen.fillStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(a, y0);
      pen.bezierCurveTo(a, y0 + bend, b, y1 - bend, b, y1 - head);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(b, y1);
      pen.lineTo(b - 4, y1 - head);
      pen.lineTo(b + 4, y1 - head);
      pen.fill();
    }
    pen.lineWidth = 1;
  }

  // Draw the keyboard cursor, and the line under the pointer.
  paintCursors() {
    const { pen, t } = this;
    const at = t.pointer ? t.pointer.x : null;
    if (at !== null) {
      pen.fillStyle = this.painter.soft;
      pen.fillRect(this.painter.snap(at), t.scroll, 1, this.painter.height);
    }
    if (!t.cursorShown || !t.lanes.isShown(t.row)) return;
    const [x, y, h] = [t.view.x(t.cursor.at()), t.lanes.top[t.row], t.lanes.heights[t.row]];
    pen.strokeStyle = this.painter.accent;
    pen.lineWidth = 2;
    pen.strokeRect(1, y - 1, this.painter.width - 2, h + 2);
    pen.lineWidth = 1;
    if (t.selected) return;
    pen.fillStyle = this.painter.page;
    pen.fillRect(x - 2.5, y - 4, 5, h + 8);
    pen.fillStyle = this.painter.accent;
    pen.fillRect(x - 1.5, y - 4, 3, h + 8);
  }

  // Draw both ends of a measurement, and its duration.
  paintMeasure(measure) {
    if (!measure) return;
    const { pen, t } = this;
    const end = measure.end ?? (t.pointer ? t.view.at(t.pointer.x) : t.cursor.at());
    const [a, b] = [t.view.x(Math.min(measure.start, end)), t.view.x(Math.max(measure.start, end))];
    const text = span(Math.abs(end - measure.start));
    const width = this.painter.textWidth(text) + 12;
    const x = clamp((Math.max(a, 0) + Math.min(b, this.painter.width)) / 2 - width / 2, 0, this.painter.width - width);
    pen.fillStyle = this.painter.ink;
    for (const edge of [a, b]) pen.fillRect(this.painter.snap(edge), 0, 1, this.painter.height);
    pen.fillRect(a, AXIS + 9, b - a, 2);
    pen.fillRect(x, AXIS + 1, width, 18);
    pen.fillStyle = this.painter.page;
    pen.fillText(text, x + 6, AXIS + 10.5);
  }
}

export { Marks };
