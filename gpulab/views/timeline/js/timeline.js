// The timeline: asks its source for the tiles in view, draws them, and computes nothing about the run.
//
// Every name in a tile is data from a trace: it reaches the page through textContent or a canvas only.

import { Announcer, Card } from "./panels/card.js";
import { AXIS, Lanes, View } from "./drawing/view.js";
import { BrushPanel, ChosenPanel, KeysPanel, TablePanel } from "./panels/panels.js";
import { Cursor } from "./panels/cursor.js";
import { Findings, SearchPanel } from "./panels/search.js";
import { Finder } from "./data/finder.js";
import { Keys, Pointer } from "./panels/input.js";
import { Legend, Overview } from "./drawing/overview.js";
import { Painter } from "./drawing/painter.js";
import { Tiles } from "./data/tiles.js";
import { button, clamp, make, moment, reading, span, write } from "./drawing/format.js";

const TALLEST = [560, 760]; // px of lanes, of one run and of two; more lanes than that scroll
const NARROW = 640; // px; below, a lane's label stands above it
const LABELS = 168; // px, the column of labels; timeline.css knows it too

let serial = 0; // ids must differ between the timelines of one page

class Timeline {
  constructor(el, source) {
    Object.assign(this, { source, header: source.header, born: performance.now(), over: new AbortController() });
    Object.assign(this, { scroll: 0, row: 0, pieces: [], painted: 0, waits: [], cursorShown: false, brushing: false });
    Object.assign(this, { shades: [], hits: [], query: "", window: null, measure: null }); // what is marked
    Object.assign(this, { selected: null, hovered: null, pointer: null });
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.view = new View(this.header, () => this.calm.matches);
    this.tiles = new Tiles(source, () => this.ask());
    this.finder = new Finder(this);
    this.cursor = new Cursor(this);
    this.build(el);
    this.stats = this.root.gpulabStats = { frames: [], paints: [], bytes: this.tiles.bytes };
    this.row = this.firstRow();
    this.watch();
    this.measureUp();
  }

  // ---- the parts of the page

  build(el) {
    const { header } = this;
    this.root = make("div", "", el);
    this.root.className = "gpulab-tl";
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", `timeline of ${header.title}`);
    this.root.dataset.lmSuppressShortcuts = "true"; // keys pressed here are not JupyterLab's
    if (this.source.theme) this.root.dataset.theme = this.source.theme;
    this.announcer = new Announcer(this.root);
    this.buildHead(make("div", "head", this.root));
    this.findings = new Findings(this, this.root);
    if (!header.groups.length) return this.buildEmpty();
    this.overview = new Overview(this, this.root);
    this.buildStage(make("div", "frame", this.root));
    this.buildFoot();
    this.card = new Card(this);
    this.pointers = new Pointer(this);
    this.keys = new Keys(this);
  }

  buildHead(head) {
    const title = make("div", "title", head);
    make("strong", "", title, this.header.title);
    make("span", "soft", title, this.header.source);
    if (this.header.watermark) make("span", "watermark", title, this.header.watermark);
    if (!this.header.groups.length) return;
    const tools = make("div", "tools", head);
    tools.setAttribute("role", "group");
    tools.setAttribute("aria-label", "tools of the timeline");
    this.search = new SearchPanel(this, tools);
    button(tools, "−", "zoom out (−)", () => this.zoom(2)).setAttribute("aria-label", "zoom out");
    button(tools, "+", "zoom in (+)", () => this.zoom(0.5)).setAttribute("aria-label", "zoom in");
    button(tools, "all", "the whole run (Home)", () => this.go(0, this.view.limit));
    button(tools, "home", "back to the first view (0)", () => this.go(...this.header.home));
    const about = "mark a window by dragging (as shift + drag does); b takes what is in view";
    const byKey = (event) => event.detail === 0;
    const mark = (event) => (byKey(event) ? this.brushPanel.take() : this.setBrushing(!this.brushing));
    this.brushButton = button(tools, "brush", about, mark);
    this.brushButton.setAttribute("aria-pressed", "false");
    button(tools, "table", "the lane under the cursor as a table (t)", () => this.table.show());
    button(tools, "?", "the keys (?)", () => this.help.show()).setAttribute("aria-label", "keys");
  }

