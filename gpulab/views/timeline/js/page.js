// The timeline in an HTML file: draws the data that is stored in the page (gpulab/views/timeline/page.py).

import { mount } from "./timeline.js";
import { StoredRun } from "./data/file.js";

function startPage() {
  const status = document.getElementById("gpulab-status");
  const data = JSON.parse(document.getElementById("gpulab-data").textContent);
  if (typeof DecompressionStream === "undefined") {
    status.textContent = "This browser is too old for the timeline: use a version from 2023 or later.";
    return;
  }
  const file = new StoredRun(data);
  mount(document.getElementById("gpulab-timeline"), {
    header: data.header,
    offline: true,
    tile: (level, index) => file.tile(level, index),
    search: (text) => file.search(text),
    brush: (start, end) => file.brush(start, end),
    card: async () => null,
    selected: () => {},
    window: () => {},
  });
  status.textContent = data.whole
    ? "This file contains every event of the run."
    : "This file contains an overview of the run, and every event of the initial view and of the findings. For more detail, open the run in a notebook.";
}

startPage();
