// Draws sensors and memory as curves.

import { clamp } from "./format.js";

class Curves {
  constructor(timeline, painter) {
    Object.assign(this, { t: timeline, painter, pen: painter.pen });
  }

  paint() {
    for (const group of this.t.lanes.groups) {
      if (group.kind !== "curve" || !this.t.isVisible(group.first)) continue;
      const row = group.first;
      const [top, height] = [this.t.lanes.top[row] + 2, this.t.lanes.heights[row] - 3];
      const range = group.high > group.low ? group.high - group.low : 1;
      const y = (value) => top + height * (1 - clamp((value - group.low) / range, 0, 1));
      for (const piece of this.t.pieces) this.curve(piece, row, y, top + height);
      if (group.threshold !== null && group.threshold !== undefined) this.threshold(y(group.threshold));
      if (this.t.pointer) this.dot(group, y);
    }
  }

  // Mark the reading nearest to the pointer, whose value is shown in the label.
  dot(group, y) {
    const value = this.t.finder.value(group, this.t.view.at(this.t.pointer.x));
    if (!value || Number.isNaN(value.high)) return;
    const { pen } = this;
    pen.fillStyle = this.painter.page;
    pen.strokeStyle = this.painter.accent;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(this.t.view.x(value.at), y(value.high), 3, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    pen.lineWidth = 1;
  }

  threshold(y) {
    const { pen } = this;
    pen.strokeStyle = this.painter.soft;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(0, y);
    pen.lineTo(this.painter.width, y);
    pen.stroke();
    pen.setLineDash([]);
  }

  // Draw line and area of a curve; a gap in the readings is a gap in the picture.
  curve({ tile, a, b }, row, y, floor) {
    const curve = tile.curves.find((each) => each.row === row);
    const [left, right] = [this.t.view.x(Math.max(a, this.t.view.start)), this.t.view.x(Math.min(b, this.t.view.end))];
    if (!curve || left >= right) return;
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(left, y(Infinity) - 2, right - left, 1000);
    pen.clip();
    pen.strokeStyle = pen.fillStyle = this.painter.accent;
    for (let from = 0; from < curve.at.length; from++) {
      if (Number.isNaN(curve.high[from])) continue;
      let to = from;
      while (to + 1 < curve.at.length && !Number.isNaN(curve.high[to + 1])) to++;
      this.segment(curve, from, to, y, floor);
      from = to;
    }
    pen.restore();
  }

  segment(curve, from, to, y, floor) {
    const { pen } = this;
    const points = [];
    for (let i = from; i <= to; i++) points.push([this.t.view.x(curve.at[i]), y(curve.low[i]), y(curve.high[i])]);
    if (from === to) points.push([points[0][0] + 2, points[0][1], points[0][2]]); // a single reading becomes a short dash
    const trace = (column) => points.forEach((point) => pen.lineTo(point[0], point[column]));
    const back = (column) => [...points].reverse().forEach((point) => pen.lineTo(point[0], point[column]));
    pen.globalAlpha = 0.22;
    pen.beginPath();
    pen.moveTo(points[0][0], floor);
    trace(2);
    pen.lineTo(points.at(-1)[0], floor);
    pen.fill();
    pen.globalAlpha = 0.5; // the range between the lowest and the highest of merged readings
    pen.beginPath();
    trace(2);
    back(1);
    pen.fill();
    pen.globalAlpha = 1;
    pen.beginPath();
    trace(2);
    pen.stroke();
  }
}

export { Curves };
