// Panels under the lanes: the selection, a marked window, a lane as a table, the keys.

import { NEUTRAL, NO_ROW, button, make, moment, reading, share, span } from "../drawing/format.js";
import { KEYS } from "./input.js";
import { same } from "../data/finder.js";

const MOST_ROWS = 200; // of the table

// A panel under the lanes, with a heading and a way to close it.
class Panel {
  constructor(timeline, name, closed) {
    Object.assign(this, { t: timeline, closed });
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

  close(back = false) {
    if (this.node.hidden) return false;
    back = back || this.node.contains(this.t.root.getRootNode().activeElement); // the focus is not left in what is gone
    this.node.hidden = true;
    if (this.closed) this.closed();
    if (back) this.t.focus();
    return true;
  }

  table(headings, rows) {
    const place = make("div", "scroll", this.node);
    place.tabIndex = 0;
    place.setAttribute("role", "region");
    place.setAttribute("aria-label", `table: ${this.node.getAttribute("aria-label")}`);
    const table = make("table", "table", place);
    const head = make("tr", "", make("thead", "", table));
    for (const heading of headings) make("th", "", head, heading).scope = "col";
    const body = make("tbody", "", table);
    for (const row of rows) {
      const line = make("tr", "", body);
      row.forEach((cell, column) => (make("td", column ? "number" : "", line, cell).title = column ? "" : cell));
    }
  }
}

class ChosenPanel extends Panel {
  async show(box) {
    const told = await this.t.card.details(box);
    if (!same(box, this.t.selected)) return;
    this.open("Selected");
    button(this.tools, "fit", "zoom to it (f)", () => this.t.cursor.fit());
    const { cursor } = this.t;
    if (box.partnerRow !== NO_ROW) button(this.tools, "linked", "go to the linked box (l)", () => cursor.linked());
    make("div", "chosen", this.node, told.name || "no name").style.borderLeftColor = this.t.painter.colours[box.key];
    const lane = box.id >= 0 && told.lines.length ? [] : [this.t.lanes.title(box.row)]; // the source's lines say where
    const facts = [`${this.t.finder.measureOf(box)}, from ${moment(box.start, 10 * box.dur)}`, ...lane, ...told.lines];
    for (const fact of facts) make("div", "soft", this.node, fact);
  }
}

// A marked window: where its time went, and the kernels in it.
class BrushPanel extends Panel {
  // Of what was measured, else of the selection, else of what is in view.
  take() {
    const { selected, measure, view } = this.t;
    if (measure && measure.end !== undefined) {
      this.show(Math.min(measure.start, measure.end), Math.max(measure.start, measure.end));
    } else if (selected) this.show(selected.start, selected.start + selected.dur);
    else this.show(view.start, view.end);
  }

  forget() {
    this.t.window = null;
    this.t.ask();
  }

  async show(start, end) {
    this.t.window = [start, end];
    this.t.ask();
    const title = `${span(end - start)}, from ${moment(start, end - start)} to ${moment(end, end - start)}`;
    this.open(title);
    const wait = make("div", "soft", this.node, "counting …");
    const answer = await this.t.source.brush(Math.round(start), Math.round(end)).catch(() => null);
    if (!this.t.window || this.t.window[0] !== start || this.t.window[1] !== end) return;
    wait.remove();
    if (!answer) return void make("div", "soft", this.node, "Counting this needs the kernel that holds the run.");
    button(this.tools, "zoom", "zoom to the window (f)", () => this.t.go(start, end));
    for (const side of answer.sides) this.side(side, answer);
    this.t.announcer.say(`${title}: ${answer.sides.map((side) => this.spoken(side)).join("; ")}`);
  }

  spoken(side) {
    const parts = [...side.ledger].sort((a, b) => b.ns - a.ns).slice(0, 4);
    return `${side.name}: ${parts.map(({ label, ns }) => `${label} ${span(ns)}`).join(", ")}`;
  }

