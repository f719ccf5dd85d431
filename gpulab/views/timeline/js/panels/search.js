// Search by name, and navigation to the evidence of findings.

import { button, make, moment, span, write } from "../drawing/format.js";

// Search by name: results in a list, and highlighted in the lanes.
class SearchPanel {
  constructor(timeline, parent) {
    Object.assign(this, { t: timeline, timer: null, queries: 0, options: [] });
    this.box = make("div", "search", parent);
    this.input = make("input", "input", this.box);
    Object.assign(this.input, { type: "search", placeholder: "search ( / )", spellcheck: false, autocomplete: "off" });
    this.input.setAttribute("aria-label", "search the timeline by name");
    this.results = make("div", "results", this.box);
    this.results.hidden = true;
    this.input.addEventListener("input", () => this.type());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.results.addEventListener("keydown", (event) => this.move(event));
  }

  type() {
    clearTimeout(this.timer);
    const text = this.input.value.trim().toLowerCase();
    Object.assign(this.t, { query: text, hits: [] });
    this.t.requestFrame();
    if (text) this.timer = setTimeout(() => this.search(text), 160);
    else this.results.hidden = true;
  }

  async search(text) {
    const query = ++this.queries;
    const answer = await this.t.source.search(text).catch(() => null);
    if (query !== this.queries || this.t.query !== text) return;
    this.results.replaceChildren();
    this.results.hidden = false;
    this.options = [];
    const total = this.summary(answer, text);
    make("div", "soft", this.results, total);
    this.t.announcer.say(total, 300);
    if (!answer || !answer.count) return;
    this.t.hits = answer.hits;
    this.t.requestFrame();
    this.list(answer);
  }

  summary(answer, text) {
    if (!answer) return "Not available: the kernel that has this run does not answer.";
    if (!answer.count) return `No name contains “${text}”.`;
    return `${answer.count.toLocaleString("en")} found, ${span(answer.total_ns)} in total`;
  }

  list(answer) {
    const names = make("div", "options", this.results);
    names.setAttribute("role", "listbox");
    names.setAttribute("aria-label", "search results");
    const several = answer.names.length > 1 || !answer.hits.length;
    if (several) for (const each of answer.names.slice(0, 12)) {
      const note = `${each.count} ×, ${span(each.total_ns)} in total; opens the longest`;
      this.option(names, each.name, note, each.longest);
    }
    for (const hit of answer.hits.slice(0, 40)) {
      const position = `${moment(hit.start_ns, this.t.view.span)}, ${this.t.lanes.title(hit.row)}`;
      this.option(names, hit.name, `${span(hit.dur_ns)} at ${position}`, hit);
    }
    this.activate(0);
  }

  option(list, name, note, hit) {
    const node = make("div", "option", list);
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", "false");
    node.tabIndex = -1;
    make("span", "option-name", node, name).title = name;
    make("span", "soft", node, note);
    node.addEventListener("click", () => this.open(this.options.findIndex((each) => each.node === node)));
    this.options.push({ node, hit });
  }

  activate(to, focus = false) {
    this.options.forEach(({ node }, index) => {
      node.tabIndex = index === to ? 0 : -1;
      node.setAttribute("aria-selected", String(index === to));
    });
    this.at = to;
    if (focus && this.options[to]) this.options[to].node.focus();
  }

  key(event) {
    if (event.key === "ArrowDown" && this.options.length) this.activate(this.at, true);
    else if (event.key === "Enter" && this.options.length) this.open(this.at);
    else if (event.key === "Escape") this.clear();
    else return;
    event.preventDefault();
  }

