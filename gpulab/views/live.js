// The live panel: draws what Python says of a running session (gpulab/views/glance.py), and computes nothing.

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

class Tile {
  constructor(parent) {
    this.node = make("div", "tile", parent);
    const words = make("div", "words", this.node);
    this.label = make("span", "label", words);
    this.value = make("span", "value", words);
    this.note = make("span", "note", words);
    this.graph = make("div", "graph", this.node);
    this.graph.setAttribute("aria-hidden", "true");
    this.kind = null;
  }

  draw(tile) {
    this.node.dataset.hue = tile.hue;
    write(this.label, tile.label);
    write(this.value, tile.value);
    write(this.note, tile.note);
    this.note.title = tile.note;
    this.announce(tile);
    const kind = tile.bars ? "bars" : tile.trail ? "trail" : tile.frac !== null ? "share" : "none";
    if (kind !== this.kind) this.begin(kind);
    if (kind === "bars") this.drawBars(points(tile.bars));
    if (kind === "trail") this.drawTrail(points(tile.trail));
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
    this.graph.append(svg);
  }

  drawTrail(trail) {
    const { line, area } = outline(trail);
    this.svg.setAttribute("viewBox", `0 -4 ${Math.max(trail.length, FEWEST) - 1} 106`);
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
    button.setAttribute("aria-label", state === "stopping" ? "Stopping the cell" : "Stop the cell and show the report");
    words.hidden = state !== "words";
    write(words, "to stop: the interrupt button");
  };
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
  const grid = make("div", "tiles", root);
  const line = make("div", "at", root);
  const tiles = [];

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
    while (tiles.length > now.tiles.length) tiles.pop().node.remove();
    while (tiles.length < now.tiles.length) tiles.push(new Tile(grid));
    now.tiles.forEach((tile, index) => tiles[index].draw(tile));
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
