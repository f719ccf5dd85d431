"""The timeline of a run to look at: it moves where a page and a kernel can talk, and is a picture everywhere else."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpulab.errors import GpulabError, RunError
from gpulab.questions import diagnose
from gpulab.replay.prediction import Prediction
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.front_end import shows_widgets
from gpulab.views.report.report import report
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.view import View, in_lines, written
from gpulab.views.timeline.page import page
from gpulab.views.timeline.scene.scene import Scene, scene
from gpulab.views.timeline.static_picture import still
from gpulab.views.whatif.whatif import WhatIf

if TYPE_CHECKING:
    from gpulab.views.timeline.widget import TimelineModel

Beside = Run | Diagnosis | Prediction | WhatIf
Bundle = dict[str, str]
EVIDENCE_MARGIN = 0.35  # of the evidence, on either side of it
LEAST_NS = 20_000  # the narrowest window that Python asks for


def timeline(what: Run | Diagnosis, beside: Beside | None = None, *, live: bool | None = None) -> TimelineView:
    """The timeline of a run, zoomable, with a second run or a prediction below it if one is given.

    `live`: whether it moves; found out unless told. Raises RunError for what has no timeline.
    """
    for each in (what,) if beside is None else (what, beside):
        if not isinstance(each, Run | Diagnosis if each is what else Beside):
            raise RunError(
                f"A {type(each).__name__} has no timeline.",
                why="a timeline is of a run; what stands below it is a run or a prediction",
                fix='give runs: gpulab.timeline(gpulab.runs["before"], gpulab.runs["after"])',
            )
    diagnosis = what if isinstance(what, Diagnosis) else diagnose(what)
    return TimelineView(scene(diagnosis, beside), live=live)


class TimelineView:
    """A timeline that shows itself: end a cell with it. In Python it tells what is selected and in view, and moves."""

    def __init__(self, scene: Scene, *, live: bool | None = None) -> None:
        self.scene = scene
        self._header: dict[str, Any] = scene.header()
        self._live = live
        self._key = uuid4().hex
        self._model: TimelineModel | None = None
        self._asked: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return repr(self.static())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        """The picture, in a place that its script finds: no widget-view, which a reopened notebook could not show."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        return self.place(fragment(self.static().sheet))

    def place(self, html: str) -> str:
        """This HTML where the timeline is to be; it is what is seen wherever the timeline cannot be."""
        live = shows_widgets() if self._live is None else self._live
        if not live or not self._woken():
            return html
        return f'<div data-gpulab-timeline="{escape(self._key)}">{html}</div>'

    def widget(self) -> TimelineModel:
        """The living side in this kernel. Raises GpulabError where anywidget is missing."""
        if self._model is None:
            try:
                from gpulab.views.timeline.widget import TimelineModel
            except ImportError as problem:
                raise GpulabError(
                    "This timeline cannot move.", why=f"{problem.name} is not installed", fix="pip install anywidget"
                ) from problem
            self._model = TimelineModel(lambda: self.scene, self._key)
            self._move()
        return self._model

    def static(self, start_ns: int | None = None, end_ns: int | None = None) -> View:
        """A window as a picture and in words; the one in view unless told."""
        window = self.window if start_ns is None or end_ns is None else self._fitted(start_ns, end_ns)
        return View(still(self.scene.sides, self.scene.brush(*window), tuple(self._header["notes"])))

    @property
    def window(self) -> tuple[int, int]:
        """What is in view: start and end, in ns of the first run."""
        seen = self._model.window if self._model is not None else None
        if seen and len(seen) == 2 and seen[1] > seen[0]:
            return self._fitted(round(seen[0]), round(seen[1]))
        return self._asked or self._fitted(*self._header["home"])

    @property
    def selected(self) -> dict[str, Any] | None:
        """What was clicked last, or found by a search, with all that is known of it; None: nothing."""
        chosen = self._model.selected if self._model is not None else None
        if not chosen:
            return None
        row, id = int(chosen.get("row", -1)), int(chosen.get("id", -1))
        known = {key: chosen.get(key) for key in ("name", "start_ns", "dur_ns")}
        side = self.scene.side_of(row)
        if side is None:
            return known
        placed = side.group_of(row)
        lane = {"lane": placed.group.name if placed else "", "side": side.name}
        return {**known, **(self.scene.chosen(row, id) or {}), **lane}

    def go(self, start_ns: float, end_ns: float) -> None:
        """Show this window."""
        self._asked = self._fitted(start_ns, end_ns)
        self._move()

    def show(self, finding: str) -> None:
        """Show the evidence of a finding, named by its rule. Raises RunError where there is none."""
        found = {each["rule"]: each["spans"] for each in self._header["findings"] if each["spans"]}
        if finding not in found:
            raise RunError(
                f"There is no evidence to show for {finding!r}.",
                why="that was not found in this run, or at no particular time",
                fix=f"found with a time: {', '.join(found) or 'nothing'}",
            )
        start, end = found[finding][0]
        margin = EVIDENCE_MARGIN * (end - start)
        self.go(start - margin, end + margin)

    def brush(self, start_ns: float, end_ns: float) -> dict[str, Any]:
        """Where the time of this window went, by side: its ledger, which sums to it, and what took longest."""
        return self.scene.brush(*self._fitted(start_ns, end_ns, least_ns=0))

    def search(self, text: str) -> dict[str, Any]:
        """What has this in its name: how often, how long in all, and where."""
        return self.scene.search(text)

    def save(self, path: str | Path) -> Path:
        """Write `.html`, zoomable without a kernel, with the report under it; `.txt` or `.md`; gives the path."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            return self.static().save(path)
        return written(
            path, in_lines(page(self.scene, report(self.scene.diagnosis)._repr_html_(), timeline_first=True))
        )

    def _woken(self) -> bool:
        try:
            self.widget()
        except GpulabError:
            return False
        return True

    def _move(self) -> None:
        if self._model is not None and self._asked is not None:
            with self._model.hold_sync():
                self._model.window = [float(each) for each in self._asked]
                self._model.go = [*self._asked, (self._model.go[2] if self._model.go else 0) + 1]

    def _fitted(self, start_ns: float, end_ns: float, least_ns: int = LEAST_NS) -> tuple[int, int]:
        """Within the run, in order, and not too narrow to see anything."""
        first, last = sorted((round(start_ns), round(end_ns)))
        whole = max(1, self.scene.span_ns)
        if last - first < least_ns:
            first = (first + last - least_ns) // 2
            last = first + least_ns
        first = min(max(first, 0), max(0, whole - least_ns))
        return first, max(first + 1, min(last, whole))
