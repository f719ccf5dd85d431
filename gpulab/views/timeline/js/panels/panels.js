// Panels below the lanes: the selection, a time window, a lane as a table, the keyboard shortcuts.

import { NEUTRAL, NO_ROW, button, make, moment, reading, share, span } from "../drawing/format.js";
import { KEYS } from "./input.js";
import { same } from "../data/finder.js";

const MAX_ROWS = 200; // of the table

// A panel below the lanes, with a heading and a close button.
class Panel {
  constructor(timeline, name, onClose) {
    Object.assign(this, { t: timeline, onClose });
    this.node = make("section", "panel", timeline.panels);
    this.node.dataset.panel = name;
    this.node.hidden = true;
  }

  open(title) {
    this.node.hidden = false;
    this.node.replaceChildren();
    const head = make("div", "panel-head", this.node);
    this.node.setAttribute("aria-label", title);
    make("strong", "", head, title);
    this.tools = make("span", "panel-tools", head);
    const close = button(head, "×", "close", () => this.close(true), "button gpulab-tl-close");
    close.setAttribute("aria-label", `close: ${title}`);
    return this.node;
  }

  close(refocus = false) {
    if (this.node.hidden) return false;
    refocus = refocus || this.node.contains(this.t.root.getRootNode().activeElement); // do not lose the focus
    this.node.hidden = true;
    if (this.onClose) this.onClose();
    if (refocus) this.t.focus();
    return true;
  }

  table(headings, rows) {
    const region = make("div", "scroll", this.node);
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `table: ${this.node.getAttribute("aria-label")}`);
    const table = make("table", "table", region);
    const head = make("tr", "", make("thead", "", table));
    for (const heading of headings) make("th", "", head, heading).scope = "col";
    const body = make("tbody", "", table);
    for (const row of rows) {
      const line = make("tr", "", body);
      row.forEach((cell, column) => (make("td", column ? "number" : "", line, cell).title = column ? "" : cell));
    }
  }
}

class SelectionPanel extends Panel {
  async show(box) {
    const details = await this.t.card.details(box);
    if (!same(box, this.t.selected)) return;
    this.open("Selected");
    button(this.tools, "fit", "zoom to the selection (f)", () => this.t.cursor.fit());
    const { cursor } = this.t;
    const isLinked = box.partnerRow !== NO_ROW;
    if (isLinked) button(this.tools, "linked", "go to the linked launch or kernel (l)", () => cursor.goToPartner());
    const name = make("div", "selected-name", this.node, details.name || "(no name)");
    name.style.borderLeftColor = this.t.painter.colours[box.key];
    const lane = box.id >= 0 && details.lines.length ? [] : [this.t.lanes.title(box.row)]; // else the lines contain it
    const duration = `${this.t.finder.durationText(box)}, from ${moment(box.start, 10 * box.dur)}`;
    for (const line of [duration, ...lane, ...details.lines]) make("div", "soft", this.node, line);
  }
}

// The ledger and the kernels of a time window.
class BrushPanel extends Panel {
  // Use the measured interval, or else the selection, or else the visible window.
  take() {
    const { selected, measure, view } = this.t;
    if (measure && measure.end !== undefined) {
      this.show(Math.min(measure.start, measure.end), Math.max(measure.start, measure.end));
    } else if (selected) this.show(selected.start, selected.start + selected.dur);
    else this.show(view.start, view.end);
  }

  clearWindow() {
    this.t.window = null;
    this.t.requestFrame();
  }

  async show(start, end) {
    this.t.window = [start, end];
    this.t.requestFrame();
    const title = `${span(end - start)}, from ${moment(start, end - start)} to ${moment(end, end - start)}`;
    this.open(title);
    const wait = make("div", "soft", this.node, "computing …");
    const answer = await this.t.source.brush(Math.round(start), Math.round(end)).catch(() => null);
    if (!this.t.window || this.t.window[0] !== start || this.t.window[1] !== end) return;
    wait.remove();
    if (!answer) return void make("div", "soft", this.node, "Not available: the kernel that has this run does not answer.");
    button(this.tools, "zoom", "zoom to the window (f)", () => this.t.go(start, end));
    for (const side of answer.sides) if (!side.lane) this.side(side, answer);
    for (const side of answer.sides) if (side.lane) this.lane(side);
    const runs = answer.sides.filter(({ lane }) => !lane); // the ranks are listed in the panel
    this.t.announcer.say(`${title}: ${runs.map((side) => this.summary(side)).join("; ")}`);
  }

