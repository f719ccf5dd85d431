"""`gpulab.timeline`: an interactive timeline in notebooks with a running kernel, a static picture everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpulab.errors import GpulabError, RunError
from gpulab.questions import diagnose
from gpulab.questions.run_names import RunLike, RunName, find_run, replace_names
from gpulab.replay.prediction import Prediction
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.front_end import shows_widgets
from gpulab.views.report.report import report
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.view import View, text_bytes, write_file
from gpulab.views.timeline.page import timeline_page
from gpulab.views.timeline.scene.rank_scene import build_rank_scene
from gpulab.views.timeline.scene.scene import Scene, build_scene
from gpulab.views.timeline.static_picture import window_sheet
from gpulab.views.whatif.whatif import WhatIf
from gpulab.wording import article, did_you_mean, sentence

if TYPE_CHECKING:
    from gpulab.views.timeline.widget import TimelineModel

FirstRun = RunLike | Diagnosis | Sequence[RunLike]
SecondRun = Run | Diagnosis | Prediction | WhatIf
Bundle = dict[str, str]
EVIDENCE_MARGIN_FRAC = 0.35  # of the duration of the evidence, on either side
MIN_WINDOW_NS = 20_000  # the narrowest window that Python requests


def timeline(run: FirstRun, other: SecondRun | RunName | None = None, *, live: bool | None = None) -> TimelineView:
    """Return the zoomable timeline of a run, with a second run or a prediction below it if one is given.

    For the ranks of a job, as `gpulab.load("folder/")` returns them, it has a lane for each rank, with aligned clocks,
    above the diagnosed rank in detail. `live`: whether it is interactive; detected if None. Raises RunError for objects
    that are not runs.
    """
    if other is None and not isinstance(run, Diagnosis):
        run = replace_names(run)
    run, other = find_run(run), find_run(other)
    ranks = [rank for rank in run if isinstance(rank, Run)] if isinstance(run, Sequence) else []
    if ranks and other is None:
        return TimelineView(_ranks_scene(ranks), live=live, report_of=ranks)
    for argument in (run,) if other is None else (run, other):
        if not isinstance(argument, Run | Diagnosis if argument is run else SecondRun):
            raise RunError(
                f"{sentence(article(type(argument).__name__)).removesuffix('.')} has no timeline.",
                why="the first argument must be a run or, without a second one, the ranks of a job; the second must be "
                "a run or a prediction",
                fix='pass runs: gpulab.timeline(gpulab.runs["before"], gpulab.runs["after"])',
            )
    diagnosis = run if isinstance(run, Diagnosis) else diagnose(run)
    return TimelineView(build_scene(diagnosis, other), live=live)


def _ranks_scene(ranks: Sequence[Run]) -> Scene:
    diagnosis = diagnose(ranks)
    return build_scene(diagnosis) if len(ranks) == 1 else build_rank_scene(diagnosis, ranks)


class TimelineView:
    """A timeline that displays itself as the last expression of a cell.

    Python can read the selection and the visible window, and move the window.
    """

    def __init__(self, scene: Scene, *, live: bool | None = None, report_of: Sequence[Run] = ()) -> None:
        self.scene = scene
        self._report_of = report_of  # the ranks, if it is about a job
        self._header: dict[str, Any] = scene.header()
        self._live = live
        self._key = uuid4().hex
        self._model: TimelineModel | None = None
        self._requested: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return repr(self.static())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        """Return the picture in an element that the script finds; a reopened notebook could not show a widget view."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        return self.embed(fragment(self.static().sheet))

    def embed(self, html: str) -> str:
        """Wrap static HTML in the element that the interactive timeline replaces; unchanged if there is none."""
        live = shows_widgets() if self._live is None else self._live
        if not live or not self._has_widget():
            return html
        return f'<div data-gpulab-timeline="{escape(self._key)}">{html}</div>'

    def widget(self) -> TimelineModel:
        """Return the widget model in this kernel. Raises GpulabError if anywidget is not installed."""
        if self._model is None:
            try:
                from gpulab.views.timeline.widget import TimelineModel
            except ImportError as problem:
                raise GpulabError(
                    "The timeline cannot be interactive.",
                    why=f"{problem.name} is not installed",
                    fix="pip install anywidget",
                ) from problem
            self._model = TimelineModel(lambda: self.scene, self._key)
            self._send_window()
        return self._model

    def static(self, start_ns: int | None = None, end_ns: int | None = None) -> View:
        """Return a window as picture and text; by default the visible window."""
        window = self.window if start_ns is None or end_ns is None else self._fitted(start_ns, end_ns)
        return View(window_sheet(self.scene.sides, self.scene.brush(*window), tuple(self._header["notes"])))

    @property
    def window(self) -> tuple[int, int]:
        """The visible window: start and end, in ns of the first run."""
        visible = self._model.window if self._model is not None else None
        if visible and len(visible) == 2 and visible[1] > visible[0]:
            return self._fitted(round(visible[0]), round(visible[1]))
        return self._requested or self._fitted(*self._header["home"])

    @property
    def selected(self) -> dict[str, Any] | None:
        """The box that was last clicked or found by search, with its details; None if nothing is selected."""
        selection = self._model.selected if self._model is not None else None
        if not selection:
            return None
        row, id = int(selection.get("row", -1)), int(selection.get("id", -1))
        values = {key: selection.get(key) for key in ("name", "start_ns", "dur_ns")}
        side = self.scene.side_of(row)
        if side is None:
            return values
        placed = side.group_of(row)
        lane = {"lane": placed.group.name if placed else "", "side": side.name}
        return {**values, **(self.scene.selection(row, id) or {}), **lane}

    def go(self, start_ns: float, end_ns: float) -> None:
        """Show a window, in ns of the first run."""
        self._requested = self._fitted(start_ns, end_ns)
        self._send_window()

    def show(self, finding: str) -> None:
        """Show the evidence of a finding, given the name of its rule. Raises RunError if it has none."""
        evidence = {each["rule"]: each["spans"] for each in self._header["findings"] if each["spans"]}
        if finding not in evidence:
            raise RunError(
                f"The timeline has no evidence for {finding!r}.",
                why="the diagnosis of this run has no such finding, or the finding has no time spans",
                fix=did_you_mean(finding, evidence) or f"findings with time spans: {', '.join(evidence) or 'none'}",
            )
        start, end = evidence[finding][0]
        margin = EVIDENCE_MARGIN_FRAC * (end - start)
        self.go(start - margin, end + margin)

    def brush(self, start_ns: float, end_ns: float) -> dict[str, Any]:
        """Return for each run the ledger of a window, which sums to its length, and the longest kernels."""
        return self.scene.brush(*self._fitted(start_ns, end_ns, least_ns=0))

    def search(self, text: str) -> dict[str, Any]:
        """Find events by name: their count, total time and positions."""
        return self.scene.search(text)

    def save(self, path: str | Path) -> Path:
        """Save as `.html` (zoomable without a kernel, with the report below), `.txt` or `.md`; return the path."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            return self.static().save(path)
        html = report(self._report_of or self.scene.diagnosis)._repr_html_()
        return write_file(path, text_bytes(timeline_page(self.scene, html, timeline_first=True)))

    def _has_widget(self) -> bool:
        try:
            self.widget()
        except GpulabError:
            return False
        return True

    def _send_window(self) -> None:
        if self._model is not None and self._requested is not None:
            with self._model.hold_sync():
                self._model.window = [float(each) for each in self._requested]
                self._model.go = [*self._requested, (self._model.go[2] if self._model.go else 0) + 1]

    def _fitted(self, start_ns: float, end_ns: float, least_ns: int = MIN_WINDOW_NS) -> tuple[int, int]:
        """Return the window sorted, inside the run, and at least `least_ns` wide."""
        first, last = sorted((round(start_ns), round(end_ns)))
        span_ns = max(1, self.scene.span_ns)
        if last - first < least_ns:
            first = (first + last - least_ns) // 2
            last = first + least_ns
        first = min(max(first, 0), max(0, span_ns - least_ns))
        return first, max(first + 1, min(last, span_ns))
