// Two ways to a place in the run: a name to look for, and the evidence of a finding.

import { button, make, moment, span, write } from "../drawing/format.js";

// A name to look for; what is found as a list, and lit up in the lanes.
class SearchPanel {
  constructor(timeline, place) {
    Object.assign(this, { t: timeline, timer: null, asked: 0, options: [] });
    this.box = make("div", "search", place);
    this.input = make("input", "input", this.box);
    Object.assign(this.input, { type: "search", placeholder: "search ( / )", spellcheck: false, autocomplete: "off" });
    this.input.setAttribute("aria-label", "search the timeline by name");
    this.found = make("div", "found", this.box);
    this.found.hidden = true;
    this.input.addEventListener("input", () => this.type());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.found.addEventListener("keydown", (event) => this.move(event));
  }

  type() {
    clearTimeout(this.timer);
    const text = this.input.value.trim().toLowerCase();
    Object.assign(this.t, { query: text, hits: [] });
    this.t.ask();
    if (text) this.timer = setTimeout(() => this.look(text), 160);
    else this.found.hidden = true;
  }

  async look(text) {
    const ask = ++this.asked;
    const answer = await this.t.source.search(text).catch(() => null);
    if (ask !== this.asked || this.t.query !== text) return;
    this.found.replaceChildren();
    this.found.hidden = false;
    this.options = [];
    const total = this.total(answer, text);
    make("div", "soft", this.found, total);
    this.t.announcer.say(total, 300);
    if (!answer || !answer.count) return;
    this.t.hits = answer.hits;
    this.t.ask();
    this.list(answer);
  }

  total(answer, text) {
    if (!answer) return "Searching needs the kernel that holds the run.";
    if (!answer.count) return `Nothing is named like “${text}”.`;
    return `${answer.count.toLocaleString("en")} found, ${span(answer.total_ns)} in all`;
  }

  list(answer) {
    const names = make("div", "options", this.found);
    names.setAttribute("role", "listbox");
    names.setAttribute("aria-label", "search results");
    const several = answer.names.length > 1 || !answer.hits.length;
    if (several) for (const each of answer.names.slice(0, 12)) {
      const about = `${each.count} ×, ${span(each.total_ns)} in all; goes to the longest`;
      this.option(names, each.name, about, each.longest);
    }
    for (const hit of answer.hits.slice(0, 40)) {
      const where = `${moment(hit.start_ns, this.t.view.span)}, ${this.t.lanes.title(hit.row)}`;
      this.option(names, hit.name, `${span(hit.dur_ns)} at ${where}`, hit);
    }
    this.rove(0);
  }

  option(list, name, about, hit) {
    const node = make("div", "option", list);
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", "false");
    node.tabIndex = -1;
    make("span", "option-name", node, name).title = name;
    make("span", "soft", node, about);
    node.addEventListener("click", () => this.take(this.options.findIndex((each) => each.node === node)));
    this.options.push({ node, hit });
  }

  rove(to, focus = false) {
    this.options.forEach(({ node }, index) => {
      node.tabIndex = index === to ? 0 : -1;
      node.setAttribute("aria-selected", String(index === to));
    });
    this.at = to;
    if (focus && this.options[to]) this.options[to].node.focus();
  }

  key(event) {
    if (event.key === "ArrowDown" && this.options.length) this.rove(this.at, true);
    else if (event.key === "Enter" && this.options.length) this.take(this.at);
    else if (event.key === "Escape") this.clear();
    else return;
    event.preventDefault();
  }

