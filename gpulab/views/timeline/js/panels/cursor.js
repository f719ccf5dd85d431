// The cursor and the selection: choosing boxes, walking between them, measuring.

import { AXIS, FINEST_NS } from "../drawing/view.js";
import { NO_ROW, clamp, span } from "../drawing/format.js";
import { same } from "../data/finder.js";

const FURTHER = 8; // how many views the next box is looked for in

// How far a box is from a point in time.
const away = (at) => ({ start, dur }) => Math.max(start - at, at - start - dur, 0);

function nearest(boxes, at) {
  const off = away(at);
  return boxes.sort((a, b) => off(a) - off(b))[0];
}

class Cursor {
  constructor(timeline) {
    this.t = timeline;
  }

  // The middle of the selection where it is in view, else of the view.
  at() {
    const { view, selected } = this.t;
    const middle = (view.start + view.end) / 2;
    if (!selected) return middle;
    const [a, b] = [Math.max(selected.start, view.start), Math.min(selected.start + selected.dur, view.end)];
    return a <= b ? (a + b) / 2 : middle;
  }

  whereAmI() {
    const { lanes, finder, row } = this.t;
    const group = lanes.groupOf[row];
    if (!group) return "";
    if (group.kind === "curve") return `${lanes.title(row)}: ${finder.reading(group, this.at())}`;
    const count = finder.boxes(row).length;
    return `${lanes.title(row)}, ${count} ${count === 1 ? "box" : "boxes"} in view`;
  }

  choose(box) {
    const { t } = this;
    t.selected = box;
    t.row = t.lanes.standIn(box.row);
    t.reveal(t.row);
    t.used();
    const { row, id, start, dur, name } = box;
    if (t.source.selected) t.source.selected({ row, id, start_ns: start, dur_ns: dur, name });
    t.chosen.show(box);
    t.announcer.say(`selected ${name || "a box"}, ${t.finder.measureOf(box)}, ${t.lanes.title(row)}`);
    this.cardSoon();
  }

  // Chosen with keys, a box shows its card as one under the pointer does.
  cardSoon() {
    const { t } = this;
    t.ask();
    if (t.selected && t.cursorShown) t.settled().then(() => this.card());
  }

  card() {
    const { selected, cursorShown, view, lanes, scroll } = this.t;
    if (!selected || !cursorShown || selected.start > view.end || selected.start + selected.dur < view.start) return;
    const row = lanes.standIn(selected.row);
    this.t.card.box(selected, view.x(this.at()), AXIS + lanes.top[row] - scroll + lanes.tall[row]);
  }

  unselect() {
    const { t } = this;
    if (!t.selected) return false;
    t.selected = null;
    t.card.hide();
    t.chosen.close();
    if (t.source.selected) t.source.selected(null);
    t.ask();
    return true;
  }

  // Goes to a box that Python named, and selects it there.
  select({ row, id = -1, start_ns: start, dur_ns: dur, name = "" }) {
    const { lanes, view } = this.t;
    const group = lanes.groupOf[row];
    if (!group) return;
    if (!lanes.shows(row)) lanes.fold(group, false);
    const pixels = dur * view.scale;
    const wide = pixels > 24 && pixels < 0.8 * view.width ? view.span : Math.max(dur * 6, FINEST_NS);
    this.t.go(start + dur / 2 - wide / 2, start + dur / 2 + wide / 2);
    this.choose({ row, id, start, dur, name, note: "", partnerAt: NaN, partnerRow: NO_ROW, told: true });
  }

  // The rest of what a tile knows of the selection, when the tile is there.
  complete() {
    const { t } = this;
    const { row, start, dur, name, id } = t.selected;
    const near = t.finder.boxes(row).filter((box) => Math.abs(box.start - start) < 2 && (id < 0 || box.id === id));
    const best = near.find((box) => Math.abs(box.dur - dur) < 2) || near[0];
    if (!best) return;
    t.selected = { ...best, name: best.name || name };
    t.chosen.show(t.selected);
    t.ask();
  }

