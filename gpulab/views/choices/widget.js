// The choices of a question as radio buttons in place of its text (gpulab/views/choices/choices.py).
// This runs when the model reaches the page, without a view: the notebook stores only the text, which remains when
// the kernel has stopped.

const LOOK_MS = 150;

// Text in which `code` between backticks is a code element.
function appendText(node, text) {
  text.split("`").forEach((part, index, parts) => {
    if (index % 2 === 0 || index === parts.length - 1) node.append(index % 2 ? `\`${part}` : part);
    else node.appendChild(document.createElement("code")).textContent = part;
  });
}

// One element of the page: its list of choices is hidden and replaced by buttons.
class Place {
  constructor(node, model) {
    this.node = node;
    this.el = document.createElement("fieldset");
    this.el.style.cssText = "border:0;margin:0 0 8px;padding:0";
    this.el.dataset.lmSuppressShortcuts = "true"; // JupyterLab ignores keys pressed here
    this.el.addEventListener("keydown", (event) => {
      event.stopPropagation(); // an arrow moves between the buttons, not between cells
      if (event.key === "Enter") this.goOn();
      if (event.key === "Escape") this.node.closest(".jp-Cell")?.focus();
    });
    const legend = this.el.appendChild(document.createElement("legend"));
    appendText(legend, model.get("question"));
    legend.style.cssText = "padding:0;margin:0 0 6px";
    const name = `gpulab-choice-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`; // a module is loaded once per question
    this.inputs = model.get("choices").map(([key, text]) => this.choice(name, key, text, model));
    this.status = this.el.appendChild(document.createElement("div"));
    this.status.setAttribute("role", "status");
    this.status.style.cssText = "font-size:.88em;opacity:.78;min-height:1.5em";
    for (const child of node.children) child.style.display = "none";
    node.prepend(this.el);
    this.show(model.get("chosen"), model.get("status"));
  }

  choice(name, key, text, model) {
    const label = this.el.appendChild(document.createElement("label"));
    label.style.cssText = "display:flex;gap:8px;align-items:baseline;padding:3px 0;cursor:pointer;line-height:1.5";
    // After a choice with the mouse, Shift+Enter runs the next cell; the keyboard stays here to move between choices.
    label.addEventListener("click", (event) => event.detail && setTimeout(() => this.goOn()));
    const input = label.appendChild(document.createElement("input"));
    Object.assign(input, { type: "radio", name, value: key });
    input.addEventListener("change", () => {
      model.set("status", ""); // it was about an earlier choice
      model.set("chosen", key);
      model.save_changes();
      this.show(key);
    });
    appendText(label.appendChild(document.createElement("span")), `${key}) ${text}`);
    return input;
  }

  // Give the keyboard back to the notebook, at the cell after the question.
  goOn() {
    const cell = this.node.closest(".jp-Cell");
    const next = cell?.nextElementSibling;
    (next?.matches(".jp-Cell") ? next : cell)?.focus({ preventScroll: true });
  }

  show(chosen, status = "") {
    for (const input of this.inputs) input.checked = input.value === chosen;
    const standard = chosen ? `You chose ${chosen}. Run the cells below to check.` : "Choose one, then run the cells below.";
    this.status.replaceChildren();
    appendText(this.status, status || standard);
  }

  end() {
    this.el.remove();
    for (const child of this.node.children) child.style.display = "";
  }
}

function initialize({ model }) {
  const places = new Map();
  const selector = `[data-gpulab-choice="${model.get("key")}"]`;
  let timer = null;
  const look = () => {
    timer = null;
    for (const node of document.querySelectorAll(selector)) if (!places.has(node)) places.set(node, new Place(node, model));
  };
  const observer = new MutationObserver(() => (timer ??= setTimeout(look, LOOK_MS)));
  const show = () => places.forEach((place) => place.show(model.get("chosen"), model.get("status")));
  model.on("change:chosen", show);
  model.on("change:status", show);
  observer.observe(document.body, { childList: true, subtree: true });
  look();
  return () => {
    observer.disconnect();
    clearTimeout(timer);
    places.forEach((place) => place.end());
  };
}

export default { initialize };
