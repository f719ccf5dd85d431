"""Record docs/loop.webp in JupyterLab: profile a cell, read the report, paste the fix, compare.

    python tools/loop_picture.py docs

Nothing is staged: the cells run while the frames are taken, on a virtual H100, so the picture can be made on every
machine with four idle cores or fewer; on a busy one, the measured gain is smaller than the predicted one.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.front_end.browser import Notebook, browser, lab

WIDTH, HEIGHT = 960, 600
COLOURS = 128  # of a frame: text keeps its edges
LIVE_FRAME_MS = 400  # between two frames of the live panel
HOLD_MS = 3_200  # how long a reader needs for a part of a report
SCROLL_FRAMES = 6  # of a scroll, so that the eye can follow
# The dataset waits as for a network drive, and the picture shows what workers do about it.
PREPARE = """
import time
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)

class Pictures(Dataset):
    def __len__(self):
        return 60 * 32

    def __getitem__(self, index):
        time.sleep(0.0015)
        return torch.full((3, 160, 160), index / 1920), index % 10

dataset = Pictures()

def make_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10),
    )
"""
LOOP = """model = make_model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for images, labels in loader:
    loss = cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()"""
FIRST = "loader = DataLoader(dataset, batch_size=32)"
FIXED = "loader = DataLoader(dataset, batch_size=32, num_workers=8, pin_memory=True, persistent_workers=True)"
CELLS = (
    "%load_ext gpulab",
    f"%%gpuprofile before --virtual h100\n{FIRST}\n{LOOP}",
    f"%%gpuprofile after --virtual h100\n{FIXED}\n{LOOP}",
    "%gpucompare before after",
)
LOAD, BEFORE, AFTER, COMPARE = range(4)
# Only the notebook itself: no menus, toolbars, margins or scroll bars.
STYLE = """
#jp-top-panel, #jp-top-bar, #menu-panel, #jp-menu-panel, .jp-SideBar, .jp-NotebookPanel-toolbar,
#jp-bottom-panel, #jp-main-statusbar, .lm-TabBar, .jp-Notebook-footer, .jp-InputPrompt, .jp-OutputPrompt,
.jp-Collapser, .jp-cell-toolbar { display: none !important }
::-webkit-scrollbar { width: 0 !important; height: 0 !important }
"""


@dataclass
class Film:
    """Frames of a page, and for how long each is shown."""

    page: Any
    frames: list[Image.Image] = field(default_factory=list)
    durations_ms: list[int] = field(default_factory=list)

    def take(self, duration_ms: int) -> None:
        """Append what the page shows now."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(picture)
        self.durations_ms.append(duration_ms)

    def scroll_to(self, element: Any) -> None:
        """Scroll smoothly until the element is at the top of the window."""
        box = element.bounding_box()
        for _ in range(SCROLL_FRAMES):
            self.page.mouse.move(WIDTH / 2, HEIGHT / 2)
            self.page.mouse.wheel(0, (box["y"] - 12) / SCROLL_FRAMES)
            self.page.wait_for_timeout(120)
            self.take(70)
        element.evaluate("element => element.scrollIntoView({ block: 'start' })")
        self.page.wait_for_timeout(300)

    def save(self, path: Path) -> None:
        """Write the frames as an animated WebP that repeats."""
        first, *others = (frame.quantize(COLOURS, dither=Image.Dither.NONE).convert("RGB") for frame in self.frames)
        first.save(path, save_all=True, append_images=others, duration=self.durations_ms, loop=0, quality=70, method=6)


def main(folder: Path) -> int:
    """Record the picture; return 0 if it exists."""
    os.environ |= {"GPULAB_HISTORY": "off", "GPULAB_SPOOL": "off"}  # nothing of earlier recordings is displayed
    with tempfile.TemporaryDirectory() as name:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(text) for text in CELLS], metadata={"kernelspec": kernel}
        )
        nbformat.write(notebook, Path(name) / "loop.ipynb")
        with lab(Path(name)) as server, browser() as chromium:
            page = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
            film = record(Notebook(page, server, "loop.ipynb"))
    path = folder / "loop.webp"
    film.save(path)
    seconds, kilobytes = sum(film.durations_ms) / 1000, path.stat().st_size / 1000
    print(f"{path}: {len(film.frames)} frames, {seconds:.0f} s, {kilobytes:.0f} kB")
    return 0


def record(notebook: Notebook) -> Film:
    """Run the cells and take the frames."""
    notebook.execute(PREPARE)
    notebook.page.add_style_tag(content=STYLE)
    film = Film(notebook.page)
    notebook.run(LOAD)
    film.take(1_500)
    watch(film, notebook, BEFORE)
    report = notebook.cell(BEFORE).locator(".jp-OutputArea-output").last
    film.scroll_to(report)
    film.take(2 * HOLD_MS)
    film.scroll_to(report.get_by_text("Predicted step time").first)
    film.take(2 * HOLD_MS)
    film.scroll_to(notebook.cell(AFTER))
    film.take(1_500)
    watch(film, notebook, AFTER)
    notebook.run(COMPARE)
    film.scroll_to(notebook.cell(COMPARE))
    film.take(2 * HOLD_MS)
    return film


def watch(film: Film, notebook: Notebook, cell: int) -> None:
    """Take frames of a cell while it runs."""
    notebook.start(cell)
    begin_s = time.monotonic()
    while not notebook.prompt(cell).strip("[]:").isdigit() and time.monotonic() - begin_s < 60:
        notebook.page.wait_for_timeout(LIVE_FRAME_MS)
        film.take(LIVE_FRAME_MS // 2)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
