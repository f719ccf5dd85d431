// Mouse, pen, touch and keyboard input.

import { AXIS } from "../drawing/view.js";
import { clamp } from "../drawing/format.js";

const KEYS = [
  ["← →", "pan; with an event selected: previous or next event of the lane"],
  ["↑ ↓", "lane above or below"],
  ["shift + ← →", "pan, also with an event selected"],
  ["+ −", "zoom in or out"],
  ["Home", "show the whole run"],
  ["0", "back to the initial view"],
  ["Enter", "select the event under the cursor, or zoom in if events are too short"],
  ["f", "zoom to the selected event or window"],
  ["l", "go from a launch to its kernel, or back"],
  ["m", "measure: press once at either end"],
  ["b", "time by cause and kernels of the measured interval, the selected event, or the visible window"],
  ["/", "search by name"],
  ["n p", "next or previous evidence of the finding"],
  ["o", "collapse or expand the group of lanes"],
  ["t", "show the lane as a table"],
  ["Esc", "clear selection, search and panels one by one"],
  ["?", "show keyboard shortcuts"],
];

// Mouse, pen and touch input on the lanes.
class Pointer {
  constructor(timeline) {
    Object.assign(this, { t: timeline, down: new Map(), drag: null, distance: 0 });
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
    const onLabels = (event) => stage.contains(event.target) || this.wheel(event);
    timeline.frame.addEventListener("wheel", onLabels, { signal: over.signal, passive: false });
  }

