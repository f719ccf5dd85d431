// Mouse, pen, fingers and keys.

import { AXIS } from "../drawing/view.js";
import { clamp } from "../drawing/format.js";

const KEYS = [
  ["← →", "pan; with a box selected: the previous, the next box of its lane"],
  ["↑ ↓", "the lane above, below"],
  ["shift + ← →", "pan, whatever is selected"],
  ["+ −", "zoom in, out"],
  ["Home, 0", "the whole run, the first view"],
  ["Enter", "select the box under the cursor; where there are bins: zoom into them"],
  ["f", "fit the selection, or the marked window"],
  ["l", "go to the linked box: from launch to kernel and back"],
  ["m", "measure: one press for each end"],
  ["b", "ledger and kernels of the selection, of what was measured, or of what is in view"],
  ["/", "search by name"],
  ["n p", "next, previous evidence of the finding"],
  ["o", "fold or unfold the group of lanes"],
  ["t", "the lane as a table"],
  ["Esc", "clear"],
  ["?", "these keys"],
];

// Mouse, pen and fingers on the lanes.
class Pointer {
  constructor(timeline) {
    Object.assign(this, { t: timeline, down: new Map(), drag: null, apart: 0 });
    const { stage, over } = timeline;
    const on = (name, act, more) =>
      stage.addEventListener(name, (event) => act.call(this, event), { signal: over.signal, ...more });
    on("pointerdown", this.press);
    on("pointermove", this.move);
    on("pointerup", this.lift);
    on("pointercancel", this.lift);
    on("pointerleave", this.leave);
    on("dblclick", this.enter);
    on("wheel", this.wheel, { passive: false });
    const beside = (event) => stage.contains(event.target) || this.wheel(event);
    timeline.frame.addEventListener("wheel", beside, { signal: over.signal, passive: false });
  }

