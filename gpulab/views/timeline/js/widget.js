// The timeline in a notebook: queries the kernel, and replaces the static picture (gpulab/views/timeline/widget.py).
// It runs when the model reaches the page, without a view. The notebook stores the picture, which stays visible until
// the kernel has answered, so a page without a kernel still shows it.

import { mount } from "./timeline.js";

const RETRY_DELAYS_MS = [150, 400, 1000, 2500, 6000]; // a busy kernel can be reached only some time after the model opens
const PATIENCE_MS = 1500; // after this time without an answer the user is told
const SCAN_DELAY_MS = 150;
const FORGET_MS = 30000; // an element that left the page may come back; after this time it is dropped

class Kernel {
  constructor(model) {
    this.model = model;
    this.open = new Map();
    this.prefix = Math.random().toString(36).slice(2); // another window may query the same model
    this.queries = 0;
    this.setLate = () => {}; // called with true when an answer is overdue, with false when none is
    model.on("msg:custom", (content, buffers) => this.receive(content, buffers));
  }

  ask(what, more = {}) {
    const id = `${this.prefix}-${++this.queries}`;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.setLate(true), PATIENCE_MS);
      this.open.set(id, { resolve, reject, timer });
      this.model.send({ ...more, kind: "ask", id, what });
    });
  }

  receive(content, buffers) {
    const query = content.kind === "answer" && this.open.get(content.id);
    if (!query) return;
    this.open.delete(content.id);
    clearTimeout(query.timer);
    if (!this.open.size) this.setLate(false);
    const [view] = buffers ?? [];
    const bytes = view && view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    if (content.form === "error") query.reject(new Error(content.text));
    else if (content.form === "nothing") query.resolve(null);
    else query.resolve(content.form === "tile" ? bytes : JSON.parse(new TextDecoder().decode(bytes)));
  }

  // Send a query until one gets through; never resolves without a kernel.
  askUntilAnswered(what) {
    return new Promise((resolve, reject) => {
      const ask = () => this.ask(what).then(resolve, reject);
      const timers = RETRY_DELAYS_MS.map((delay) => setTimeout(ask, delay));
      ask().finally(() => timers.forEach(clearTimeout));
    });
  }

  close() {
    for (const { timer } of this.open.values()) clearTimeout(timer);
    this.open.clear();
  }
}

// A button at the picture: the timeline is computed and drawn when it is pressed.
class OpenButton {
  constructor(node, open) {
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.className = "gpulab-tl-open";
    this.button.textContent = "Open timeline";
    this.button.dataset.lmSuppressShortcuts = "true";
    this.button.addEventListener("click", () => {
      this.button.disabled = true;
      this.button.textContent = "Preparing the timeline …";
      open(this);
    });
    node.prepend(this.button);
  }

  setLate(isLate) {
    if (!this.button.disabled) return;
    this.button.textContent = isLate ? "Waiting for the kernel …" : "Preparing the timeline …";
  }

  // Show the error, and enable the button for another attempt.
  showError(problem) {
    this.button.disabled = false;
    this.button.textContent = `Open timeline (gpulab: ${problem.message})`;
  }

  end() {
    this.button.remove();
  }
}

// One timeline in the page: it hides the picture while it exists.
class LiveTimeline {
  constructor(node, model, kernel, header) {
    this.node = node;
    this.picture = [...node.children].map((child) => [child, child.style.display]);
    this.el = node.appendChild(document.createElement("div"));
    this.el.dataset.lmSuppressShortcuts = "true"; // keys pressed here are not JupyterLab's
    this.status = node.appendChild(document.createElement("div"));
    this.status.className = "gpulab-tl-status";
    this.status.setAttribute("role", "status");
    this.status.style.cssText = "font-size:.88em;opacity:.78";
    this.timeline = mount(this.el, this.source(model, kernel, header));
    for (const [child] of this.picture) child.style.display = "none";
    const [start, end] = model.get("window");
    if (end > start) this.timeline.go(start, end);
  }

  source(model, kernel, header) {
    const setter = (name) => (value) => {
      model.set(name, value);
      model.save_changes();
    };
    const setWindow = setter("window");
    return {
      header: structuredClone(header), // each timeline folds its own rows
      offline: false,
      tile: (level, index) => this.reportErrors(kernel.ask("tile", { level, index })),
      search: (text) => this.reportErrors(kernel.ask("search", { text })),
      brush: (start_ns, end_ns) => this.reportErrors(kernel.ask("brush", { start_ns, end_ns })),
      card: (row, id) => this.reportErrors(kernel.ask("card", { row, box: id })),
      selected: setter("selected"),
      window: (start, end) => setWindow([start, end]),
    };
  }

  reportErrors(answer) {
    return answer.catch((problem) => {
      this.status.textContent = `gpulab: ${problem.message}`;
      throw problem;
    });
  }

  setLate(isLate) {
    this.status.textContent = isLate ? "Waiting for the kernel: missing parts are drawn when it answers." : "";
  }

  end() {
    this.timeline.destroy();
    this.el.remove();
    this.status.remove();
    for (const [child, display] of this.picture) child.style.display = display;
  }
}

function initialize({ model }) {
  const kernel = new Kernel(model);
  const places = new Map(); // element -> { content, since: when it was last in the page }
  const key = model.get("key");
  const offered = model.get("offered");
  let header = null;
  let timer = null;

  const create = (node) =>
    header ? new LiveTimeline(node, model, kernel, header) : new OpenButton(node, (button) => open(node, button));
  const open = (node, openButton) =>
    kernel.ask("header").then((answer) => {
      header = answer;
      openButton.end();
      const content = create(node);
      places.set(node, { content, since: Date.now() });
      content.timeline.focus();
    }, (problem) => openButton.showError(problem));
  const scan = () => {
    timer = null;
    const now = Date.now();
    for (const [node, entry] of places) {
      if (node.isConnected) entry.since = now;
      else if (now - entry.since > FORGET_MS) {
        entry.content.end();
        places.delete(node);
      }
    }
    for (const node of document.querySelectorAll(`[data-gpulab-timeline="${key}"]`))
      if (!places.has(node)) places.set(node, { content: create(node), since: now });
  };
  const scanSoon = () => (timer ??= setTimeout(scan, SCAN_DELAY_MS));
  const observer = new MutationObserver(scanSoon);
  const forAll = (act) => [...places.values()].forEach(({ content }) => act(content));

  kernel.setLate = (isLate) => forAll((content) => content.setLate(isLate));
  model.on("change:go", () => {
    const [start, end] = model.get("go");
    forAll((content) => content.timeline?.go(start, end));
  });
  kernel.askUntilAnswered(offered ? "ready" : "header").then((answer) => {
    header = answer;
    observer.observe(document.body, { childList: true, subtree: true });
    scan();
  }, () => {}); // without an answer the picture stays
  return () => {
    observer.disconnect();
    clearTimeout(timer);
    kernel.close();
    forAll((content) => content.end());
    places.clear();
  };
}

export default { initialize };
