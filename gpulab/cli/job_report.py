"""The report of a recorded program: text for the terminal, a page, and a summary, from the recordings in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpulab import store
from gpulab.capture.job_rank import rank_name, rank_of_name
from gpulab.cli.result_folder import RUN_SUFFIX, spool_of, unfinished_stems
from gpulab.cli.summary import summary_json
from gpulab.rules.engine.pasted_names import fixes_to_try
from gpulab.run import KILLED, Run
from gpulab.store.replaced_file import replaced_file
from gpulab.views.report.headline import headline
from gpulab.views.report.report import Report, report
from gpulab.views.terminal import terminal_text
from gpulab.wording import number_ranges, plural

PAGE, SUMMARY = "report.html", "summary.json"


@dataclass(frozen=True)
class JobReport:
    """The report of one process, or of all ranks of a job."""

    view: Report
    runs: tuple[Run, ...]
    missing: tuple[int, ...] = ()  # ranks without a recording

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read."""
        return tuple(run.rank for run in self.runs if run.rank is not None)

    def text(self, path: Path | None, *, folded: bool) -> str:
        """Return the text for a terminal; `path`: the file of the run, or the folder of the ranks."""
        file = _file_of(self.view.diagnosis.run, path) if path is not None and path.is_dir() else path
        return "\n".join((*self._notes(), terminal_text(self.view, file, folded=folded)))

    @property
    def has_fix_to_try(self) -> bool:
        """Whether `gpulab fix` can measure a fix: of one process, recorded on this machine."""
        diagnosis = self.view.diagnosis
        is_recorded_here = diagnosis.run.source.how == "measured" and len(self.runs) == 1
        return is_recorded_here and any(fixes_to_try(finding) for finding in diagnosis.findings)

    @property
    def headline(self) -> str:
        """The cause and the predicted gain in one sentence."""
        answer = headline(self.view.diagnosis)
        return f"{answer.claim} Predicted step time: {answer.gist}." if answer.gist else answer.claim

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write the page and the summary. Raises GpulabError or OSError."""
        page = self.view.save(folder / PAGE)
        with replaced_file(folder / SUMMARY) as file:
            file.write(summary_json(self.view.diagnosis, self.ranks).encode())
        return page, folder / SUMMARY

    def _notes(self) -> Sequence[str]:
        """Lines about ranks that failed, were killed, or left nothing."""
        ended: dict[str, list[int]] = {}
        for run in self.runs:
            if run.rank is not None and run.outcome != "ok":
                ended.setdefault(run.outcome, []).append(run.rank)
        lines = [
            f"{_rank_names(ranks).capitalize()} {_was(ranks)} "
            f"{'killed' if outcome == KILLED else f'ended by {outcome}'}; the recording reaches to that moment."
            for outcome, ranks in ended.items()
        ]
        if self.missing:
            lines.append(
                f"{_rank_names(self.missing).capitalize()} left no recording: killed in the first second, or on "
                "another machine. Ranks of several machines need --out with a folder that all of them share."
            )
        return lines


def job_report(runs: Sequence[Run], missing: Sequence[int] = (), *, everything: bool = False) -> JobReport:
    """Return the report of the runs of a job, ordered by rank. `missing`: ranks without a recording."""
    ordered = tuple(sorted(runs, key=lambda run: -1 if run.rank is None else run.rank))
    view = report(ordered[0] if len(ordered) == 1 else ordered, everything=everything)
    return JobReport(view, ordered, tuple(missing))


def recover_ranks(folder: Path) -> tuple[Path, ...]:
    """Save a run for each process of this job that was killed, from the copy that it left; return the files."""
    from gpulab.capture.spool.recovery import recover_from

    saved = []
    for stem in unfinished_stems(folder):
        copy = spool_of(folder, stem)
        for run in recover_from(copy):  # it deletes the copy of a run when the next one is asked for: after saving
            path = store.save(replace(run, rank=rank_of_name(stem)), folder / f"{stem}{RUN_SUFFIX}")
            saved.append(path)
        with suppress(OSError):
            copy.rmdir()
    return tuple(saved)


def _file_of(run: Run, folder: Path) -> Path:
    stem = "run" if run.rank is None else rank_name(run.rank)
    return folder / f"{stem}{RUN_SUFFIX}"


def _rank_names(ranks: Sequence[int]) -> str:
    return f"{plural(len(ranks), 'rank')} {number_ranges(sorted(ranks))}"


def _was(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"
