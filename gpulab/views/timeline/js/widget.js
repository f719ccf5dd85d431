// The timeline in a notebook: asks the kernel, and draws where the static picture is (gpulab/views/timeline/widget.py).
// It runs when the model reaches the page, without a view: what the notebook holds is the picture, and it stays there
// until the kernel has answered, so a page whose kernel is gone shows it still.

import { mount } from "./timeline.js";

const ASK_AGAIN_MS = [150, 400, 1000, 2500, 6000]; // the way around a busy cell opens a little after the model
const PATIENCE_MS = 1500; // a question open for longer is explained
const LOOK_MS = 150;
const FORGET_MS = 30000; // a place out of the page for so long is given up; it may come back

class Kernel {
  constructor(model) {
    this.model = model;
    this.open = new Map();
    this.prefix = Math.random().toString(36).slice(2); // another window may ask the same model
    this.asked = 0;
    this.late = () => {}; // called with true when an answer is overdue, with false when none is
    model.on("msg:custom", (content, buffers) => this.hear(content, buffers));
  }

  ask(what, more = {}) {
    const id = `${this.prefix}-${++this.asked}`;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.late(true), PATIENCE_MS);
      this.open.set(id, { resolve, reject, timer });
      this.model.send({ ...more, kind: "ask", id, what });
    });
  }

  hear(content, buffers) {
    const asked = content.kind === "answer" && this.open.get(content.id);
    if (!asked) return;
    this.open.delete(content.id);
    clearTimeout(asked.timer);
    if (!this.open.size) this.late(false);
    const [view] = buffers ?? [];
    const bytes = view && view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    if (content.form === "error") asked.reject(new Error(content.text));
    else if (content.form === "nothing") asked.resolve(null);
    else asked.resolve(content.form === "tile" ? bytes : JSON.parse(new TextDecoder().decode(bytes)));
  }

  // Asked until one question got through; none is answered where the kernel is gone.
  reached(what) {
    return new Promise((resolve, reject) => {
      const ask = () => this.ask(what).then(resolve, reject);
      const timers = ASK_AGAIN_MS.map((delay) => setTimeout(ask, delay));
      ask().finally(() => timers.forEach(clearTimeout));
    });
  }

  close() {
    for (const { timer } of this.open.values()) clearTimeout(timer);
    this.open.clear();
  }
}

// A button under the picture: the timeline is worked out and drawn once somebody wants it.
class Offer {
  constructor(node, accept) {
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.className = "gpulab-tl-offer";
    this.button.textContent = "Zoom into it";
    this.button.dataset.lmSuppressShortcuts = "true";
    this.button.addEventListener("click", () => {
      this.button.disabled = true;
      this.button.textContent = "Working it out";
      accept(this);
    });
    node.prepend(this.button);
  }

  late(is) {
    if (this.button.disabled) this.button.textContent = is ? "The kernel does not answer yet" : "Working it out";
  }

  // What went wrong, and the button again: the next press may have more luck.
  failed(problem) {
    this.button.disabled = false;
    this.button.textContent = `Zoom into it (gpulab: ${problem.message})`;
  }

  end() {
    this.button.remove();
  }
}

// One place in the page: the picture steps aside for the timeline, and comes back when that ends.
class Place {
  constructor(node, model, kernel, header) {
    this.node = node;
    this.still = [...node.children].map((child) => [child, child.style.display]);
    this.el = node.appendChild(document.createElement("div"));
    this.el.dataset.lmSuppressShortcuts = "true"; // keys pressed here are not JupyterLab's
    this.said = node.appendChild(document.createElement("div"));
    this.said.className = "gpulab-tl-said";
    this.said.setAttribute("role", "status");
    this.said.style.cssText = "font-size:.88em;opacity:.78";
    this.shown = mount(this.el, this.source(model, kernel, header));
    for (const [child] of this.still) child.style.display = "none";
    const [start, end] = model.get("window");
    if (end > start) this.shown.go(start, end);
  }

  source(model, kernel, header) {
    const told = (name) => (value) => {
      model.set(name, value);
      model.save_changes();
    };
    const tell = told("window");
    return {
      header: structuredClone(header), // each place folds its own rows
      offline: false,
      tile: (level, index) => this.heard(kernel.ask("tile", { level, index })),
      search: (text) => this.heard(kernel.ask("search", { text })),
      brush: (start_ns, end_ns) => this.heard(kernel.ask("brush", { start_ns, end_ns })),
      card: (row, id) => this.heard(kernel.ask("card", { row, box: id })),
      selected: told("selected"),
      window: (start, end) => tell([start, end]),
    };
  }

  heard(answer) {
    return answer.catch((problem) => {
      this.said.textContent = `gpulab: ${problem.message}`;
      throw problem;
    });
  }

  late(is) {
    this.said.textContent = is ? "The kernel does not answer yet; what is not drawn comes when it does." : "";
  }

  end() {
    this.shown.destroy();
    this.el.remove();
    this.said.remove();
    for (const [child, display] of this.still) child.style.display = display;
  }
}

function initialize({ model }) {
  const kernel = new Kernel(model);
  const places = new Map(); // node -> { place, since: when it was last in the page }
  const key = model.get("key");
  const offered = model.get("offered");
  let header = null;
  let timer = null;

  const placed = (node) => (header ? new Place(node, model, kernel, header) : new Offer(node, (offer) => accept(node, offer)));
  const accept = (node, offer) =>
    kernel.ask("header").then((told) => {
      header = told;
      offer.end();
      const place = placed(node);
      places.set(node, { place, since: Date.now() });
      place.shown.focus();
    }, (problem) => offer.failed(problem));
  const look = () => {
    timer = null;
    const now = Date.now();
    for (const [node, held] of places) {
      if (node.isConnected) held.since = now;
      else if (now - held.since > FORGET_MS) {
        held.place.end();
        places.delete(node);
      }
    }
    for (const node of document.querySelectorAll(`[data-gpulab-timeline="${key}"]`))
      if (!places.has(node)) places.set(node, { place: placed(node), since: now });
  };
  const soon = () => (timer ??= setTimeout(look, LOOK_MS));
  const observer = new MutationObserver(soon);
  const each = (act) => [...places.values()].forEach(({ place }) => act(place));

  kernel.late = (is) => each((place) => place.late(is));
  model.on("change:go", () => {
    const [start, end] = model.get("go");
    each((place) => place.shown?.go(start, end));
  });
  kernel.reached(offered ? "ready" : "header").then((told) => {
    header = told;
    observer.observe(document.body, { childList: true, subtree: true });
    look();
  }, () => {}); // no answer, no timeline: the picture stays
  return () => {
    observer.disconnect();
    clearTimeout(timer);
    kernel.close();
    each((place) => place.end());
    places.clear();
  };
}

export default { initialize };
