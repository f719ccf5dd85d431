"""Send runs with extreme values through every view: each gives a view or a GpulabError, and no warning from numpy.

    python tests/support/pipeline_probes.py [--count 5000] [--seed 0] [--only N]

Every probe has a number: one view of one run. `--only N` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import gpulab
from gpulab.comparison import compare
from gpulab.questions.run_names import save
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.rules import diagnose
from gpulab.run import TABLE_FIELDS, Run
from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.info import info
from gpulab.views.perfetto import to_perfetto
from gpulab.views.report.report import MOST_PAGE_BYTES, report
from gpulab.views.timeline.scene.scene import build_scene
from gpulab.views.timeline.view import timeline
from gpulab.views.whatif.whatif import whatif
from tests.support.runs.extreme_runs import extreme_run
from tests.support.runs.stored_runs import assert_same_run

PROBES_PER_RUN = 8
LIMIT_S = 120  # a hang; the slowest view of an ordinary run takes a hundredth
MEMORY_BYTES = 6 * 2**30  # of address space beyond what the process has when it begins
MAX_HTML_BYTES = MOST_PAGE_BYTES + 1_000_000
_VALUES = {"workers": "6", "gpu": "A100", "batch": "2x", "accumulate": "4", "bucket_mb": "25", "python": "0.5"}
CHANGES = [
    rewrite.name if rewrite.default is True else f"{rewrite.name}={_VALUES.get(rewrite.name, rewrite.default or 0.5)}"
    for rewrite in REWRITES
]
_NOT_FINITE = re.compile(r"(?<![\w\"'(.\\/-])-?(nan|inf)(?![\w\"'.\\/])")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A probe that ended in anything but a view or a GpulabError."""

    number: int
    view: str
    error: str  # the kind of error and where it was raised
    details: str


class TooLong(BaseException):
    """A probe took longer than any should: no Exception, so that nothing catches it."""


class UnsafeOutputError(AssertionError):
    """A view holds text that controls the terminal, a number that is none, or too much of everything."""


def run_probes(seed: int, count: int, *, start: int = 0) -> list[Problem]:
    """Make this many views of extreme runs, beginning with number `start`; return those that failed."""
    problems, _ = probe(range(start, start + count), seed)
    return problems


def probe(numbers: range | list[int], seed: int) -> tuple[list[Problem], Counter[str]]:
    """Return the problems of these probes, and how many of each view were made or refused."""
    problems: list[Problem] = []
    tally: Counter[str] = Counter()
    with bounded(), tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            view = "run"
            try:
                signal.alarm(LIMIT_S)
                view, run, other = subject(number, seed)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", RuntimeWarning)
                    VIEWS[view](run, other, Path(folder))
                tally[f"{view.split()[0]}: made"] += 1
            except gpulab.GpulabError as error:
                tally[f"{view.split()[0]}: refused with a reason"] += 1
                with contextlib.suppress(UnsafeOutputError):
                    check_text(str(error))
                    continue
                problems.append(_problem(number, view, error))
            except (Exception, TooLong) as error:
                tally[f"{view.split()[0]}: FAILED"] += 1
                problems.append(_problem(number, view, error))
            finally:
                signal.alarm(0)
    return problems, tally


def _problem(number: int, view: str, error: BaseException) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    frames_of_gpulab = [frame for frame in frames if "/gpulab/" in frame.filename] or frames
    place = frames_of_gpulab[-1]
    at = f"{place.filename.rpartition('/gpulab/')[2]}:{place.lineno}"
    text = f"{type(error).__name__} at {at}: {str(error)[:200]!r}"
    details = "".join(traceback.format_exception(error, limit=-8))[-3000:]
    return Problem(number=number, view=view, error=text, details=details)


@functools.lru_cache(maxsize=4)
def _run(seed: int, number: int) -> Run:
    return extreme_run(seed, number)


def subject(number: int, seed: int) -> tuple[str, Run, Run]:
    """Return the view of a probe, its run, and a second run."""
    run_number, place = divmod(number, PROBES_PER_RUN)
    dice = random.Random(f"views {seed}/{run_number}")
    views = dice.sample([*VIEWS], PROBES_PER_RUN)
    run = _run(seed, run_number)
    other = dataclasses.replace(run, name="other") if dice.random() < 0.5 else _run(seed, max(0, run_number - 1))
    return views[place], run, other


class bounded:  # noqa: N801  (used as a function)
    """Within it the process has so much more address space, and an alarm raises TooLong."""

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, self._before[1]))
        self._handler = signal.signal(signal.SIGALRM, self._end)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._handler)
        resource.setrlimit(resource.RLIMIT_AS, self._before)

    @staticmethod
    def _end(number: int, frame: FrameType | None) -> None:
        raise TooLong


# The views.


def check_text(text: str) -> None:
    """Raise UnsafeOutputError for control characters, and for numbers that are not finite."""
    unsafe = {each for each in text if unicodedata.category(each) in _INVISIBLE} - {"\n"}
    if unsafe:
        raise UnsafeOutputError(f"characters {sorted(unsafe)!a}")
    if match := _NOT_FINITE.search(text):
        raise UnsafeOutputError(f"a number that is none: {text[max(0, match.start() - 60) : match.end() + 20]!a}")