  move(event) {
    const last = this.options.length - 1;
    if (event.key === "ArrowDown") this.rove(Math.min(this.at + 1, last), true);
    else if (event.key === "ArrowUp" && this.at === 0) this.input.focus();
    else if (event.key === "ArrowUp") this.rove(this.at - 1, true);
    else if (event.key === "Home") this.rove(0, true);
    else if (event.key === "End") this.rove(last, true);
    else if (event.key === "Enter" || event.key === " ") this.take(this.at);
    else if (event.key === "Escape") this.clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Goes there; the list closes, the matches stay lit until the search is cleared.
  take(index) {
    const { hit } = this.options[index];
    this.rove(index);
    this.found.hidden = true;
    this.t.focus();
    this.t.cursor.select({ ...hit, told: true });
  }

  clear() {
    clearTimeout(this.timer);
    this.asked++;
    this.input.value = "";
    Object.assign(this.t, { query: "", hits: [] });
    this.options = [];
    this.found.hidden = true;
    this.t.focus();
    this.t.ask();
  }
}

// The findings as chips; each leads through its evidence.
class Findings {
  constructor(timeline, place) {
    Object.assign(this, { t: timeline, current: -1, at: -1, chips: [] });
    this.list = timeline.header.findings;
    this.node = make("div", "findings", place);
    this.node.hidden = !this.list.length;
    const many = ["few", "few", "few", "some"][this.list.length] || "many"; // the claims of many come with a click
    this.node.dataset.many = many;
    this.node.setAttribute("role", "group");
    this.node.setAttribute("aria-label", "findings: each leads to its evidence");
    this.list.forEach((finding, index) => this.chips.push(this.chip(finding, index)));
    this.told = make("div", "claim", place);
    this.told.hidden = true;
  }

  chip(finding, index) {
    const act = () => (index === this.current ? this.step(1) : this.show(index));
    const node = button(this.node, undefined, finding.claim, act, "chip");
    make("span", "chip-rule", node, finding.rule.replaceAll("_", " "));
    make("span", "chip-claim", node, finding.claim);
    node.setAttribute("aria-pressed", "false");
    node.disabled = !finding.spans.length;
    return node;
  }

  // First the place that shows most; from there in the order of time.
  show(index) {
    this.current = index;
    this.t.shades = this.list[index].spans;
    this.places = this.gathered(this.t.shades);
    this.at = this.places.reduce((best, { sum }, place, all) => (sum > all[best].sum ? place : best), 0) - 1;
    this.chips.forEach((chip, each) => chip.setAttribute("aria-pressed", String(each === index)));
    this.step(1);
  }

  // Spans that at the first view's zoom would be seen as one are one place: nobody steps through 200 slivers.
  gathered(spans) {
    const [from, to] = this.t.header.home;
    const near = 0.02 * (to - from);
    const places = [];
    for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
      const last = places.at(-1);
      if (last && start - last.end <= near) {
        last.end = Math.max(last.end, end);
        last.sum += end - start;
      } else places.push({ start, end, sum: end - start });
    }
    return places;
  }

  // To the next piece of evidence, with some of what surrounds it.
  step(by) {
    if (this.current < 0) {
      const first = this.list.findIndex(({ spans }) => spans.length);
      if (first < 0) return this.t.announcer.say("no finding has a place in the timeline");
      return this.show(first);
    }
    const { spans, claim, more } = this.list[this.current];
    const count = this.places.length;
    this.at = (this.at + by + count) % count;
    const { start, end, sum } = this.places[this.at];
    const room = Math.max(end - start, 1000);
    this.t.go(start - 0.6 * room, end + 0.6 * room);
    const among = more ? ` (the ${spans.length} longest of ${spans.length + more} spans are shaded)` : "";
    this.told.hidden = false;
    const where = `${span(sum)} from ${moment(start, 10 * room)}`;
    write(this.told, `${claim} Evidence ${this.at + 1} of ${count}: ${where}${among}.`);
    this.t.announcer.say(this.told.textContent);
    this.t.ask();
  }

  clear() {
    if (this.current < 0) return false;
    Object.assign(this, { current: -1, at: -1 });
    this.t.shades = [];
    this.told.hidden = true;
    for (const chip of this.chips) chip.setAttribute("aria-pressed", "false");
    return true;
  }
}

export { Findings, SearchPanel };