  place(event) {
    const { left, top } = this.t.stage.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  press(event) {
    if (event.button > 0) return;
    const { t } = this;
    t.focus();
    t.cursorShown = false;
    t.stage.setPointerCapture(event.pointerId);
    this.down.set(event.pointerId, this.place(event));
    if (this.down.size === 2) return this.pinch(true);
    const { x, y } = this.place(event);
    const marks = event.shiftKey || t.brushing;
    this.drag = { x, y, at: t.view.at(x), start: t.view.start, scroll: t.scroll, far: false, marks };
  }

  move(event) {
    const { t } = this;
    const place = this.place(event);
    if (this.down.has(event.pointerId)) this.down.set(event.pointerId, place);
    if (this.down.size === 2) return this.pinch(false);
    t.pointer = event.pointerType === "touch" && !this.down.size ? null : place;
    if (!this.drag) return this.hover(place);
    if (Math.hypot(place.x - this.drag.x, place.y - this.drag.y) > 4) this.drag.far = true;
    if (!this.drag.far) return;
    t.card.hide();
    if (this.drag.marks) t.window = [this.drag.at, t.view.at(clamp(place.x, 0, t.view.width))].sort((a, b) => a - b);
    else {
      const start = this.drag.start - (place.x - this.drag.x) / t.view.scale;
      t.view.jump(start, start + t.view.span);
      t.scrollTo(this.drag.scroll - (place.y - this.drag.y));
      t.moved();
    }
    t.ask();
  }

  // Two fingers: what lies between them stays between them.
  pinch(begins) {
    const [a, b] = [...this.down.values()];
    const apart = Math.max(Math.abs(a.x - b.x), 12);
    const middle = (a.x + b.x) / 2;
    if (!begins) {
      const { view } = this.t;
      const at = view.at(this.middle);
      const wide = clamp((view.span * this.apart) / apart, view.finest, view.limit);
      const first = at - (middle / view.width) * wide;
      view.jump(first, first + wide);
      this.t.moved();
    }
    Object.assign(this, { apart, middle, drag: null });
  }

  lift(event) {
    const { t } = this;
    this.down.delete(event.pointerId);
    const { drag } = this;
    this.drag = null;
    if (!drag || event.type === "pointercancel") return;
    if (!drag.far) return this.click(this.place(event));
    if (drag.marks && t.window) {
      t.setBrushing(false);
      t.brushPanel.show(...t.window);
      t.used();
    }
  }

  click({ x, y }) {
    const { t } = this;
    if (t.measure && t.measure.end === undefined) return t.cursor.measure();
    const row = t.rowAt(y);
    const box = row >= 0 ? t.finder.box(row, t.view.at(x)) : null;
    if (row >= 0) t.row = row;
    if (box) t.cursor.choose(box);
    else t.cursor.unselect();
  }

  // What is under the pointer, in words.
  hover({ x, y }) {
    const { t } = this;
    const row = y > AXIS ? t.rowAt(y) : -1;
    const at = t.view.at(x);
    const group = row >= 0 ? t.lanes.groupOf[row] : null;
    const box = group && group.kind === "boxes" ? t.finder.box(row, at) : null;
    t.hovered = box;
    t.ask();
    if (box) return t.card.box(box, x, y);
    const bins = group && group.kind === "boxes" ? t.finder.bins(row, at) : [];
    if (bins.length) t.card.bins(row, at, bins, x, y);
    else if (group && group.kind === "curve") t.card.curve(group, at, x, y);
    else t.card.hide();
  }

  leave() {
    if (this.down.size) return;
    Object.assign(this.t, { pointer: null, hovered: null });
    this.t.card.hide();
    this.t.ask();
  }

  enter(event) {
    const { t } = this;
    const { x, y } = this.place(event);
    const row = t.rowAt(y);
    const box = row >= 0 ? t.finder.box(row, t.view.at(x)) : null;
    if (box) t.go(box.start - box.dur * 0.05, box.start + box.dur * 1.05);
    else t.zoom(0.25, t.view.at(x));
  }

  // A notebook scrolls under a wheel that only passes over; here the wheel zooms once the timeline has the focus.
  wheel(event) {
    const { t } = this;
    const pinched = event.ctrlKey || event.metaKey;
    if (!pinched && !t.focused()) return;
    const size = event.deltaMode === 1 ? 18 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * size, event.deltaY * size];
    if (!pinched && (event.shiftKey || Math.abs(dx) > Math.abs(dy))) {
      t.pan((dx || dy) / t.view.width);
    } else if (!pinched && !t.stage.contains(event.target)) {
      if (!t.scrollTo(t.scroll + dy)) return;
    } else {
      const rate = pinched && Math.abs(dy) < 40 ? 0.01 : 0.002; // a touchpad's pinch comes in small steps
      t.zoom(Math.exp(clamp(dy, -240, 240) * rate), t.view.at(this.place(event).x));
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

// Every key does what the list of keys says, and nothing of the notebook's.
class Keys {
  constructor(timeline) {
    const t = (this.t = timeline);
    this.acts = {
      ArrowLeft: () => this.sideways(-1), ArrowRight: () => this.sideways(1),
      ArrowUp: () => t.cursor.changeRow(-1), ArrowDown: () => t.cursor.changeRow(1),
      "+": () => t.zoom(0.5), "=": () => t.zoom(0.5), "-": () => t.zoom(2), _: () => t.zoom(2),
      Home: () => t.go(0, t.view.limit), 0: () => t.go(...t.header.home),
      "/": () => t.search.input.focus(), f: () => t.cursor.fit(), l: () => t.cursor.linked(),
      m: () => t.cursor.measure(),
      b: () => t.brushPanel.take(), n: () => t.findings.step(1), p: () => t.findings.step(-1), o: () => t.foldHere(),
      t: () => t.table.show(), Enter: () => t.cursor.enter(), Escape: () => t.clear(), "?": () => t.help.show(),
    };
    t.root.addEventListener("keydown", (event) => this.press(event), { signal: t.over.signal });
  }

  sideways(by) {
    if (this.t.selected && !this.shift) this.t.cursor.changeBox(by);
    else this.t.pan(0.15 * by);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { t } = this;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const here = event.target === t.stage;
    if (!here && /^(Enter|Arrow|Home)/.test(event.key)) return; // a button's or a table's own
    const act = this.acts[event.key] || this.acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    t.cursorShown = here;
    if (here) t.pointer = event.key === "m" ? t.pointer : null;
    this.shift = event.shiftKey;
    act();
    t.ask();
  }
}

export { KEYS, Keys, Pointer };