  buildStage(frame) {
    this.frame = frame;
    this.corner = make("div", "corner", frame);
    this.stage = make("div", "stage", frame);
    this.stage.tabIndex = 0;
    this.stage.setAttribute("role", "application");
    this.stage.setAttribute("aria-label", `lanes of ${this.header.title}`);
    const canvas = make("canvas", "canvas", this.stage);
    canvas.setAttribute("aria-hidden", "true");
    this.labels = make("div", "labels", frame);
    this.labelled = make("div", "labelled", this.labels);
    this.thumb = make("div", "thumb", frame);
    this.lanes = new Lanes(this.header, this.labelled, (group) => this.folded(group));
    this.stepRows = new Set(this.lanes.stepsOf.filter(Boolean).map(({ first }) => first));
    this.painter = new Painter(this, canvas);
  }

  buildFoot() {
    this.legend = new Legend(this, this.root);
    this.hint = make("div", "hint", this.root,
      "Click here, then the wheel zooms (ctrl + wheel always does); drag pans, shift + drag marks a window, " +
      "arrows and Enter select, ? lists the keys.");
    this.hint.id = `gpulab-tl-hint-${++serial}`;
    this.stage.setAttribute("aria-describedby", this.hint.id);
    this.panels = make("div", "panels", this.root);
    this.chosen = new ChosenPanel(this, "chosen", () => this.cursor.unselect());
    this.brushPanel = new BrushPanel(this, "brush", () => this.brushPanel.forget());
    this.table = new TablePanel(this, "table");
    this.help = new KeysPanel(this, "keys");
    if (!this.header.notes.length) return;
    const notes = make("ul", "notes", this.root);
    notes.setAttribute("aria-label", "what a reader must know");
    for (const note of this.header.notes) make("li", "", notes, note);
  }

  buildEmpty() {
    const node = make("div", "empty", this.root);
    make("strong", "", node, "There is nothing to draw.");
    for (const note of this.header.notes) make("div", "", node, note);
    this.root.dataset.painted = "1";
    this.root.dataset.firstPaintMs = "0";
  }

