// The cursor and the selection: select boxes, move between them, measure.

import { AXIS, FINEST_NS } from "../drawing/view.js";
import { NO_ROW, clamp, span } from "../drawing/format.js";
import { same } from "../data/finder.js";

const MAX_VIEWS = 8; // number of views in which the next box is searched for

// The distance in ns of a box from a point in time.
const distanceFrom = (at) => ({ start, dur }) => Math.max(start - at, at - start - dur, 0);

function nearest(boxes, at) {
  const distance = distanceFrom(at);
  return boxes.sort((a, b) => distance(a) - distance(b))[0];
}

class Cursor {
  constructor(timeline) {
    this.t = timeline;
  }

  // The middle of the visible part of the selection, or else of the view.
  at() {
    const { view, selected } = this.t;
    const middle = (view.start + view.end) / 2;
    if (!selected) return middle;
    const [a, b] = [Math.max(selected.start, view.start), Math.min(selected.start + selected.dur, view.end)];
    return a <= b ? (a + b) / 2 : middle;
  }

  describe() {
    const { lanes, finder, row } = this.t;
    const group = lanes.groupOf[row];
    if (!group) return "";
    if (group.kind === "curve") return `${lanes.title(row)}: ${finder.reading(group, this.at())}`;
    const count = finder.boxes(row).length;
    return `${lanes.title(row)}, ${count} ${count === 1 ? "event" : "events"} in view`;
  }

  selectBox(box) {
    const { t } = this;
    t.selected = box;
    t.row = t.lanes.visibleRow(box.row);
    t.reveal(t.row);
    t.hideHint();
    const { row, id, start, dur, name } = box;
    if (t.source.selected) t.source.selected({ row, id, start_ns: start, dur_ns: dur, name });
    t.selection.show(box);
    t.announcer.say(`selected ${name || "an event without a name"}, ${t.finder.durationText(box)}, ${t.lanes.title(row)}`);
    this.showCardSoon();
  }

  // A box that is selected with keys shows its card like one under the pointer.
  showCardSoon() {
    const { t } = this;
    t.requestFrame();
    if (t.selected && t.cursorShown) t.settled().then(() => this.showCard());
  }

  showCard() {
    const { selected, cursorShown, view, lanes, scroll } = this.t;
    if (!selected || !cursorShown || selected.start > view.end || selected.start + selected.dur < view.start) return;
    const row = lanes.visibleRow(selected.row);
    this.t.card.box(selected, view.x(this.at()), AXIS + lanes.top[row] - scroll + lanes.heights[row]);
  }

  unselect() {
    const { t } = this;
    if (!t.selected) return false;
    t.selected = null;
    t.card.hide();
    t.selection.close();
    if (t.source.selected) t.source.selected(null);
    t.requestFrame();
    return true;
  }

  // Go to a box that Python or a search specifies, and select it.
  select({ row, id = -1, start_ns: start, dur_ns: dur, name = "" }) {
    const { lanes, view } = this.t;
    const group = lanes.groupOf[row];
    if (!group) return;
    if (!lanes.isShown(row)) lanes.fold(group, false);
    const pixels = dur * view.scale;
    const width = pixels > 24 && pixels < 0.8 * view.width ? view.span : Math.max(dur * 6, FINEST_NS);
    this.t.go(start + dur / 2 - width / 2, start + dur / 2 + width / 2);
    this.selectBox({ row, id, start, dur, name, note: "", partnerAt: NaN, partnerRow: NO_ROW, partial: true });
  }

  // Add the details of a partial selection when its tile has arrived.
  complete() {
    const { t } = this;
    const { row, start, dur, name, id } = t.selected;
    const candidates = t.finder.boxes(row).filter((box) => Math.abs(box.start - start) < 2 && (id < 0 || box.id === id));
    const best = candidates.find((box) => Math.abs(box.dur - dur) < 2) || candidates[0];
    if (!best) return;
    t.selected = { ...best, name: best.name || name };
    t.selection.show(t.selected);
    t.requestFrame();
  }

  // Select the box under the cursor; zoom in if there are only bins.
  enter() {
    const { t } = this;
    const at = this.at();
    const box = t.finder.box(t.row, at);
    if (box) return same(box, t.selected) ? this.fit() : this.selectBox(box);
    if (t.finder.bins(t.row, at).length) {
      t.announcer.say("events too short to select: zooming in");
      return t.zoom(0.2, at);
    }
    const other = nearest(t.finder.boxes(t.row), at);
    if (other) this.selectBox(other);
    else t.announcer.say(`no event in view: ${this.describe()}`);
  }

