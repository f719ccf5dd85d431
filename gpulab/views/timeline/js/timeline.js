// The timeline: requests the visible tiles from its source and draws them. It computes nothing about the run.
//
// Every name in a tile is untrusted data from a trace: it reaches the page only through textContent or a canvas.

import { Announcer, Card } from "./panels/card.js";
import { AXIS, Lanes, View } from "./drawing/view.js";
import { BrushPanel, KeysPanel, SelectionPanel, TablePanel } from "./panels/panels.js";
import { Cursor } from "./panels/cursor.js";
import { Findings, SearchPanel } from "./panels/search.js";
import { Finder } from "./data/finder.js";
import { Keys, Pointer } from "./panels/input.js";
import { Legend, Overview } from "./drawing/overview.js";
import { Painter } from "./drawing/painter.js";
import { Tiles } from "./data/tiles.js";
import { button, clamp, make, moment, reading, span, write } from "./drawing/format.js";

const MAX_HEIGHTS = [560, 760]; // px of lanes for one run and for two; higher content scrolls
const NARROW = 640; // px; below this width labels are placed above their lanes
const LABELS = 168; // px, the column of labels; also in timeline.css

let serial = 0; // for ids that are unique among the timelines of a page

class Timeline {
  constructor(el, source) {
    Object.assign(this, { source, header: source.header, created: performance.now(), over: new AbortController() });
    Object.assign(this, { scroll: 0, row: 0, pieces: [], painted: 0, waits: [], cursorShown: false, brushing: false });
    Object.assign(this, { shades: [], hits: [], query: "", window: null, measure: null }); // highlights
    Object.assign(this, { selected: null, hovered: null, pointer: null });
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
    this.view = new View(this.header, () => this.reducedMotion.matches);
    this.tiles = new Tiles(source, () => this.requestFrame());
    this.finder = new Finder(this);
    this.cursor = new Cursor(this);
    this.build(el);
    this.stats = this.root.gpulabStats = { frames: [], paints: [], bytes: this.tiles.bytes };
    this.row = this.firstRow();
    this.watch();
    this.resize();
  }

