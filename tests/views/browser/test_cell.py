"""%%gpuprofile in JupyterLab: the live panel, its Stop button, and the report in the saved and reopened notebook."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.front_end.browser import OPEN_MS
from tests.support.front_end.kernel import ROOT
from tests.support.front_end.legibility import wait_until_legible
from tests.support.front_end.services import JupyterLab
from tests.support.tiers import first_tier

pytestmark = pytest.mark.browser

TRAINING = """%%gpuprofile before
import time
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(256), index % 10

model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=16):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SMALL = ("import torch\ntorch.set_num_threads(1)", "%load_ext gpulab", TRAINING, "print('after')")
AFTER_STEPS = re.compile(
    r"^step ([89]|\d{2,})"
)  # five steps of warm-up come first, and one must be recorded completely
NOTEBOOKS = {"small": None, "00_start_here": ROOT / "notebooks" / "00_start_here.ipynb"}


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    return jupyterlab.subfolder("cell")


@pytest.fixture(scope="module", params=first_tier(NOTEBOOKS, {"small"}))
def stopped(request: pytest.FixtureRequest, jupyterlab: JupyterLab, folder: Path) -> Stopped:
    """A notebook whose first profiled cell was run, stopped with the button, and saved."""
    source = NOTEBOOKS[request.param]
    if source is not None and not source.exists():
        pytest.skip(f"{source.name} does not exist")
    path = folder / f"{request.param}.ipynb"
    write_notebook(path, source)
    return Stopped(jupyterlab, path)


class Stopped:
    """Observations of a profiled cell until it was stopped, and the notebook that was saved afterwards."""

    def __init__(self, jupyterlab: JupyterLab, path: Path) -> None:
        self.path, self.errors = path, []
        notebook = jupyterlab.open(path)
        page = notebook.page
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.index = profiled(path)
        for index in range(self.index):
            notebook.run(index, timeout_s=240)
        cell = notebook.start(self.index)
        panel = cell.locator(".gpulab-live")
        panel.wait_for(timeout=OPEN_MS)
        button = panel.get_by_role("button", name="Stop the cell")
        button.wait_for(timeout=OPEN_MS)
        self.observations = []
        for _ in range(150):
            texts = panel.locator(".gpulab-progress").text_content(), panel.locator(".gpulab-elapsed").text_content()
            self.observations.append((notebook.prompt(self.index), texts))
            if len({texts for _, texts in self.observations}) >= 5:
                break
            page.wait_for_timeout(200)
        self.meters = panel.get_by_role("meter").count()
        panel.locator(".gpulab-progress", has_text=AFTER_STEPS).wait_for(timeout=OPEN_MS)  # the profiler starts slowly
        button.click()
        notebook.wait(self.index, timeout_s=120)
        self.cell_text = cell.text_content()
        self.panels_left = cell.locator(".gpulab-live").count()
        open_button = cell.get_by_role("button", name="Open timeline")
        open_button.wait_for(timeout=OPEN_MS)
        open_button.click()
        timeline = cell.locator(".gpulab-tl[data-painted]")
        timeline.wait_for(timeout=OPEN_MS)
        self.timeline_text = timeline.inner_text()
        self.focused = timeline.evaluate("root => root.contains(document.activeElement)")
        self.next = notebook.run(profiled(path, after=True)).text_content() if path.stem == "small" else ""
        notebook.save()
        notebook.close()


def write_notebook(path: Path, source: Path | None) -> None:
    import nbformat

    if source is not None:
        shutil.copy(source, path)
        return
    cells = [nbformat.v4.new_code_cell(text) for text in SMALL]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def code(path: Path) -> list[Any]:
    import nbformat

    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def profiled(path: Path, *, after: bool = False) -> int:
    """Return the index of the first profiled code cell, or of the one after it."""
    first = next(index for index, cell in enumerate(code(path)) if cell.source.startswith("%%gpuprofile"))
    return first + after


def report(path: Path) -> dict[str, str]:
    """Return the report in the saved notebook, by MIME type."""
    outputs = code(path)[profiled(path)].outputs
    [bundle] = [output["data"] for output in outputs if "text/html" in output.get("data", {})]
    return dict(bundle)


def source_line(path: Path) -> str:
    """Return the line of the report with the source of its numbers, which every form of the report shows."""
    lines = (re.sub(r"\s+", " ", line).strip() for line in report(path)["text/plain"].splitlines())
    return next(line for line in lines if line.startswith('Run "'))


def wait_until_visible(element: Any, text: str) -> None:
    """Wait until the text is visible in the element; hidden text does not count."""
    for _ in range(50):
        if text in (visible_text := re.sub(r"\s+", " ", element.inner_text())):
            return
        element.page.wait_for_timeout(100)
    raise AssertionError(f"{text!r} is not visible in: {visible_text}")


