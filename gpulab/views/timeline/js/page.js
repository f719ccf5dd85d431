// The timeline in a file: drawn from the data in the page itself (gpulab/views/timeline/page.py).

import { mount } from "./timeline.js";
import { HeldRun } from "./data/file.js";

function begin() {
  const said = document.getElementById("gpulab-said");
  const data = JSON.parse(document.getElementById("gpulab-data").textContent);
  if (typeof DecompressionStream === "undefined") {
    said.textContent = "This browser is too old for the timeline: one of 2023 or later shows it.";
    return;
  }
  const file = new HeldRun(data);
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
  said.textContent = data.whole
    ? "This file holds every event of the run."
    : "This file holds the run as a whole, and in full the steps shown first and the findings. For more, open the run in a notebook.";
}

begin();