  side(side, { start_ns: start, end_ns: end, sides }) {
    if (sides.length > 1) make("div", "heading", this.node, side.name);
    const parts = side.ledger.filter(({ ns }) => ns > 0);
    const colour = (key) => this.t.painter.colours[this.t.header.keys.findIndex((each) => each.key === key)] || NEUTRAL;
    if (parts.length) {
      const bar = make("div", "bar", this.node);
      bar.setAttribute("aria-hidden", "true");
      const list = make("ul", "parts", this.node);
      for (const { key, label, ns } of parts) {
        const piece = make("span", "", bar);
        Object.assign(piece.style, { flexGrow: String(ns), background: colour(key) });
        piece.title = `${label} ${span(ns)}`;
        const line = make("li", "", list);
        make("span", "swatch", line).style.background = colour(key);
        make("span", "", line, `${label} ${span(ns)} (${share(ns / (end - start))})`);
      }
    }
    if (side.note) make("div", "soft", this.node, side.note);
    if (!side.kernels.length) return;
    const rows = side.kernels.map((each) => [each.name, String(each.count), span(each.total_ns), span(each.mean_ns)]);
    this.table(["name", "count", "total", "mean"], rows);
  }
}

// One lane in view, as a table.
class TablePanel extends Panel {
  show(row = this.t.row) {
    const { lanes, finder, view } = this.t;
    this.row = lanes.shows(row) ? row : lanes.order[0];
    if (this.row === undefined) return;
    const group = lanes.groupOf[this.row];
    this.open(`${lanes.title(this.row)}, ${moment(view.start, view.span)} to ${moment(view.end, view.span)}`);
    this.pick();
    if (group.kind === "curve") return this.readings(group);
    const boxes = finder.boxes(this.row);
    const more = boxes.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${boxes.length} boxes.` : "";
    const bins = this.t.binnedIn(this.row) ? "Events too fine to draw one by one are not listed: zoom in." : "";
    const told = [boxes.length ? more : "No boxes in view.", bins].filter(Boolean).join(" ");
    if (told) make("div", "soft", this.node, told);
    const rows = boxes.slice(0, MOST_ROWS).map((box) => [box.name, moment(box.start, view.span), span(box.dur)]);
    if (rows.length) this.table(["name", "start", "duration"], rows);
  }

  readings(group) {
    const { pieces, view } = this.t;
    const rows = [];
    for (const { tile, a, b } of pieces) {
      const curve = tile.curves.find(({ row }) => row === group.first);
      if (curve) curve.at.forEach((at, i) => {
        if (at < Math.max(a, view.start) || at >= Math.min(b, view.end) || rows.length >= MOST_ROWS) return;
        rows.push([moment(at, view.span), reading(curve.low[i], group), reading(curve.high[i], group)]);
      });
    }
    if (rows.length) this.table(["time", "lowest", "highest"], rows);
    else make("div", "soft", this.node, "Nothing was read in this stretch of time.");
  }

  pick() {
    const { lanes } = this.t;
    const select = make("select", "select", this.tools);
    select.setAttribute("aria-label", "lane");
    for (const row of lanes.order) make("option", "", select, lanes.title(row)).value = String(row);
    select.value = String(this.row);
    select.addEventListener("change", () => {
      this.t.row = Number(select.value);
      this.show();
      this.tools.querySelector("select").focus();
      this.t.ask();
    });
  }
}

class KeysPanel extends Panel {
  show() {
    this.open("Keys");
    const list = make("dl", "keys", this.node);
    for (const [key, meaning] of KEYS) {
      make("dt", "", list, key);
      make("dd", "", list, meaning);
    }
    make("div", "soft", this.node, "Pointer: drag pans, shift + drag marks a window, double-click zooms to a box; " +
      "the wheel zooms once the timeline has the focus, ctrl + wheel always, shift + wheel pans.");
  }
}

export { BrushPanel, ChosenPanel, KeysPanel, TablePanel };
