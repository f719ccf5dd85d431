"""The commands that show something. Each returns its text and the exit status."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from gpulab.cli.output import Output
from gpulab.errors import GpulabError, RunError
from gpulab.run import Run
from gpulab.wording import count, plural

if TYPE_CHECKING:
    from gpulab.lessons.handout import CopyResult

NBVAL_SETTINGS = Path(__file__).resolve().parents[1] / "lessons" / "nbval.cfg"
COURSE_FOLDER = Path("gpulab-course")


def run_report(options: Namespace) -> Output:
    """Return the report of a file, or of the ranks in a folder, including those that were killed."""
    from gpulab.cli.job_report import job_report, recover_ranks
    from gpulab.cli.summary import summary_json

    path = Path(options.path)
    if path.is_dir():
        recover_ranks(path)
    view = job_report(_load(options.path), everything=options.all)
    if options.save is not None:
        return Output(f"saved {view.view.save(options.save)}")
    if options.json:
        return Output(summary_json(view.view.diagnosis, view.ranks).rstrip("\n"))
    return Output(view.text(path, folded=not options.short))


def run_fix(options: Namespace) -> Output:
    """Measure the fixes of a script, and return the table of them, with the code of the fastest."""
    from gpulab.cli.fix.script_trial import FixOptions, try_fixes_of_script
    from gpulab.cli.program import program_of
    from gpulab.views.terminal import terminal_text

    view = try_fixes_of_script(
        FixOptions(
            program=program_of(options.program, options.module),
            recording=options.recording,
            rule=options.rule,
            seconds=options.seconds,
            protected=not options.no_protection,
        ),
        _announce,
    )
    text = terminal_text(view)
    try:
        saved = "" if options.save is None else f"\nsaved {view.save(options.save)}"
    except (GpulabError, OSError) as problem:  # what was measured is not lost
        return Output(f"{text}\n\ngpulab: not saved: {problem}", 2)
    return Output(text + saved)


def _announce(text: str) -> None:
    """Write what takes time now to stderr, because stdout has the result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_whatif(options: Namespace) -> Output:
    """Return the prediction for changes of a run or of the ranks in a folder; without any, all of them ranked."""
    from gpulab.views.terminal import terminal_text
    from gpulab.views.whatif.whatif import whatif

    return Output(terminal_text(whatif(_load(options.path), " ".join(options.changes)), Path(options.path)))


def run_why(options: Namespace) -> Output:
    """Return the page of a rule or of a change."""
    from gpulab.views.rule_page import page
    from gpulab.views.terminal import terminal_text

    return Output(terminal_text(page(options.name)))


def run_info(_: Namespace) -> Output:
    """Return what can be measured on this machine."""
    from gpulab.views.info import info
    from gpulab.views.terminal import terminal_text

    return Output(terminal_text(info()))


def run_compare(options: Namespace) -> Output:
    """Return the comparison of two sides; status 1 if the second is slower than allowed."""
    from gpulab.cli.gate import judge
    from gpulab.questions import compare
    from gpulab.views.compare.comparison import comparison_view
    from gpulab.views.terminal import terminal_text

    compared = compare(_side(options.before), _side(options.after))
    view = comparison_view(compared)
    if options.save is not None:
        view.save(options.save)
    text = terminal_text(view)
    if options.fail_over is None:
        return Output(text)
    verdict = judge(compared, options.fail_over)
    return Output(f"{text}\n\n{verdict.text}", 0 if verdict.passes else 1)


def run_watch(options: Namespace) -> Output:
    """Record all GPUs until a signal arrives."""
    from gpulab.cli.watch_command import watch_until_stopped

    return watch_until_stopped(options)


def run_history(options: Namespace) -> Output:
    """Return what gpulab watch recorded."""
    from gpulab.hardware.prices import parse_prices
    from gpulab.views.history.history_view import history
    from gpulab.views.terminal import terminal_text

    prices = None if options.price is None else parse_prices(options.price)
    view = history(options.span, path=options.database, prices=prices)
    return Output(f"saved {view.save(options.save)}" if options.save is not None else terminal_text(view))


def run_lessons(options: Namespace) -> Output:
    """Copy the course notebooks."""
    from gpulab.lessons.handout import copy_course

    folder = options.folder or COURSE_FOLDER
    copied = copy_course(folder)
    lines = [f"{_written(copied, folder)} written to {folder}"]
    if copied.existing:
        present = len(copied.existing)
        verbs = plural(present, "exists already and is", "exist already and are")
        lines.append(f"{present} {verbs} unchanged; delete one to get the original again")
    first = folder / "00_start_here.ipynb"
    return Output("\n".join((*lines, f"Begin with lesson 00: jupyter lab {first} (index.ipynb lists all)")))


def _written(copied: CopyResult, folder: Path) -> str:
    """Return what was copied: "21 lessons, 21 solutions and an index"."""
    if not copied.written:
        return "no new notebook"
    names = [path.name for path in copied.written if path.parent == folder]
    lessons = count(sum(name[:1].isdigit() for name in names), "lesson")
    solutions = count(len(copied.written) - len(names), "solution")
    return f"{lessons}, {solutions} and an index" if "index.ipynb" in names else f"{lessons} and {solutions}"


def run_nbval(_: Namespace) -> Output:
    """Return the path of the settings file for nbval."""
    return Output(str(NBVAL_SETTINGS))


def _load(path: str) -> tuple[Run, ...]:
    from gpulab.files import load

    loaded = load(path)
    return (loaded,) if isinstance(loaded, Run) else tuple(loaded.runs)


def _side(text: str) -> list[Run]:
    """Return the runs of one side: files separated by commas, or patterns."""
    parts = text.split(",")
    folders = [part for part in parts if Path(part).is_dir()]
    if folders:
        raise RunError(
            f"{folders[0]!r} cannot be compared.",
            why="it is a folder",
            fix=f"name a recording in it, such as {Path(folders[0]) / 'run.gpulab'}",
        )
    return [run for part in parts for run in _load(part)]