def check_html(html: str, max_bytes: int = MAX_HTML_BYTES) -> None:
    """Raise UnsafeOutputError for a page that is too large, or that holds control characters."""
    if len(html.encode()) > max_bytes:
        raise UnsafeOutputError(f"{len(html.encode()):,} bytes of HTML")
    unsafe = {each for each in html if unicodedata.category(each) in _INVISIBLE} - {"\n"}
    if unsafe:
        raise UnsafeOutputError(f"characters {sorted(unsafe)!a} in HTML")


def check_view(view: Any, folder: Path) -> None:
    """Make a view in every form."""
    check_text(repr(view))
    check_html(view._repr_html_(), 1_000_000)
    for suffix in (".md", ".txt"):
        check_text(view.save(folder / f"view{suffix}").read_text(encoding="utf-8"))
    check_html(view.save(folder / "view.html").read_text(encoding="utf-8"))


def _round_trip(run: Run, other: Run, folder: Path) -> None:
    assert_same_run(run, gpulab.load(save(run, folder / "again.gpulab"), progress=False))


def _reprs(run: Run, other: Run, folder: Path) -> None:
    check_text(repr(run))
    check_text(str(run.source))
    for field in TABLE_FIELDS:
        getattr(run, field).frame()
        getattr(run, field)._repr_html_()


def _report(run: Run, other: Run, folder: Path) -> None:
    check_view(report(run), folder)


def _report_png(run: Run, other: Run, folder: Path) -> None:
    report(run).save(folder / "report.png")


def _ranks(run: Run, other: Run, folder: Path) -> None:
    """Diagnose 64 ranks, of which one or two are different."""
    run = dataclasses.replace(run, rank=0)
    ranks = [dataclasses.replace(run if rank % 9 else other, rank=rank) for rank in range(64)]
    check_view(report(diagnose(ranks)), folder)


def _whatif_list(run: Run, other: Run, folder: Path) -> None:
    check_view(whatif(run, samples=3), folder)


def _whatif(part: int, run: Run, other: Run, folder: Path) -> None:
    """Predict every third change alone, and all of those together that this run allows."""
    accepted = []
    for change in CHANGES[part::3]:
        with contextlib.suppress(gpulab.GpulabError):
            check_text(repr(whatif(run, change, samples=3)))
            accepted.append(change)
    if not accepted:
        whatif(run, CHANGES[part], samples=3)  # raises the reason
    check_view(whatif(run, ", ".join(accepted), samples=3), folder)


def _compare(run: Run, other: Run, folder: Path) -> None:
    check_view(comparison_view(compare(run, other)), folder)
    check_view(comparison_view(compare(run, other, run)), folder)


def _timeline(run: Run, other: Run, folder: Path) -> None:
    view = timeline(run, live=False)
    check_text(repr(view))
    check_html(view._repr_html_(), 1_000_000)
    view.brush(0, run.span_ns)
    view.search("a")
    scene = build_scene(diagnose(run), other)
    scene.header()
    scene.tile(0, 0)
    scene.tile(1, 0)


def _timeline_page(run: Run, other: Run, folder: Path) -> None:
    check_html(timeline(run, other, live=False).save(folder / "timeline.html").read_text(encoding="utf-8"))


def _perfetto(run: Run, other: Run, folder: Path) -> None:
    path = to_perfetto(run, folder / "out.json.gz")
    if len(run.event_rows):
        gpulab.load(path, progress=False)


def _chart(draw: Callable[..., Any], run: Run, other: Run, folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chart = draw(run)
        check_html(chart._repr_html_())
    for warning in caught:
        raise UnsafeOutputError(f"a warning: {warning.category.__name__}: {str(warning.message)[:150]}")
    check_text(chart.alt)


def _info(run: Run, other: Run, folder: Path) -> None:
    check_view(info(run.machine), folder)


def _views() -> Iterator[tuple[str, Callable[[Run, Run, Path], None]]]:
    yield "round trip", _round_trip
    yield "reprs", _reprs
    yield "report", _report
    yield "report as picture", _report_png
    yield "ranks", _ranks
    yield "whatif list", _whatif_list
    for number in range(3):  # drawn as often as a chart
        yield f"whatif {number}", functools.partial(_whatif, number)
    yield "compare", _compare
    yield "timeline", _timeline
    yield "timeline page", _timeline_page
    yield "perfetto", _perfetto
    yield "info", _info
    for draw in CHARTS:
        yield f"chart {draw.__name__}", functools.partial(_chart, draw)


VIEWS = dict(_views())


def main() -> int:
    """Make the views, print a tally and the failures by place; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    began = time.perf_counter()
    numbers = range(options.start, options.start + options.count) if options.only is None else [options.only]
    problems, tally = probe(numbers, options.seed)
    for outcome, count in sorted(tally.items()):
        print(f"{count:8,}  {outcome}")
    places: dict[str, list[Problem]] = {}
    for problem in problems:
        places.setdefault(
            problem.error.partition(":")[0] + problem.error.partition(":")[2].partition(":")[0], []
        ).append(problem)
    print(f"{sum(tally.values()):8,}  probes in {time.perf_counter() - began:.0f} s, {len(problems)} problems")
    for several in sorted(places.values(), key=len, reverse=True):
        first = several[0]
        print(f"{len(several):5}  {first.view}, probe {first.number}: {first.error}")
        if options.only is not None:
            print(first.details)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
