"""Generate the pictures in docs/ with JupyterLab: each view in the light and dark theme.

    python tools/pictures.py docs

The loop is one of gpulab's workloads on a virtual H100, so that every machine generates the same pictures. Look at
each of them: a picture that shows nothing, or is cut off, is a bug of the view.
"""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.front_end.browser import Notebook, browser, lab

WIDTHS = {"wide": 1100}
COLOURS = 256  # of a picture: letters keep their edges and small marks their colours, in half the bytes
TRAINING = """
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 24 * 32

    def __getitem__(self, index):
        picture = torch.randn(3, 96, 96)
        return (picture - picture.mean()) / picture.std(), index % 10

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for images, labels in DataLoader(Images(), batch_size=32):
    loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WATCHED = """%%gpuprofile watched
import time
from torch.utils.data import DataLoader

for batch in DataLoader([torch.randn(64) for _ in range(4000)], batch_size=8, num_workers=2):
    time.sleep(0.02)
"""
CELLS = (
    "import torch\nimport gpulab\ntorch.set_num_threads(1)\n%load_ext gpulab",
    f"%%gpuprofile before --virtual h100{TRAINING}",
    "%gputimeline before workers=4",
    "%gpuwhatif before workers=4",
    "gpulab.charts.ledger(gpulab.runs['before'])",
    WATCHED,
)
SETUP, REPORT, TIMELINE, WHATIF, CHART, LIVE = range(6)


def main(folder: Path) -> int:
    """Generate all pictures; return 0 if all exist."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(text) for text in CELLS], metadata={"kernelspec": kernel}
        )
        nbformat.write(notebook, Path(name) / "pictures.ipynb")
        with lab(Path(name)) as server, browser() as chromium:
            for theme, width in itertools.product(("light", "dark"), WIDTHS):
                page = chromium.new_context(viewport={"width": WIDTHS[width], "height": 2300}).new_page()
                for view_name, picture in take_pictures(Notebook(page, server, "pictures.ipynb"), theme):
                    path = folder / f"{view_name}-{theme}-{width}.png"
                    path.write_bytes(picture)
                    print(f"{path}: {len(picture) / 1000:.0f} kB")
                page.close()
    return 0


def take_pictures(notebook: Notebook, theme: str) -> Any:
    """Each view's name and its picture, in one theme."""
    if theme == "dark":
        notebook.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
    notebook.run(SETUP)
    report = notebook.run(REPORT).locator(".jp-OutputArea-output").last
    notebook.cell(REPORT).get_by_role("button", name="Open timeline").wait_for(timeout=30_000)
    yield "report", small(report)
    notebook.run(TIMELINE).locator(".gpulab-tl[data-painted]").wait_for(timeout=30_000)
    notebook.page.wait_for_timeout(700)
    yield "timeline", small(notebook.cell(TIMELINE).locator(".gpulab-tl"))
    yield "whatif", small(notebook.run(WHATIF).locator(".jp-OutputArea-output").last)
    chart = notebook.run(CHART).locator(".jp-OutputArea-output").last
    yield "chart", small(chart)
    panel = notebook.start(LIVE).locator(".gpulab-live")
    panel.wait_for(timeout=20_000)
    notebook.page.wait_for_timeout(6_000)
    yield "live", small(panel)
    notebook.close()


def small(element: Any) -> bytes:
    """The element as a PNG of few colours."""
    picture = Image.open(io.BytesIO(element.screenshot())).convert("RGB")
    file = io.BytesIO()
    picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        file, "PNG", optimize=True
    )
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
