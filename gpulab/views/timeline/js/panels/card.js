// The details of a box: announced to screen readers, and shown in a card next to the pointer.

import { NEUTRAL, make, moment, share, span, write } from "../drawing/format.js";
import { same } from "../data/finder.js";

// Announces changes to screen readers; during a zoom only the final state.
class Announcer {
  constructor(root) {
    this.node = make("div", "announcer", root);
    this.node.setAttribute("role", "status");
    this.timer = null;
  }

  say(text, wait = 0) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => write(this.node, text), wait);
  }
}

// A card with the details of a box, next to the pointer or the selection.
class Card {
  constructor(timeline) {
    Object.assign(this, { t: timeline, node: make("div", "card", timeline.root), cache: new Map(), timer: null });
    this.node.hidden = true;
    this.node.setAttribute("aria-hidden", "true"); // the same text is announced, and shown below the lanes
  }

  hide() {
    clearTimeout(this.timer);
    this.node.hidden = true;
  }

  box(box, x, y) {
    this.fill(box.name || "(no name)", this.facts(box), box.key);
    this.moveTo(x, y);
    clearTimeout(this.timer);
    if (!box.note && box.id >= 0) this.timer = setTimeout(() => this.addDetails(box, x, y), 160);
  }

  async addDetails(box, x, y) {
    const { lines } = await this.details(box);
    if (this.node.hidden || !lines.length || !same(box, this.t.hovered || this.t.selected)) return;
    this.fill(box.name, [this.t.finder.durationText(box), ...lines], box.key);
    this.moveTo(x, y);
  }

  // Query {name, lines, partner} of a box; without an answer, return the content of the tile.
  async details(box) {
    const key = `${box.row} ${box.id} ${box.start}`;
    if (!this.cache.has(key)) {
      const details = { name: box.name, lines: (box.note || "").split("\n").filter(Boolean) };
      const answer = box.id >= 0 ? await this.t.source.card(box.row, box.id).catch(() => null) : null;
      if (answer) {
        details.name = String(answer.name || box.name);
        const lines = answer.lines || (answer.note ? String(answer.note).split("\n") : []);
        if (lines.length) details.lines = lines.map(String);
        details.partner = answer.partner || null;
      }
      this.cache.set(key, details);
    }
    return this.cache.get(key);
  }

  facts(box) {
    const notes = (box.note || "").split("\n").filter(Boolean);
    return [this.t.finder.durationText(box), this.t.lanes.title(box.row), ...notes];
  }

  bins(row, at, bins, x, y) {
    const keys = this.t.header.keys;
    const lines = bins.map(({ key, part }) => `${share(part)} ${keys[key] ? keys[key].label : ""}`);
    const idle = 1 - bins.reduce((sum, { part }) => sum + part, 0);
    if (idle > 0.004) lines.push(`${share(idle)} empty`);
    lines.push(this.t.lanes.title(row), "zoom in to see single events");
    this.fill(`${span(bins[0].width)} of events too short to draw separately`, lines);
    this.moveTo(x, y);
  }

  curve(group, at, x, y) {
    const lines = [`${group.name} at ${moment(at, this.t.view.span)}`, group.about];
    this.fill(this.t.finder.reading(group, at), lines.filter(Boolean));
    this.moveTo(x, y);
  }

  fill(title, lines, key) {
    clearTimeout(this.timer);
    this.node.replaceChildren();
    const head = make("div", "card-name", this.node, title.length > 240 ? title.slice(0, 240) + "…" : title);
    if (key !== undefined) head.style.borderLeftColor = this.t.painter.colours[key] || NEUTRAL;
    for (const line of lines) make("div", "card-line", this.node, line);
  }

  // Show the card next to a point, inside the timeline and the browser window.
  moveTo(x, y) {
    const { node, t } = this;
    node.hidden = false;
    const root = t.root.getBoundingClientRect();
    const stage = t.stage.getBoundingClientRect();
    const [px, py] = [stage.left - root.left + x, stage.top - root.top + y];
    const right = Math.min(root.width, window.innerWidth - root.left) - 4;
    const bottom = Math.min(root.height, window.innerHeight - root.top) - 4;
    const [w, h] = [node.offsetWidth, node.offsetHeight];
    const left = px + 14 + w <= right ? px + 14 : px - 14 - w;
    const top = py + 18 + h <= bottom ? py + 18 : py - 14 - h;
    node.style.left = `${Math.max(left, Math.max(0, -root.left) + 2)}px`;
    node.style.top = `${Math.max(top, Math.max(0, -root.top) + 2)}px`;
  }
}

export { Announcer, Card };
