// What is known of a box, in words: said aloud, and shown beside the pointer.

import { NEUTRAL, make, moment, share, span, write } from "../drawing/format.js";
import { same } from "../data/finder.js";

// Says to a screen reader what happened; a zoom that goes on is said once it rests.
class Announcer {
  constructor(root) {
    this.node = make("div", "unseen", root);
    this.node.setAttribute("role", "status");
    this.timer = null;
  }

  say(text, wait = 0) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => write(this.node, text), wait);
  }
}

// What is known of a box, beside the pointer or beside the selection.
class Card {
  constructor(timeline) {
    Object.assign(this, { t: timeline, node: make("div", "card", timeline.root), told: new Map(), timer: null });
    this.node.hidden = true;
    this.node.setAttribute("aria-hidden", "true"); // the same words are announced, and stand under the lanes
  }

  hide() {
    clearTimeout(this.timer);
    this.node.hidden = true;
  }

  box(box, x, y) {
    this.fill(box.name || "no name", this.facts(box), box.key);
    this.place(x, y);
    clearTimeout(this.timer);
    if (!box.note && box.id >= 0) this.timer = setTimeout(() => this.more(box, x, y), 160);
  }

  async more(box, x, y) {
    const { lines } = await this.details(box);
    if (this.node.hidden || !lines.length || !same(box, this.t.hovered || this.t.selected)) return;
    this.fill(box.name, [this.t.finder.measureOf(box), ...lines], box.key);
    this.place(x, y);
  }

  // The source's own words on a box: {name, lines, partner}; a source that cannot say gives what the tile says.
  async details(box) {
    const key = `${box.row} ${box.id} ${box.start}`;
    if (!this.told.has(key)) {
      const known = { name: box.name, lines: (box.note || "").split("\n").filter(Boolean) };
      const answer = box.id >= 0 ? await this.t.source.card(box.row, box.id).catch(() => null) : null;
      if (answer) {
        known.name = String(answer.name || box.name);
        const lines = answer.lines || (answer.note ? String(answer.note).split("\n") : []);
        if (lines.length) known.lines = lines.map(String);
        known.partner = answer.partner || null;
      }
      this.told.set(key, known);
    }
    return this.told.get(key);
  }

  facts(box) {
    return [this.t.finder.measureOf(box), this.t.lanes.title(box.row), ...(box.note || "").split("\n").filter(Boolean)];
  }

  bins(row, at, bins, x, y) {
    const keys = this.t.header.keys;
    const lines = bins.map(({ key, part }) => `${share(part)} ${keys[key] ? keys[key].label : ""}`);
    const idle = 1 - bins.reduce((sum, { part }) => sum + part, 0);
    if (idle > 0.004) lines.push(`${share(idle)} nothing`);
    lines.push(this.t.lanes.title(row), "zoom in to see each");
    this.fill(`${span(bins[0].width)} here, too fine to draw one by one`, lines);
    this.place(x, y);
  }

  curve(group, at, x, y) {
    const lines = [`${group.name} at ${moment(at, this.t.view.span)}`, group.about];
    this.fill(this.t.finder.reading(group, at), lines.filter(Boolean));
    this.place(x, y);
  }

  fill(title, lines, key) {
    clearTimeout(this.timer);
    this.node.replaceChildren();
    const head = make("div", "card-name", this.node, title.length > 240 ? title.slice(0, 240) + "…" : title);
    if (key !== undefined) head.style.borderLeftColor = this.t.painter.colours[key] || NEUTRAL;
    for (const line of lines) make("div", "card-line", this.node, line);
  }

  // Beside the point, and never out of the timeline or out of the window.
  place(x, y) {
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