def test_the_panel_updates_while_the_cell_is_running(stopped):
    assert {prompt for prompt, _ in stopped.observations} == {"[*]:"}
    assert len({texts for _, texts in stopped.observations}) >= 5
    assert stopped.meters >= 1
    assert stopped.errors == []


def test_the_stop_button_ends_the_cell_and_the_report_replaces_the_panel(stopped):
    assert "KeyboardInterrupt" in stopped.cell_text
    assert stopped.panels_left == 0
    assert source_line(stopped.path) in re.sub(r"\s+", " ", stopped.cell_text)
    if stopped.path.stem == "small":
        assert "after" in stopped.next, "the next cell runs: one press interrupts one cell"


def test_a_button_turns_the_picture_of_the_report_into_the_timeline(stopped):
    assert "steps" in stopped.timeline_text
    assert "ledger" in stopped.timeline_text
    assert "main thread" in stopped.timeline_text
    assert stopped.focused, "keyboard users continue in the timeline"


def test_the_saved_notebook_contains_html_and_text_and_no_widget(stopped):
    import nbformat

    assert set(report(stopped.path)) == {"text/html", "text/plain"}
    saved = nbformat.read(stopped.path, 4)
    assert "widgets" not in saved.metadata
    assert "widget-view" not in stopped.path.read_text()
    nbformat.validate(saved)


@pytest.mark.parametrize("trusted", [True, False])
def test_reopened_without_running_anything_it_shows_the_report(stopped, jupyterlab, folder, trusted):
    import nbformat

    copy = folder / f"{stopped.path.stem}_{'trusted' if trusted else 'untrusted'}.ipynb"
    saved = nbformat.read(stopped.path, 4)
    if not trusted:
        saved.metadata["from"] = "somebody else"  # changed content has no known signature
    nbformat.write(saved, copy)
    notebook = jupyterlab.read(copy)
    toolbar = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Toolbar").first
    toolbar.get_by_text("No Kernel").wait_for()
    cell = notebook.cell(stopped.index)
    cell.scroll_into_view_if_needed()
    cell.locator(".jp-RenderedHTMLCommon").first.wait_for()
    wait_until_visible(cell, source_line(stopped.path))


def test_its_nbconvert_html_shows_the_report_without_network_or_scripts(stopped, chromium):
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter().from_filename(str(stopped.path))
    target = stopped.path.with_suffix(".html")
    target.write_text(html, encoding="utf-8")
    page = chromium.new_context(java_script_enabled=False, offline=True).new_page()
    page.goto(target.as_uri(), wait_until="domcontentloaded")
    wait_until_visible(page.locator("body"), source_line(stopped.path))


@pytest.fixture(scope="module")
def running(jupyterlab: JupyterLab, folder: Path) -> Iterator[Any]:
    """A notebook with a profiled cell that is running, and that cell."""
    path = folder / "running.ipynb"
    write_notebook(path, None)
    notebook = jupyterlab.open(path)
    index = profiled(path)
    for before in range(index):
        notebook.run(before)
    cell = notebook.start(index)
    cell.get_by_role("button", name="Stop the cell").wait_for(timeout=OPEN_MS)
    yield notebook, cell
    notebook.close()
    notebook.command("apputils:change-theme", {"theme": "JupyterLab Light"})
    notebook.page.set_viewport_size({"width": 1200, "height": 1000})


@pytest.mark.parametrize(("width", "theme"), [(360, "JupyterLab Light"), (1200, "JupyterLab Dark")])
def test_the_panel_fits_and_is_readable(running, width, theme):
    notebook, cell = running
    notebook.page.set_viewport_size({"width": width, "height": 900})
    notebook.command("apputils:change-theme", {"theme": theme})
    panel = cell.locator(".gpulab-live")
    panel.locator(".gpulab-tile").first.wait_for()
    overflowing = panel.evaluate(
        "root => [...root.querySelectorAll('*')].filter(node => node.getBoundingClientRect().right"
        " > root.getBoundingClientRect().right + 1).map(node => node.className)"
    )
    assert overflowing == []
    wait_until_legible(panel.locator(".gpulab-value").first)
    wait_until_legible(panel.locator(".gpulab-label").first)


def test_jupyterlab_tells_pictures_its_theme(running):
    """A chart is an <img> whose media query is answered by the colour scheme of the element around it."""
    notebook, _ = running
    for theme, scheme in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        notebook.command("apputils:change-theme", {"theme": theme})
        notebook.page.wait_for_function(f"getComputedStyle(document.body).colorScheme === '{scheme}'")


def test_the_stop_button_works_from_the_keyboard(running, folder):
    notebook, cell = running
    cell.get_by_role("button", name="Stop the cell").focus()
    notebook.page.keyboard.press("Enter")
    notebook.wait(profiled(folder / "running.ipynb"))
    assert "KeyboardInterrupt" in cell.text_content()