  summary(side) {
    const parts = [...side.ledger].sort((a, b) => b.ns - a.ns).slice(0, 4);
    return `${side.name}: ${parts.map(({ label, ns }) => `${label} ${span(ns)}`).join(", ")}`;
  }

  colour(key) {
    return this.t.painter.colours[this.t.header.keys.findIndex((each) => each.key === key)] || NEUTRAL;
  }

  bar(parts) {
    const bar = make("div", "bar", this.node);
    bar.setAttribute("aria-hidden", "true");
    for (const { key, label, ns } of parts) {
      const segment = make("span", "", bar);
      Object.assign(segment.style, { flexGrow: String(ns), background: this.colour(key) });
      segment.title = `${label} ${span(ns)}`;
    }
  }

  // A rank that has a lane: its ledger as a bar, with the largest parts.
  lane(side) {
    const parts = side.ledger.filter(({ ns }) => ns > 0);
    if (!parts.length) return;
    make("div", "soft", this.node, this.summary(side));
    this.bar(parts);
  }

  side(side, { start_ns: start, end_ns: end, sides }) {
    if (sides.length > 1) make("div", "heading", this.node, side.name);
    const parts = side.ledger.filter(({ ns }) => ns > 0);
    if (parts.length) {
      this.bar(parts);
      const list = make("ul", "parts", this.node);
      for (const { key, label, ns } of parts) {
        const line = make("li", "", list);
        make("span", "swatch", line).style.background = this.colour(key);
        make("span", "", line, `${label} ${span(ns)} (${share(ns / (end - start))})`);
      }
    }
    if (side.note) make("div", "soft", this.node, side.note);
    if (!side.kernels.length) return;
    const rows = side.kernels.map((each) => [each.name, String(each.count), span(each.total_ns), span(each.mean_ns)]);
    this.table(["name", "count", "total", "mean"], rows);
  }
}

// The visible part of a lane as a table.
class TablePanel extends Panel {
  show(row = this.t.row) {
    const { lanes, finder, view } = this.t;
    this.row = lanes.isShown(row) ? row : lanes.order[0];
    if (this.row === undefined) return;
    const group = lanes.groupOf[this.row];
    this.open(`${lanes.title(this.row)}, ${moment(view.start, view.span)} to ${moment(view.end, view.span)}`);
    this.addLaneMenu();
    if (group.kind === "curve") return this.readings(group);
    const boxes = finder.boxes(this.row);
    const more = boxes.length > MAX_ROWS ? `The first ${MAX_ROWS} of ${boxes.length} events.` : "";
    const bins = this.t.hasBins(this.row) ? "Zoom in to list events that are too short to draw separately." : "";
    const note = [boxes.length ? more : "No events in view.", bins].filter(Boolean).join(" ");
    if (note) make("div", "soft", this.node, note);
    const rows = boxes.slice(0, MAX_ROWS).map((box) => [box.name, moment(box.start, view.span), span(box.dur)]);
    if (rows.length) this.table(["name", "start", "duration"], rows);
  }

  readings(group) {
    const { pieces, view } = this.t;
    const rows = [];
    for (const { tile, a, b } of pieces) {
      const curve = tile.curves.find(({ row }) => row === group.first);
      if (curve) curve.at.forEach((at, i) => {
        if (at < Math.max(a, view.start) || at >= Math.min(b, view.end) || rows.length >= MAX_ROWS) return;
        rows.push([moment(at, view.span), reading(curve.low[i], group), reading(curve.high[i], group)]);
      });
    }
    if (rows.length) this.table(["time", "lowest", "highest"], rows);
    else make("div", "soft", this.node, "No readings in view.");
  }

  addLaneMenu() {
    const { lanes } = this.t;
    const select = make("select", "select", this.tools);
    select.setAttribute("aria-label", "lane");
    for (const row of lanes.order) make("option", "", select, lanes.title(row)).value = String(row);
    select.value = String(this.row);
    select.addEventListener("change", () => {
      this.t.row = Number(select.value);
      this.show();
      this.tools.querySelector("select").focus();
      this.t.requestFrame();
    });
  }
}

class KeysPanel extends Panel {
  show() {
    this.open("Keyboard shortcuts");
    const list = make("dl", "keys", this.node);
    for (const [key, meaning] of KEYS) {
      make("dt", "", list, key);
      make("dd", "", list, meaning);
    }
    make("div", "soft", this.node, "Mouse: drag to pan, shift + drag to analyse a window, double-click to zoom to an " +
      "event. The wheel zooms while the timeline has the focus, ctrl + wheel always zooms, shift + wheel pans.");
  }
}

export { BrushPanel, KeysPanel, SelectionPanel, TablePanel };