  // The box under the cursor; among bins, nearer.
  enter() {
    const { t } = this;
    const at = this.at();
    const box = t.finder.box(t.row, at);
    if (box) return same(box, t.selected) ? this.fit() : this.choose(box);
    if (t.finder.bins(t.row, at).length) {
      t.announcer.say("events too fine to select: zooming in");
      return t.zoom(0.2, at);
    }
    const other = nearest(t.finder.boxes(t.row), at);
    if (other) this.choose(other);
    else t.announcer.say(`no box in view: ${this.whereAmI()}`);
  }

  changeRow(by) {
    const { t } = this;
    const { order, groupOf } = t.lanes;
    let index = order.indexOf(t.row);
    if (!t.selected) {
      t.row = order[clamp(index + by, 0, order.length - 1)];
      t.reveal(t.row);
      return t.announcer.say(this.whereAmI(), 120);
    }
    const at = this.at();
    while (order[(index += by)] !== undefined) {
      if (groupOf[order[index]].kind === "curve") continue;
      const other = nearest(t.finder.boxes(order[index]), at);
      if (other) return this.chooseInView(other);
    }
    t.announcer.say("no box further that way");
  }

  // The next box of the lane; where the view ends, it moves on.
  async changeBox(by) {
    const { t } = this;
    const from = t.selected;
    const before = t.view.target;
    for (let tries = 0; tries < FURTHER && same(from, t.selected); tries++) {
      const next = this.beside(from, by);
      if (next) return this.chooseInView(next);
      const [start, end] = t.view.target;
      if (by > 0 ? end >= t.view.limit : start <= 0) break;
      t.view.jump(start + 0.7 * by * (end - start), end + 0.7 * by * (end - start));
      t.moved();
      await t.settled();
    }
    if (!same(from, t.selected)) return;
    t.go(...before);
    t.announcer.say("no box further that way");
  }

  beside(from, by) {
    const boxes = this.t.finder.boxes(from.row);
    const later = (a, b) => a.start > b.start || (a.start === b.start && a.dur < b.dur);
    return by > 0 ? boxes.find((box) => later(box, from)) : boxes.reverse().find((box) => later(from, box));
  }

  chooseInView(box) {
    const { view } = this.t;
    const [start, end] = [box.start, box.start + box.dur];
    const wide = view.span;
    const middle = (start + end) / 2;
    const cut = start < view.start || end > view.end;
    if (box.dur < 0.9 * wide && cut) this.t.go(middle - wide / 2, middle + wide / 2);
    else if (start > view.end - 0.2 * wide || end < view.start + 0.2 * wide) {
      this.t.go(start - 0.1 * wide, start + 0.9 * wide);
    }
    this.choose(box);
  }

  fit() {
    const { selected, window: marked } = this.t;
    if (selected) this.t.go(selected.start - 0.1 * selected.dur, selected.start + 1.1 * selected.dur);
    else if (marked) this.t.go(...marked);
    else this.t.announcer.say("nothing is selected");
  }

  // From a launch to its kernel, and back.
  async linked() {
    const { t } = this;
    const box = t.selected;
    if (!box || box.partnerRow === NO_ROW || Number.isNaN(box.partnerAt)) return t.announcer.say("no linked box");
    const { partner } = await t.card.details(box);
    if (!same(box, t.selected)) return;
    if (partner) return this.select(partner);
    if (!t.lanes.shows(box.partnerRow)) t.lanes.fold(t.lanes.groupOf[box.partnerRow], false);
    const { start, end, span: wide } = t.view;
    if (box.partnerAt < start || box.partnerAt > end) t.go(box.partnerAt - wide / 2, box.partnerAt + wide / 2);
    await t.settled();
    const other = t.finder.boxes(box.partnerRow).find((each) => Math.abs(each.start - box.partnerAt) < 1);
    if (other) this.choose(other);
    else t.announcer.say("the linked box is too fine to select here: zoom in");
  }

  // Where a measurement begins or ends: at the edge of a box when it is near one.
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
      t.announcer.say("measuring: m again at the other end");
    } else {
      t.measure.end = this.markAt();
      t.announcer.say(`${span(Math.abs(t.measure.end - t.measure.start))} measured`);
    }
    t.ask();
  }
}

export { Cursor };