  move(event) {
    const last = this.options.length - 1;
    if (event.key === "ArrowDown") this.activate(Math.min(this.at + 1, last), true);
    else if (event.key === "ArrowUp" && this.at === 0) this.input.focus();
    else if (event.key === "ArrowUp") this.activate(this.at - 1, true);
    else if (event.key === "Home") this.activate(0, true);
    else if (event.key === "End") this.activate(last, true);
    else if (event.key === "Enter" || event.key === " ") this.open(this.at);
    else if (event.key === "Escape") this.clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Go to a result and close the list; matches stay highlighted until the search is cleared.
  open(index) {
    const { hit } = this.options[index];
    this.activate(index);
    this.results.hidden = true;
    this.t.focus();
    this.t.cursor.select(hit);
  }

  clear() {
    clearTimeout(this.timer);
    this.queries++;
    this.input.value = "";
    Object.assign(this.t, { query: "", hits: [] });
    this.options = [];
    this.results.hidden = true;
    this.t.focus();
    this.t.requestFrame();
  }
}

// The findings as buttons that step through their evidence.
class Findings {
  constructor(timeline, parent) {
    Object.assign(this, { t: timeline, current: -1, at: -1, chips: [] });
    this.list = timeline.header.findings;
    this.node = make("div", "findings", parent);
    this.node.hidden = !this.list.length;
    const many = ["few", "few", "few", "some"][this.list.length] || "many"; // with many, claims are shown on click
    this.node.dataset.many = many;
    this.node.setAttribute("role", "group");
    this.node.setAttribute("aria-label", "findings: select one to see its evidence");
    this.list.forEach((finding, index) => this.chips.push(this.chip(finding, index)));
    this.claim = make("div", "claim", parent);
    this.claim.hidden = true;
  }

  chip(finding, index) {
    const onClick = () => (index === this.current ? this.step(1) : this.show(index));
    const node = button(this.node, undefined, finding.claim, onClick, "chip");
    make("span", "chip-rule", node, finding.rule.replaceAll("_", " "));
    make("span", "chip-claim", node, finding.claim);
    node.setAttribute("aria-pressed", "false");
    node.disabled = !finding.spans.length;
    return node;
  }

  // Start with the longest cluster of evidence; continue in the order of time.
  show(index) {
    this.current = index;
    this.t.shades = this.list[index].spans;
    this.clusters = this.cluster(this.t.shades);
    this.at = this.clusters.reduce((best, { sum }, other, all) => (sum > all[best].sum ? other : best), 0) - 1;
    this.chips.forEach((chip, other) => chip.setAttribute("aria-pressed", String(other === index)));
    this.step(1);
  }

  // Merge spans that are indistinguishable at the zoom of the initial view, so that there are few steps.
  cluster(spans) {
    const [from, to] = this.t.header.home;
    const maxGap = 0.02 * (to - from);
    const clusters = [];
    for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
      const last = clusters.at(-1);
      if (last && start - last.end <= maxGap) {
        last.end = Math.max(last.end, end);
        last.sum += end - start;
      } else clusters.push({ start, end, sum: end - start });
    }
    return clusters;
  }

  // Go to the next cluster of evidence, with some context on either side.
  step(by) {
    if (this.current < 0) {
      const first = this.list.findIndex(({ spans }) => spans.length);
      if (first < 0) return this.t.announcer.say("no finding has evidence in the timeline");
      return this.show(first);
    }
    const { spans, claim, more } = this.list[this.current];
    const count = this.clusters.length;
    this.at = (this.at + by + count) % count;
    const { start, end, sum } = this.clusters[this.at];
    const length = Math.max(end - start, 1000);
    this.t.go(start - 0.6 * length, end + 0.6 * length);
    const selection = more ? ` (the ${spans.length} longest of ${spans.length + more} spans are shaded)` : "";
    this.claim.hidden = false;
    const position = `${span(sum)} from ${moment(start, 10 * length)}`;
    write(this.claim, `${claim} Evidence ${this.at + 1} of ${count}: ${position}${selection}.`);
    this.t.announcer.say(this.claim.textContent);
    this.t.requestFrame();
  }

  clear() {
    if (this.current < 0) return false;
    Object.assign(this, { current: -1, at: -1 });
    this.t.shades = [];
    this.claim.hidden = true;
    for (const chip of this.chips) chip.setAttribute("aria-pressed", "false");
    return true;
  }
}

export { Findings, SearchPanel };
