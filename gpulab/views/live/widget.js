// The live panel: draws the content that Python sends (gpulab/views/live/panel_content.py), and computes nothing.

const SVG = "http://www.w3.org/2000/svg";
const MIN_POINTS = 25; // a new sparkline is at least this many points wide, its newest point at the right edge

function addElement(tag, name, parent) {
  const node = document.createElement(tag);
  node.className = "gpulab-" + name;
  parent.append(node);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Parse points, which Python sends as text, "12,,13": an empty item is an absent point.
function parsePoints(text) {
  return text === "" ? [] : text.split(",").map((point) => (point === "" ? null : Number(point)));
}

// Compute the SVG paths of the line and of the area under it; an absent point leaves a gap.
function outline(trail) {
  const left = Math.max(MIN_POINTS - trail.length, 0);
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

// Split "oowwwr" into [letter, from, to] segments, so that a band needs one element per phase, not one per point.
function phaseSegments(letters) {
  const segments = [];
  [...letters].forEach((letter, index) => {
    if (segments.length && segments.at(-1)[0] === letter) segments.at(-1)[2] = index + 1;
    else segments.push([letter, index, index + 1]);
  });
  return segments;
}

class Tile {
  constructor(parent) {
    this.node = addElement("div", "tile", parent);
    const labels = addElement("div", "labels", this.node);
    this.label = addElement("span", "label", labels);
    this.value = addElement("span", "value", labels);
    this.note = addElement("span", "note", labels);
    this.graph = addElement("div", "graph", this.node);
    this.graph.setAttribute("aria-hidden", "true");
    this.band = addElement("div", "band", this.node);
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
    this.describe(tile);
    this.band.hidden = !tile.trail;
    if (tile.trail) this.drawBand(phases, parsePoints(tile.trail).length);
    const kind = tile.bars ? "bars" : tile.trail ? "trail" : tile.frac !== null ? "share" : "none";
    if (kind !== this.kind) this.createGraph(kind);
    if (kind === "bars") this.drawBars(parsePoints(tile.bars));
    if (kind === "trail") this.drawTrail(parsePoints(tile.trail), tile.limit);
    if (kind === "share") this.fill.style.width = `${100 * tile.frac}%`;
  }

  // Set the ARIA role and attributes.
  describe(tile) {
    const isMeter = tile.frac !== null;
    this.node.setAttribute("role", isMeter ? "meter" : "group");
    this.node.setAttribute("aria-label", isMeter ? tile.label : `${tile.label}: ${tile.value} ${tile.note}`);
    for (const [name, value] of [
      ["aria-valuemin", "0"],
      ["aria-valuemax", "100"],
      ["aria-valuenow", String(Math.round(100 * tile.frac))],
      ["aria-valuetext", `${tile.value} ${tile.note}`.trim()],
    ]) {
      if (isMeter) this.node.setAttribute(name, value);
      else this.node.removeAttribute(name);
    }
  }

  createGraph(kind) {
    this.kind = kind;
    this.graph.replaceChildren();
    this.graph.dataset.kind = kind;
    if (kind === "share") this.fill = addElement("div", "fill", this.graph);
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
    const width = Math.max(count, MIN_POINTS);
    const segments = phaseSegments(phases.slice(-count));
    while (this.band.childElementCount > segments.length) this.band.lastChild.remove();
    while (this.band.childElementCount < segments.length) addElement("span", "segment", this.band);
    segments.forEach(([letter, from, to], index) => {
      const node = this.band.children[index];
      node.dataset.phase = letter;
      node.style.left = `${(100 * (width - count + from)) / width}%`;
      node.style.width = `${(100 * (to - from)) / width}%`;
    });
  }

  drawTrail(trail, limit) {
    const { line, area } = outline(trail);
    const right = Math.max(trail.length, MIN_POINTS) - 1;
    this.svg.setAttribute("viewBox", `0 -4 ${right} 106`);
    this.limit.setAttribute("d", limit === null ? "" : `M0 ${100 - limit}L${right} ${100 - limit}`);
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }

  drawBars(bars) {
    while (this.graph.childElementCount > bars.length) this.graph.lastChild.remove();
    while (this.graph.childElementCount < bars.length) addElement("div", "fill", addElement("div", "core", this.graph));
    bars.forEach((percent, index) => {
      this.graph.children[index].firstChild.style.height = `${percent}%`;
    });
  }
}

// The time so far as a bar of shares, with a text summary, which is always shown and serves as text alternative.
class Bar {
  constructor(parent) {
    this.node = addElement("div", "bar", parent);
    const labels = addElement("div", "barlabels", this.node);
    this.title = addElement("b", "bartitle", labels);
    this.summary = addElement("span", "barsummary", labels);
    this.note = addElement("span", "barnote", labels);
    this.track = addElement("div", "track", this.node);
    this.track.setAttribute("aria-hidden", "true");
  }

  draw(bar) {
    write(this.title, bar.title);
    write(this.summary, bar.summary);
    write(this.note, bar.note);
    while (this.track.childElementCount > bar.shares.length) this.track.lastChild.remove();
    while (this.track.childElementCount < bar.shares.length) addElement("span", "share", this.track);
    bar.shares.forEach((share, index) => {
      const node = this.track.children[index];
      node.dataset.hue = share.hue;
      node.style.width = `${100 * share.frac}%`;
    });
  }
}

// Draw each item with a component of its own; components are created and removed as needed.
function drawAll(components, items, create, ...args) {
  while (components.length > items.length) components.pop().node.remove();
  while (components.length < items.length) components.push(create());
  items.forEach((item, index) => components[index].draw(item, ...args));
}

// Add the Stop button and the hint that replaces it if the button does not work; return the function that updates both.
function addStopButton(model, parent) {
  const container = addElement("span", "stop", parent);
  const button = addElement("button", "button", container);
  const hint = addElement("span", "hint", container);
  button.type = "button";
  addElement("span", "square", button).setAttribute("aria-hidden", "true");
  const text = addElement("span", "text", button);
  button.addEventListener("click", () => model.send({ kind: "stop" }));
  return () => {
    const state = model.get("stop");
    button.hidden = state !== "button" && state !== "stopping";
    button.disabled = state === "stopping";
    write(text, state === "stopping" ? "Stopping" : "Stop");
    const target = model.get("stops");
    button.setAttribute("aria-label", state === "stopping" ? `Stopping ${target}` : `Stop ${target} and show the report`);
    hint.hidden = state !== "words";
    write(hint, model.get("now").stop);
  };
}

// Draw the legend of the phase marks under the sparklines, limited to the phases that are visible.
function drawLegend(legend, now) {
  const content = [now.span, ...now.legend.map((entry) => entry.join(""))].join("|");
  if (legend.dataset.content === content) return;
  legend.dataset.content = content;
  legend.replaceChildren();
  legend.hidden = !now.legend.length;
  write(addElement("span", "span", legend), now.span);
  for (const [letter, description] of now.legend) {
    const entry = addElement("span", "entry", legend);
    const sample = addElement("span", "segment", entry);
    sample.dataset.phase = letter;
    sample.setAttribute("aria-hidden", "true");
    write(addElement("span", "description", entry), description);
  }
}

// Whether the user types in an editor: then the page must not move. JupyterLab adds an empty cell after the last one.
function isTyping() {
  const editor = document.activeElement?.closest(".cm-editor");
  return Boolean(editor && editor.querySelector(".cm-content")?.textContent.trim());
}

function scrollingAncestor(node) {
  for (let parent = node.parentElement; parent; parent = parent.parentElement) {
    if (parent.scrollHeight > parent.clientHeight && /auto|scroll/.test(getComputedStyle(parent).overflowY)) return parent;
  }
  return null;
}

// The report takes the place of the panel and is taller. JupyterLab keeps the next cell where it is on the page, so that
// the first lines of the report would be above it. If the panel is in view, `keep` puts the report's top where it was.
function placeKeeper(root) {
  let output, index, top;
  return {
    remember() {
      if (!root.isConnected) return;
      const child = root.closest(".jp-OutputArea-child");
      output = child?.parentElement;
      index = output ? [...output.children].indexOf(child) : -1;
      top = root.getBoundingClientRect().top;
    },
    keep() {
      this.remember();
      if (!output || top < 0 || top > window.innerHeight || isTyping()) return;
      const move = () => {
        const report = output.children[index];
        const scroller = report && scrollingAncestor(report);
        if (scroller) scroller.scrollTop += report.getBoundingClientRect().top - top;
      };
      [0, 60, 200].forEach((delay) => setTimeout(move, delay)); // the page settles in several steps
    },
  };
}

function render({ model, el }) {
  const root = addElement("div", "live", el);
  root.setAttribute("role", "group");
  root.dataset.gpulabKey = model.get("key");
  root.dataset.lmSuppressShortcuts = "true"; // keys pressed here are not JupyterLab's
  const head = addElement("div", "head", root);
  const phase = addElement("span", "phase", head);
  addElement("span", "dot", phase).setAttribute("aria-hidden", "true");
  const phaseName = addElement("span", "phasename", phase);
  phaseName.setAttribute("role", "status");
  const name = addElement("span", "name", head);
  const progress = addElement("span", "progress", head);
  const elapsed = addElement("span", "elapsed", head);
  const updateStop = addStopButton(model, head);
  const alert = addElement("div", "alert", root);
  alert.setAttribute("aria-hidden", "true"); // its seconds count up: screen readers get only the announcement
  const announcement = addElement("div", "announcement", root);
  announcement.setAttribute("role", "status");
  const bars = { node: addElement("div", "bars", root), components: [] };
  const groups = ["GPUs", "", "workers"].map((group) => {
    const node = addElement("div", group ? "smalltiles" : "tiles", root);
    node.dataset.group = group;
    return { group, node, components: [] };
  });
  const legend = addElement("div", "legend", root);
  const source = addElement("div", "source", root);

  const place = placeKeeper(root);
  const draw = () => {
    const now = model.get("now");
    place.remember();
    root.setAttribute("aria-label", `gpulab, run ${now.name}, live`);
    root.dataset.phase = now.phase;
    write(phaseName, now.phase);
    write(name, now.name);
    write(progress, now.progress.join(" · "));
    write(elapsed, `${now.elapsed} elapsed`);
    write(source, now.line);
    source.title = now.line;
    alert.hidden = !now.alert;
    write(alert, now.alert);
    write(announcement, now.alert_announcement);
    drawAll(bars.components, now.bars, () => new Bar(bars.node));
    for (const { group, node, components } of groups) {
      const tiles = now.tiles.filter((tile) => tile.group === group);
      drawAll(components, tiles, () => new Tile(node), now.phases);
      node.hidden = !tiles.length;
    }
    drawLegend(legend, now);
  };
  draw();
  updateStop();
  model.on("change:now", draw);
  model.on("change:stop", updateStop);
  // JupyterLab can reach a busy kernel only once the widget exists: send "hello" until one message gets through.
  const hellos = (model.get("hello") ? [100, 300, 800, 2000] : []).map((delay) =>
    setTimeout(() => ["", "words"].includes(model.get("stop")) && model.send({ kind: "hello" }), delay),
  );
  return () => {
    hellos.forEach(clearTimeout);
    model.off("change:now", draw);
    model.off("change:stop", updateStop);
    // If the cell cleared its output and did not show the panel again, Python has to display it again.
    if (model.get("stop") === "done") return place.keep();
    setTimeout(() => {
      const elsewhere = document.querySelector(`[data-gpulab-key="${root.dataset.gpulabKey}"]`);
      if (!elsewhere && model.get("stop") === "button") model.send({ kind: "gone" });
    }, 50);
  };
}

export default { render };