  changeRow(by) {
    const { t } = this;
    const { order, groupOf } = t.lanes;
    let index = order.indexOf(t.row);
    if (!t.selected) {
      t.row = order[clamp(index + by, 0, order.length - 1)];
      t.reveal(t.row);
      return t.announcer.say(this.describe(), 120);
    }
    const at = this.at();
    while (order[(index += by)] !== undefined) {
      if (groupOf[order[index]].kind === "curve") continue;
      const other = nearest(t.finder.boxes(order[index]), at);
      if (other) return this.selectInView(other);
    }
    t.announcer.say("no more events in this direction");
  }

  // Select the next box of the lane, and move the view if there is none in it.
  async changeBox(by) {
    const { t } = this;
    const from = t.selected;
    const before = t.view.target;
    for (let tries = 0; tries < MAX_VIEWS && same(from, t.selected); tries++) {
      const next = this.neighbour(from, by);
      if (next) return this.selectInView(next);
      const [start, end] = t.view.target;
      if (by > 0 ? end >= t.view.limit : start <= 0) break;
      t.view.jump(start + 0.7 * by * (end - start), end + 0.7 * by * (end - start));
      t.viewChanged();
      await t.settled();
    }
    if (!same(from, t.selected)) return;
    t.go(...before);
    t.announcer.say("no more events in this direction");
  }

  neighbour(from, by) {
    const boxes = this.t.finder.boxes(from.row);
    const later = (a, b) => a.start > b.start || (a.start === b.start && a.dur < b.dur);
    return by > 0 ? boxes.find((box) => later(box, from)) : boxes.reverse().find((box) => later(from, box));
  }

  selectInView(box) {
    const { view } = this.t;
    const [start, end] = [box.start, box.start + box.dur];
    const width = view.span;
    const middle = (start + end) / 2;
    const isCut = start < view.start || end > view.end;
    if (box.dur < 0.9 * width && isCut) this.t.go(middle - width / 2, middle + width / 2);
    else if (start > view.end - 0.2 * width || end < view.start + 0.2 * width) {
      this.t.go(start - 0.1 * width, start + 0.9 * width);
    }
    this.selectBox(box);
  }

  fit() {
    const { selected, window: brushed } = this.t;
    if (selected) this.t.go(selected.start - 0.1 * selected.dur, selected.start + 1.1 * selected.dur);
    else if (brushed) this.t.go(...brushed);
    else this.t.announcer.say("nothing is selected");
  }

  // Go from a launch to its kernel, or back.
  async goToPartner() {
    const { t } = this;
    const box = t.selected;
    const isLinked = box && box.partnerRow !== NO_ROW && !Number.isNaN(box.partnerAt);
    if (!isLinked) return t.announcer.say("no linked launch or kernel");
    const { partner } = await t.card.details(box);
    if (!same(box, t.selected)) return;
    if (partner) return this.select(partner);
    if (!t.lanes.isShown(box.partnerRow)) t.lanes.fold(t.lanes.groupOf[box.partnerRow], false);
    const { start, end, span: width } = t.view;
    if (box.partnerAt < start || box.partnerAt > end) t.go(box.partnerAt - width / 2, box.partnerAt + width / 2);
    await t.settled();
    const other = t.finder.boxes(box.partnerRow).find((each) => Math.abs(each.start - box.partnerAt) < 1);
    if (other) this.selectBox(other);
    else t.announcer.say("the linked event is too short to select here: zoom in");
  }

  // The time at which a measurement starts or ends; it snaps to the edge of a box nearby.
  markAt() {
    const { pointer, view, selected, measure, finder } = this.t;
    if (!pointer && selected) return measure ? selected.start + selected.dur : selected.start;
    const at = pointer ? view.at(pointer.x) : this.at();
    const row = pointer ? this.t.rowAt(pointer.y) : this.t.row;
    const box = row >= 0 ? finder.box(row, at, 6) : null;
    const edges = box ? [box.start, box.start + box.dur] : [];
    return edges.find((edge) => Math.abs(edge - at) * view.scale < 6) ?? at;
  }

  measure() {
    const { t } = this;
    if (t.measure && t.measure.end !== undefined) t.measure = null;
    if (!t.measure) {
      t.measure = { start: this.markAt() };
      t.announcer.say("measuring: press m again at the other end");
    } else {
      t.measure.end = this.markAt();
      t.announcer.say(`${span(Math.abs(t.measure.end - t.measure.start))} measured`);
    }
    t.requestFrame();
  }
}

export { Cursor };