  watch() {
    const { signal } = this.over;
    if (!this.stage) return;
    this.resized = new ResizeObserver(() => this.measureUp());
    this.resized.observe(this.root);
    const dress = () => (this.painter.dress(), this.ask());
    this.themed = new MutationObserver(() => {
      dress();
      setTimeout(dress, 600); // JupyterLab names a theme before its style sheet is there
    });
    for (const node of [document.documentElement, document.body]) {
      this.themed.observe(node, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-theme"] });
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress, { signal });
    for (const name of ["focus", "blur"]) this.stage.addEventListener(name, () => this.attend(), { signal });
    this.thumb.addEventListener("pointerdown", (event) => this.grabThumb(event), { signal });
    this.painter.dress();
  }

  // With the focus comes the cursor, unless it came by the pointer.
  attend() {
    this.cursorShown = this.stage.matches(":focus-visible");
    if (this.cursorShown) this.announcer.say(this.cursor.whereAmI(), 400);
    else this.card.hide();
    this.ask();
  }

  // ---- sizes

  measureUp() {
    const width = this.root.clientWidth;
    if (!width || !this.stage) return;
    const narrow = width < NARROW;
    if (narrow !== this.lanes.narrow) this.lanes.arrange(narrow);
    this.root.classList.toggle("gpulab-tl-narrow", narrow);
    this.view.width = Math.max(width - (narrow ? 0 : LABELS), 120);
    this.tall = Math.min(this.lanes.height, TALLEST[Math.min(this.lanes.sides.length, 2) - 1]);
    this.frame.style.height = `${AXIS + this.tall}px`;
    this.painter.size(this.view.width, AXIS + this.tall);
    this.scrollTo(this.scroll);
    this.ask();
  }

  inSight(row) {
    const { lanes } = this;
    const top = lanes.top[row] - this.scroll;
    return lanes.shows(row) && top + lanes.tall[row] >= 0 && top <= this.tall;
  }

  rowAt(y) {
    return this.lanes.rowAt(y - AXIS + this.scroll);
  }

  // True when the lanes moved.
  scrollTo(y) {
    const most = Math.max(this.lanes.height - this.tall, 0);
    const before = this.scroll;
    this.scroll = clamp(Math.round(y), 0, most);
    this.labelled.style.transform = `translateY(${-this.scroll}px)`;
    this.thumb.hidden = most === 0;
    this.thumb.style.height = `${(this.tall * this.tall) / this.lanes.height}px`;
    this.thumb.style.top = `${AXIS + (this.scroll * this.tall) / this.lanes.height}px`;
    this.ask();
    return this.scroll !== before;
  }

  grabThumb(event) {
    const [y, scroll] = [event.clientY, this.scroll];
    this.thumb.setPointerCapture(event.pointerId);
    this.thumb.onpointermove = (move) => this.scrollTo(scroll + ((move.clientY - y) * this.lanes.height) / this.tall);
    this.thumb.onpointerup = this.thumb.onpointercancel = () => (this.thumb.onpointermove = null);
    event.preventDefault();
  }

  reveal(row) {
    if (!this.lanes.shows(row)) return;
    const [top, bottom] = [this.lanes.top[row] - 22, this.lanes.top[row] + this.lanes.tall[row] + 6];
    if (top < this.scroll) this.scrollTo(top);
    else if (bottom > this.scroll + this.tall) this.scrollTo(bottom - this.tall);
  }

  // ---- frames

  ask() {
    if (this.raf || this.over.signal.aborted || !this.stage) return;
    this.askedAt = performance.now();
    this.raf = requestAnimationFrame((now) => this.frameAt(now));
  }

  frameAt(now) {
    this.raf = null;
    if (!this.painter.wide) return;
    // Only frames that follow one another tell how fast pictures can come.
    if (this.askedAt - this.lastFrame < 17) this.note(this.stats.frames, now - this.lastFrame);
    const began = performance.now();
    const moving = this.view.glide(clamp(now - (this.lastFrame || now), 8, 50));
    this.lastFrame = now;
    this.draw(moving);
    this.note(this.stats.paints, performance.now() - began);
    if (moving) this.ask();
  }

  note(list, value) {
    if (list.length >= 4000) list.splice(0, 2000);
    list.push(value);
  }

  draw(moving) {
    const { view, tiles } = this;
    const [start, end] = view.target;
    tiles.want(tiles.levelFor(view.width / (end - start)), start, end); // where a glide passes, nothing is asked
    const level = tiles.levelFor(view.scale);
    Object.assign(this, tiles.cover(level, view.start, view.end));
    this.painter.paint();
    this.overview.paint(this.painter.dpr);
    this.legend.update(this.painter);
    this.readings();
    tiles.prune(new Set(this.pieces.map(({ tile }) => tile)));
    write(this.corner, `${span(view.span)} in view`);
    if (!moving && this.full) this.whole();
  }

  whole() {
    this.root.dataset.painted = String(++this.painted);
    if (!this.root.dataset.firstPaintMs) this.root.dataset.firstPaintMs = (performance.now() - this.born).toFixed(1);
    if (this.selected && this.selected.told) this.cursor.complete();
    for (const wait of this.waits.splice(0)) wait();
  }

  // Once all that is wanted is on screen, or after a while.
  settled() {
    this.ask();
    return new Promise((done) => {
      this.waits.push(done);
      setTimeout(done, 2500);
    });
  }

  readings() {
    const at = this.pointer ? this.view.at(this.pointer.x) : this.cursorShown ? this.cursor.at() : null;
    for (const group of this.lanes.groups) {
      if (!group.value || !this.inSight(group.first)) continue;
      const scale = `${reading(group.low, group)} to ${reading(group.high, group)}`;
      write(group.value, at === null ? scale : this.finder.reading(group, at));
      group.value.classList.toggle("gpulab-tl-soft", at === null);
    }
  }

  // ---- moving

  go(start, end) {
    this.view.go(start, end);
    this.moved();
  }

  pan(part) {
    this.view.pan(part);
    this.moved();
  }

  zoom(factor, at = this.cursor.at()) {
    this.view.zoom(factor, at);
    this.moved();
  }

  moved() {
    this.card.hide();
    this.hovered = null;
    this.used();
    clearTimeout(this.movedTimer);
    this.movedTimer = setTimeout(() => {
      const [start, end] = this.view.target;
      if (this.source.window) this.source.window(Math.round(start), Math.round(end));
    }, 220);
    const [start, end] = this.view.target;
    if (this.focused()) this.announcer.say(`${span(end - start)} in view, from ${moment(start, end - start)}`, 600);
    this.cursor.cardSoon();
  }

  used() {
    if (this.begun) this.hint.hidden = true; // the first move may have been the host's
    this.begun = true;
  }

  focus() {
    this.stage.focus({ preventScroll: true });
  }

  focused() {
    const active = this.root.getRootNode().activeElement;
    return !!active && this.root.contains(active);
  }

  // The lane where the cursor begins: work, not the summary of it.
  firstRow() {
    if (!this.lanes) return 0;
    const group = this.lanes.groups.find(({ id, kind }) => kind === "boxes" && !/(^|:)(steps|ledger)$/.test(id));
    return group ? group.first : this.lanes.order[0];
  }

  // ---- windows, measures, folds

  setBrushing(on) {
    this.brushing = on;
    this.brushButton.setAttribute("aria-pressed", String(on));
    this.stage.classList.toggle("gpulab-tl-marking", on);
  }

  foldHere() {
    const group = this.lanes.groupOf[this.row];
    if (group) this.lanes.fold(group);
  }

  folded(group) {
    if (!this.lanes.shows(this.row)) this.row = this.lanes.standIn(this.row);
    this.measureUp();
    this.announcer.say(`${group.name} ${group.folded ? "folded" : "unfolded"}`);
  }

  binnedIn(row) {
    return this.pieces.some(({ tile }) => tile.binsOf.some((each) => each.row === row));
  }

  // One thing after another: the latest first.
  clear() {
    if (this.brushing) return this.setBrushing(false);
    if (this.measure) this.measure = null;
    else if (this.help.close() || this.cursor.unselect() || this.brushPanel.close() || this.table.close()) return;
    else if (this.query) this.search.clear();
    else this.findings.clear();
  }

  destroy() {
    this.over.abort();
    cancelAnimationFrame(this.raf);
    clearTimeout(this.movedTimer);
    if (this.resized) this.resized.disconnect();
    if (this.themed) this.themed.disconnect();
    this.root.remove();
  }
}

function mount(el, source) {
  const timeline = new Timeline(el, source);
  return {
    root: timeline.root,
    focus: () => timeline.stage && timeline.focus(),
    go: (start, end) => timeline.stage && timeline.go(start, end),
    select: (chosen) => timeline.stage && (chosen ? timeline.cursor.select(chosen) : timeline.cursor.unselect()),
    finding: (index) => timeline.stage && timeline.findings.show(index),
    find: (text) => {
      if (!timeline.stage) return;
      timeline.search.input.value = text;
      timeline.search.type();
    },
    settled: () => (timeline.stage ? timeline.settled() : Promise.resolve()),
    destroy: () => timeline.destroy(),
  };
}

export { mount };