  position(event) {
    const { left, top } = this.t.stage.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  press(event) {
    if (event.button > 0) return;
    const { t } = this;
    t.focus();
    t.cursorShown = false;
    t.stage.setPointerCapture(event.pointerId);
    this.down.set(event.pointerId, this.position(event));
    if (this.down.size === 2) return this.pinch(true);
    const { x, y } = this.position(event);
    const brushes = event.shiftKey || t.brushing;
    this.drag = { x, y, at: t.view.at(x), start: t.view.start, scroll: t.scroll, moved: false, brushes };
  }

  move(event) {
    const { t } = this;
    const point = this.position(event);
    if (this.down.has(event.pointerId)) this.down.set(event.pointerId, point);
    if (this.down.size === 2) return this.pinch(false);
    t.pointer = event.pointerType === "touch" && !this.down.size ? null : point;
    if (!this.drag) return this.hover(point);
    if (Math.hypot(point.x - this.drag.x, point.y - this.drag.y) > 4) this.drag.moved = true;
    if (!this.drag.moved) return;
    t.card.hide();
    if (this.drag.brushes) t.window = [this.drag.at, t.view.at(clamp(point.x, 0, t.view.width))].sort((a, b) => a - b);
    else {
      const start = this.drag.start - (point.x - this.drag.x) / t.view.scale;
      t.view.jump(start, start + t.view.span);
      t.scrollTo(this.drag.scroll - (point.y - this.drag.y));
      t.viewChanged();
    }
    t.requestFrame();
  }

  // Zoom with two fingers: the time under either finger stays under it.
  pinch(starts) {
    const [a, b] = [...this.down.values()];
    const distance = Math.max(Math.abs(a.x - b.x), 12);
    const middle = (a.x + b.x) / 2;
    if (!starts) {
      const { view } = this.t;
      const at = view.at(this.middle);
      const width = clamp((view.span * this.distance) / distance, view.finest, view.limit);
      const first = at - (middle / view.width) * width;
      view.jump(first, first + width);
      this.t.viewChanged();
    }
    Object.assign(this, { distance, middle, drag: null });
  }

  lift(event) {
    const { t } = this;
    this.down.delete(event.pointerId);
    const { drag } = this;
    this.drag = null;
    if (!drag || event.type === "pointercancel") return;
    if (!drag.moved) return this.click(this.position(event));
    if (drag.brushes && t.window) {
      t.setBrushing(false);
      t.brushPanel.show(...t.window);
      t.hideHint();
    }
  }

  click({ x, y }) {
    const { t } = this;
    if (t.measure && t.measure.end === undefined) return t.cursor.measure();
    const row = t.rowAt(y);
    const box = row >= 0 ? t.finder.box(row, t.view.at(x)) : null;
    if (row >= 0) t.row = row;
    if (box) t.cursor.selectBox(box);
    else t.cursor.unselect();
  }

  // Show a card for the box, bin or curve under the pointer.
  hover({ x, y }) {
    const { t } = this;
    const row = y > AXIS ? t.rowAt(y) : -1;
    const at = t.view.at(x);
    const group = row >= 0 ? t.lanes.groupOf[row] : null;
    const box = group && group.kind === "boxes" ? t.finder.box(row, at) : null;
    t.hovered = box;
    t.requestFrame();
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
    this.t.requestFrame();
  }

  enter(event) {
    const { t } = this;
    const { x, y } = this.position(event);
    const row = t.rowAt(y);
    const box = row >= 0 ? t.finder.box(row, t.view.at(x)) : null;
    if (box) t.go(box.start - box.dur * 0.05, box.start + box.dur * 1.05);
    else t.zoom(0.25, t.view.at(x));
  }

  // Without the focus the wheel scrolls the notebook; with the focus it zooms.
  wheel(event) {
    const { t } = this;
    const isPinch = event.ctrlKey || event.metaKey;
    if (!isPinch && !t.hasFocus()) return;
    const size = event.deltaMode === 1 ? 18 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * size, event.deltaY * size];
    if (!isPinch && (event.shiftKey || Math.abs(dx) > Math.abs(dy))) {
      t.pan((dx || dy) / t.view.width);
    } else if (!isPinch && !t.stage.contains(event.target)) {
      if (!t.scrollTo(t.scroll + dy)) return;
    } else {
      const rate = isPinch && Math.abs(dy) < 40 ? 0.01 : 0.002; // a pinch on a touchpad arrives in small steps
      t.zoom(Math.exp(clamp(dy, -240, 240) * rate), t.view.at(this.position(event).x));
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

// The keyboard shortcuts; a key that is handled here does not reach the notebook.
class Keys {
  constructor(timeline) {
    const t = (this.t = timeline);
    this.actions = {
      ArrowLeft: () => this.moveSideways(-1), ArrowRight: () => this.moveSideways(1),
      ArrowUp: () => t.cursor.changeRow(-1), ArrowDown: () => t.cursor.changeRow(1),
      "+": () => t.zoom(0.5), "=": () => t.zoom(0.5), "-": () => t.zoom(2), _: () => t.zoom(2),
      Home: () => t.go(0, t.view.limit), 0: () => t.go(...t.header.home),
      "/": () => t.search.input.focus(), f: () => t.cursor.fit(), l: () => t.cursor.goToPartner(),
      m: () => t.cursor.measure(),
      b: () => t.brushPanel.take(), n: () => t.findings.step(1), p: () => t.findings.step(-1), o: () => t.foldHere(),
      t: () => t.table.show(), Enter: () => t.cursor.enter(), Escape: () => t.clear(), "?": () => t.help.show(),
    };
    t.root.addEventListener("keydown", (event) => this.press(event), { signal: t.over.signal });
  }

  moveSideways(by) {
    if (this.t.selected && !this.shift) this.t.cursor.changeBox(by);
    else this.t.pan(0.15 * by);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { t } = this;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const onStage = event.target === t.stage;
    if (!onStage && /^(Enter|Arrow|Home)/.test(event.key)) return; // belongs to a button or a table
    const action = this.actions[event.key] || this.actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    t.cursorShown = onStage;
    if (onStage) t.pointer = event.key === "m" ? t.pointer : null;
    this.shift = event.shiftKey;
    action();
    t.requestFrame();
  }
}

export { KEYS, Keys, Pointer };
