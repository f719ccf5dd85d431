// The live panel: draws what Python says of a running session (gpulab/views/live/panel_content.py), and computes nothing.

const SVG = "http://www.w3.org/2000/svg";
const FEWEST = 25; // a young sparkline is at least this many points wide, its newest point at the right edge

function make(tag, name, parent) {
  const node = document.createElement(tag);
  node.className = "gpulab-" + name;
  parent.append(node);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Python sends points as text, "12,,13": nothing stands for an absent one.
function points(text) {
  return text === "" ? [] : text.split(",").map((point) => (point === "" ? null : Number(point)));
}

// One path for the line and one for the area under it; an absent point leaves a hole.
function outline(trail) {
  const left = Math.max(FEWEST - trail.length, 0);
  const runs = [];
  let open = null;
  trail.forEach((percent, index) => {
    if (percent === null) {
      open = null;
      return;
    }
    if (!open) runs.push((open = []));
    open.push([left + index, 100 - percent]);
  });
  const line = runs.map((run) => "M" + run.map((point) => point.join(" ")).join("L")).join("");
  const area = runs
    .map((run) => `M${run[0][0]} 100L${run.map((point) => point.join(" ")).join("L")}L${run.at(-1)[0]} 100Z`)
    .join("");
  return { line, area };
}

// "oowwwr" as [letter, from, to], so that a band needs one box for each phase and not one for each point.
function stretches(letters) {
  const found = [];
  [...letters].forEach((letter, index) => {
    if (found.length && found.at(-1)[0] === letter) found.at(-1)[2] = index + 1;
    else found.push([letter, index, index + 1]);
  });
  return found;
}

class Tile {
  constructor(parent) {
    this.node = make("div", "tile", parent);
    const words = make("div", "words", this.node);
    this.label = make("span", "label", words);
    this.value = make("span", "value", words);
    this.note = make("span", "note", words);
    this.graph = make("div", "graph", this.node);
    this.graph.setAttribute("aria-hidden", "true");
    this.band = make("div", "band", this.node);
    this.band.setAttribute("aria-hidden", "true");
    this.kind = null;
  }

  draw(tile, phases) {
    this.node.dataset.hue = tile.hue;
    this.node.dataset.mark = tile.mark;
    this.node.classList.toggle("gpulab-small", tile.group !== "");
    write(this.label, tile.label);
    write(this.value, tile.value);
    write(this.note, tile.note);
    this.note.title = tile.note;
    this.announce(tile);
    this.band.hidden = !tile.trail;
    if (tile.trail) this.drawBand(phases, points(tile.trail).length);
    const kind = tile.bars ? "bars" : tile.trail ? "trail" : tile.frac !== null ? "share" : "none";
    if (kind !== this.kind) this.begin(kind);
    if (kind === "bars") this.drawBars(points(tile.bars));
    if (kind === "trail") this.drawTrail(points(tile.trail), tile.limit);
    if (kind === "share") this.fill.style.width = `${100 * tile.frac}%`;
  }

  announce(tile) {
    const known = tile.frac !== null;
    this.node.setAttribute("role", known ? "meter" : "group");
    this.node.setAttribute("aria-label", known ? tile.label : `${tile.label}: ${tile.value} ${tile.note}`);
    for (const [name, value] of [
      ["aria-valuemin", "0"],
      ["aria-valuemax", "100"],
      ["aria-valuenow", String(Math.round(100 * tile.frac))],
      ["aria-valuetext", `${tile.value} ${tile.note}`.trim()],
    ]) {
      if (known) this.node.setAttribute(name, value);
      else this.node.removeAttribute(name);
    }
  }

  begin(kind) {
    this.kind = kind;
    this.graph.replaceChildren();
    this.graph.dataset.kind = kind;
    if (kind === "share") this.fill = make("div", "fill", this.graph);
    if (kind !== "trail") return;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("preserveAspectRatio", "none");
    this.svg = svg;
    this.area = svg.appendChild(document.createElementNS(SVG, "path"));
    this.area.setAttribute("class", "gpulab-area");
    this.line = svg.appendChild(document.createElementNS(SVG, "path"));
    this.line.setAttribute("class", "gpulab-line");
    this.limit = svg.appendChild(document.createElementNS(SVG, "path"));
    this.limit.setAttribute("class", "gpulab-limit");
    this.graph.append(svg);
  }

  drawBand(phases, count) {
    const wide = Math.max(count, FEWEST);
    const found = stretches(phases.slice(-count));
    while (this.band.childElementCount > found.length) this.band.lastChild.remove();
    while (this.band.childElementCount < found.length) make("span", "stretch", this.band);
    found.forEach(([letter, from, to], index) => {
      const node = this.band.children[index];
      node.dataset.phase = letter;
      node.style.left = `${(100 * (wide - count + from)) / wide}%`;
      node.style.width = `${(100 * (to - from)) / wide}%`;
    });
  }

  drawTrail(trail, limit) {
    const { line, area } = outline(trail);
    const right = Math.max(trail.length, FEWEST) - 1;
    this.svg.setAttribute("viewBox", `0 -4 ${right} 106`);
    this.limit.setAttribute("d", limit === null ? "" : `M0 ${100 - limit}L${right} ${100 - limit}`);
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }

  drawBars(bars) {
    while (this.graph.childElementCount > bars.length) this.graph.lastChild.remove();
    while (this.graph.childElementCount < bars.length) make("div", "fill", make("div", "core", this.graph));
    bars.forEach((percent, index) => {
      this.graph.children[index].firstChild.style.height = `${percent}%`;
    });
  }
}

// Where time went so far, as a bar of shares with its words: the words are the text alternative, and always there.
class Bar {
  constructor(parent) {
    this.node = make("div", "bar", parent);
    const words = make("div", "barwords", this.node);
    this.title = make("b", "bartitle", words);
    this.words = make("span", "barsaid", words);
    this.about = make("span", "about", words);
    this.track = make("div", "track", this.node);
    this.track.setAttribute("aria-hidden", "true");
  }

  draw(bar) {
    write(this.title, bar.title);
    write(this.words, bar.words);
    write(this.about, bar.about);
    while (this.track.childElementCount > bar.shares.length) this.track.lastChild.remove();
    while (this.track.childElementCount < bar.shares.length) make("span", "share", this.track);
    bar.shares.forEach((share, index) => {
      const node = this.track.children[index];
      node.dataset.hue = share.hue;
      node.style.width = `${100 * share.frac}%`;
    });
  }
}

// As many drawers in the list as there are things to draw, made and dropped as needed.
function each(drawers, things, make, ...more) {
  while (drawers.length > things.length) drawers.pop().node.remove();
  while (drawers.length < things.length) drawers.push(make());
  things.forEach((thing, index) => drawers[index].draw(thing, ...more));
}

function stopper(model, parent) {
  const place = make("span", "stop", parent);
  const button = make("button", "button", place);
  const words = make("span", "hint", place);
  button.type = "button";
  make("span", "square", button).setAttribute("aria-hidden", "true");
  const text = make("span", "text", button);
  button.addEventListener("click", () => model.send({ kind: "stop" }));
  return () => {
    const state = model.get("stop");
    button.hidden = state !== "button" && state !== "stopping";
    button.disabled = state === "stopping";
    write(text, state === "stopping" ? "stopping" : "Stop");
    const what = model.get("stops");
    button.setAttribute("aria-label", state === "stopping" ? `Stopping ${what}` : `Stop ${what} and show the report`);
    words.hidden = state !== "words";
    write(words, model.get("now").stop);
  };
}

// The words for the marks under the sparklines; only those that can be seen.
function drawKey(key, now) {
  const said = [now.span, ...now.legend.map((entry) => entry.join(""))].join("|");
  if (key.dataset.said === said) return;
  key.dataset.said = said;
  key.replaceChildren();
  key.hidden = !now.legend.length;
  write(make("span", "span", key), now.span);
  for (const [letter, words] of now.legend) {
    const entry = make("span", "entry", key);
    const sample = make("span", "stretch", entry);
    sample.dataset.phase = letter;
    sample.setAttribute("aria-hidden", "true");
    write(make("span", "phasewords", entry), words);
  }
}

function render({ model, el }) {
  const root = make("div", "live", el);
  root.setAttribute("role", "group");
  root.dataset.gpulabKey = model.get("key");
  root.dataset.lmSuppressShortcuts = "true"; // keys pressed here are not JupyterLab's
  const head = make("div", "head", root);
  const phase = make("span", "phase", head);
  make("span", "dot", phase).setAttribute("aria-hidden", "true");
  const said = make("span", "said", phase);
  said.setAttribute("role", "status");
  const name = make("span", "name", head);
  const progress = make("span", "progress", head);
  const elapsed = make("span", "elapsed", head);
  const drawStop = stopper(model, head);
  const alert = make("div", "alert", root);
  alert.setAttribute("aria-hidden", "true"); // its seconds count up: read out is only its beginning, once
  const aloud = make("div", "aloud", root);
  aloud.setAttribute("role", "status");
  const bars = { node: make("div", "bars", root), drawers: [] };
  const groups = ["GPUs", "", "workers"].map((group) => {
    const node = make("div", group ? "smalltiles" : "tiles", root);
    node.dataset.group = group;
    return { group, node, drawers: [] };
  });
  const key = make("div", "key", root);
  const line = make("div", "at", root);

  const draw = () => {
    const now = model.get("now");
    root.setAttribute("aria-label", `gpulab, run ${now.name}, live`);
    root.dataset.phase = now.phase;
    write(said, now.phase);
    write(name, now.name);
    write(progress, now.progress.join(" · "));
    write(elapsed, now.elapsed);
    write(line, now.line);
    line.title = now.line;
    alert.hidden = !now.alert;
    write(alert, now.alert);
    write(aloud, now.alert_said);
    each(bars.drawers, now.bars, () => new Bar(bars.node));
    for (const { group, node, drawers } of groups) {
      const tiles = now.tiles.filter((tile) => tile.group === group);
      each(drawers, tiles, () => new Tile(node), now.phases);
      node.hidden = !tiles.length;
    }
    drawKey(key, now);
  };
  draw();
  drawStop();
  model.on("change:now", draw);
  model.on("change:stop", drawStop);
  // JupyterLab opens a way around the busy cell only once the widget exists: ask again until one question got through.
  const asks = (model.get("hello") ? [100, 300, 800, 2000] : []).map((delay) =>
    setTimeout(() => ["", "words"].includes(model.get("stop")) && model.send({ kind: "hello" }), delay),
  );
  return () => {
    asks.forEach(clearTimeout);
    model.off("change:now", draw);
    model.off("change:stop", drawStop);
    // Cleared by the cell, and not shown anew in the meantime: then it must be displayed again.
    if (model.get("stop") === "done") return;
    setTimeout(() => {
      const elsewhere = document.querySelector(`[data-gpulab-key="${root.dataset.gpulabKey}"]`);
      if (!elsewhere && model.get("stop") === "button") model.send({ kind: "gone" });
    }, 50);
  };
}

export default { render };