  // ---- elements

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
    const { source, watermark, sides } = this.header;
    if (sides.length < 2 && source !== watermark) make("span", "soft", title, source); // several runs: above their lanes
    if (watermark) make("span", "watermark", title, watermark);
    if (!this.header.groups.length) return;
    const tools = make("div", "tools", head);
    tools.setAttribute("role", "group");
    tools.setAttribute("aria-label", "timeline tools");
    this.search = new SearchPanel(this, tools);
    button(tools, "−", "zoom out (−)", () => this.zoom(2)).setAttribute("aria-label", "zoom out");
    button(tools, "+", "zoom in (+)", () => this.zoom(0.5)).setAttribute("aria-label", "zoom in");
    button(tools, "whole run", "show the whole run (Home)", () => this.go(0, this.view.limit));
    button(tools, "first view", "back to the initial view (0)", () => this.go(...this.header.home));
    const brushTitle = "analyse a time window: drag to select it (like shift + drag), or press b for the visible window";
    const isKeyPress = (event) => event.detail === 0;
    const brush = (event) => (isKeyPress(event) ? this.brushPanel.take() : this.setBrushing(!this.brushing));
    this.brushButton = button(tools, "analyse window", brushTitle, brush);
    this.brushButton.setAttribute("aria-pressed", "false");
    button(tools, "lane as table", "show the lane at the cursor as a table (t)", () => this.table.show());
    button(tools, "keys", "keyboard shortcuts (?)", () => this.help.show()).setAttribute("aria-label", "keyboard shortcuts");
  }

  buildStage(frame) {
    this.frame = frame;
    this.corner = make("div", "corner", frame);
    this.stage = make("div", "stage", frame);
    this.stage.tabIndex = 0;
    this.stage.setAttribute("role", "application");
    this.stage.setAttribute("aria-label", `timeline lanes of ${this.header.title}`);
    const canvas = make("canvas", "canvas", this.stage);
    canvas.setAttribute("aria-hidden", "true");
    this.labels = make("div", "labels", frame);
    this.labelColumn = make("div", "label-column", this.labels);
    this.thumb = make("div", "thumb", frame);
    this.lanes = new Lanes(this.header, this.labelColumn, (group) => this.foldChanged(group));
    this.stepRows = new Set(this.lanes.stepsOf.filter(Boolean).map(({ first }) => first));
    this.painter = new Painter(this, canvas);
  }

  buildFoot() {
    this.legend = new Legend(this, this.root);
    this.hint = make("div", "hint", this.root,
      "Click the lanes to zoom with the wheel (ctrl + wheel always zooms). Drag to pan, shift + drag to analyse a " +
      "window, arrow keys and Enter to select an event, ? for all shortcuts.");
    this.hint.id = `gpulab-tl-hint-${++serial}`;
    this.stage.setAttribute("aria-describedby", this.hint.id);
    this.panels = make("div", "panels", this.root);
    this.selection = new SelectionPanel(this, "selection", () => this.cursor.unselect());
    this.brushPanel = new BrushPanel(this, "brush", () => this.brushPanel.clearWindow());
    this.table = new TablePanel(this, "table");
    this.help = new KeysPanel(this, "keys");
    if (!this.header.notes.length) return;
    const notes = make("ul", "notes", this.root);
    notes.setAttribute("aria-label", "notes on the recording");
    for (const note of this.header.notes) make("li", "", notes, note);
  }

  buildEmpty() {
    const node = make("div", "empty", this.root);
    make("strong", "", node, "This run has nothing to draw.");
    for (const note of this.header.notes) make("div", "", node, note);
    this.root.dataset.painted = "1";
    this.root.dataset.firstPaintMs = "0";
  }

  watch() {
    const { signal } = this.over;
    if (!this.stage) return;
    this.resizeObserver = new ResizeObserver(() => this.resize());
    this.resizeObserver.observe(this.root);
    const updateTheme = () => (this.painter.readTheme(), this.requestFrame());
    this.themeObserver = new MutationObserver(() => {
      updateTheme();
      setTimeout(updateTheme, 600); // JupyterLab sets the name of a theme before its style sheet is loaded
    });
    for (const node of [document.documentElement, document.body]) {
      this.themeObserver.observe(node, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-theme"] });
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", updateTheme, { signal });
    for (const name of ["focus", "blur"]) this.stage.addEventListener(name, () => this.focusChanged(), { signal });
    this.thumb.addEventListener("pointerdown", (event) => this.grabThumb(event), { signal });
    this.painter.readTheme();
  }

  // Show the cursor when the lanes get the keyboard focus.
  focusChanged() {
    this.cursorShown = this.stage.matches(":focus-visible");
    if (this.cursorShown) this.announcer.say(this.cursor.describe(), 400);
    else this.card.hide();
    this.requestFrame();
  }

  // ---- sizes

  resize() {
    const width = this.root.clientWidth;
    if (!width || !this.stage) return;
    const narrow = width < NARROW;
    if (narrow !== this.lanes.narrow) this.lanes.arrange(narrow);
    this.root.classList.toggle("gpulab-tl-narrow", narrow);
    this.view.width = Math.max(width - (narrow ? 0 : LABELS), 120);
    this.visibleHeight = Math.min(this.lanes.height, MAX_HEIGHTS[Math.min(this.lanes.sides.length, 2) - 1]);
    this.frame.style.height = `${AXIS + this.visibleHeight}px`;
    this.painter.size(this.view.width, AXIS + this.visibleHeight);
    this.scrollTo(this.scroll);
    this.requestFrame();
  }

  isVisible(row) {
    const { lanes } = this;
    const top = lanes.top[row] - this.scroll;
    return lanes.isShown(row) && top + lanes.heights[row] >= 0 && top <= this.visibleHeight;
  }

  rowAt(y) {
    return this.lanes.rowAt(y - AXIS + this.scroll);
  }

  // Return whether the lanes moved.
  scrollTo(y) {
    const maxScroll = Math.max(this.lanes.height - this.visibleHeight, 0);
    const before = this.scroll;
    this.scroll = clamp(Math.round(y), 0, maxScroll);
    this.labelColumn.style.transform = `translateY(${-this.scroll}px)`;
    this.thumb.hidden = maxScroll === 0;
    this.thumb.style.height = `${(this.visibleHeight * this.visibleHeight) / this.lanes.height}px`;
    this.thumb.style.top = `${AXIS + (this.scroll * this.visibleHeight) / this.lanes.height}px`;
    this.requestFrame();
    return this.scroll !== before;
  }

  grabThumb(event) {
    const [y, scroll] = [event.clientY, this.scroll];
    this.thumb.setPointerCapture(event.pointerId);
    this.thumb.onpointermove = (move) => this.scrollTo(scroll + ((move.clientY - y) * this.lanes.height) / this.visibleHeight);
    this.thumb.onpointerup = this.thumb.onpointercancel = () => (this.thumb.onpointermove = null);
    event.preventDefault();
  }

  reveal(row) {
    if (!this.lanes.isShown(row)) return;
    const [top, bottom] = [this.lanes.top[row] - 22, this.lanes.top[row] + this.lanes.heights[row] + 6];
    if (top < this.scroll) this.scrollTo(top);
    else if (bottom > this.scroll + this.visibleHeight) this.scrollTo(bottom - this.visibleHeight);
  }

  // ---- frames

  requestFrame() {
    if (this.raf || this.over.signal.aborted || !this.stage) return;
    this.requestedAt = performance.now();
    this.raf = requestAnimationFrame((now) => this.frameAt(now));
  }

  frameAt(now) {
    this.raf = null;
    if (!this.painter.width) return;
    // Only consecutive frames measure the frame rate.
    if (this.requestedAt - this.lastFrame < 17) this.record(this.stats.frames, now - this.lastFrame);
    const start = performance.now();
    const moving = this.view.glide(clamp(now - (this.lastFrame || now), 8, 50));
    this.lastFrame = now;
    this.draw(moving);
    this.record(this.stats.paints, performance.now() - start);
    if (moving) this.requestFrame();
  }

  record(list, value) {
    if (list.length >= 4000) list.splice(0, 2000);
    list.push(value);
  }

  draw(moving) {
    const { view, tiles } = this;
    const [start, end] = view.target;
    tiles.request(tiles.levelFor(view.width / (end - start)), start, end); // only for the target of an animation
    const level = tiles.levelFor(view.scale);
    Object.assign(this, tiles.cover(level, view.start, view.end));
    this.painter.paint();
    this.overview.paint(this.painter.dpr);
    this.legend.update(this.painter);
    this.updateReadings();
    tiles.prune(new Set(this.pieces.map(({ tile }) => tile)));
    write(this.corner, `${span(view.span)} in view`);
    if (!moving && this.full) this.completed();
  }

  completed() {
    this.root.dataset.painted = String(++this.painted);
    if (!this.root.dataset.firstPaintMs) this.root.dataset.firstPaintMs = (performance.now() - this.created).toFixed(1);
    if (this.selected && this.selected.partial) this.cursor.complete();
    for (const wait of this.waits.splice(0)) wait();
  }

  // Resolve when everything requested is on screen, or after 2.5 s.
  settled() {
    this.requestFrame();
    return new Promise((done) => {
      this.waits.push(done);
      setTimeout(done, 2500);
    });
  }

  updateReadings() {
    const at = this.pointer ? this.view.at(this.pointer.x) : this.cursorShown ? this.cursor.at() : null;
    for (const group of this.lanes.groups) {
      if (!group.value || !this.isVisible(group.first)) continue;
      const scale = `${reading(group.low, group)} to ${reading(group.high, group)}`;
      write(group.value, at === null ? scale : this.finder.reading(group, at));
      group.value.classList.toggle("gpulab-tl-soft", at === null);
    }
  }

  // ---- navigation

  go(start, end) {
    this.view.go(start, end);
    this.viewChanged();
  }

  pan(part) {
    this.view.pan(part);
    this.viewChanged();
  }

  zoom(factor, at = this.cursor.at()) {
    this.view.zoom(factor, at);
    this.viewChanged();
  }

  viewChanged() {
    this.card.hide();
    this.hovered = null;
    this.hideHint();
    clearTimeout(this.windowTimer);
    this.windowTimer = setTimeout(() => {
      const [start, end] = this.view.target;
      if (this.source.window) this.source.window(Math.round(start), Math.round(end));
    }, 220);
    const [start, end] = this.view.target;
    if (this.hasFocus()) this.announcer.say(`${span(end - start)} in view, from ${moment(start, end - start)}`, 600);
    this.cursor.showCardSoon();
  }

  // Hide the hint after the second action: the first one may come from Python.
  hideHint() {
    if (this.used) this.hint.hidden = true;
    this.used = true;
  }

  focus() {
    this.stage.focus({ preventScroll: true });
  }

  hasFocus() {
    const active = this.root.getRootNode().activeElement;
    return !!active && this.root.contains(active);
  }

  // The lane where the cursor starts: a thread or stream, not steps or ledger.
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

  foldChanged(group) {
    if (!this.lanes.isShown(this.row)) this.row = this.lanes.visibleRow(this.row);
    this.resize();
    this.announcer.say(`${group.name} ${group.folded ? "collapsed" : "expanded"}`);
  }

  hasBins(row) {
    return this.pieces.some(({ tile }) => tile.binsOf.some((each) => each.row === row));
  }

  // Undo one highlight or panel per call, the most recent first.
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
    clearTimeout(this.windowTimer);
    if (this.resizeObserver) this.resizeObserver.disconnect();
    if (this.themeObserver) this.themeObserver.disconnect();
    this.root.remove();
  }
}

function mount(el, source) {
  const timeline = new Timeline(el, source);
  return {
    root: timeline.root,
    focus: () => timeline.stage && timeline.focus(),
    go: (start, end) => timeline.stage && timeline.go(start, end),
    select: (box) => timeline.stage && (box ? timeline.cursor.select(box) : timeline.cursor.unselect()),
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
