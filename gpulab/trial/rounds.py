"""Run variants of a cell, or of a script, in turn with the unchanged one, and compare each of them with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.questions import compare
from gpulab.rules import Finding
from gpulab.run import Run
from gpulab.trial.program_code import ProgramCode
from gpulab.trial.tried_fix import TriedFix

_MORE_REPEATS = 2  # if the runs differ without a clear result: other programs may have disturbed one
_UNCLEAR_DIFFERENCE = 1.1  # a smaller ratio of the step times is not worth more runs

Quiet = Callable[[], AbstractContextManager[Any]]


class Runner(Protocol):
    """Runs a program for some seconds, without effects that last."""

    isolation: str  # why it has no effects: "on copies of the variables"

    @property
    def effects(self) -> tuple[tuple[str, str], ...]:
        """What the program was not allowed to do, as labelled lines."""

    def record(self, program: ProgramCode, name: str, fix_for: str = "") -> Run:
        """Run a variant and return its recording. Raises CaptureError if it fails, or if no step is detected.

        `fix_for`: the fix that the variant contains; "" for the unchanged program.
        """


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A program with the fix of a finding. `name`: of its runs, after that of the run whose fix it is."""

    name: str
    finding: Finding
    code: ProgramCode
    place: str = ""  # where the fix is
    work_ratio: float = 1.0  # work in a step with the fix / without


class Rounds:
    """Runs each variant as often as the unchanged program, and in turn, so that other programs slow all of them."""

    def __init__(self, runner: Runner, run_name: str, unchanged: ProgramCode, repeats: int) -> None:
        self._runner, self._run_name, self._unchanged, self._repeats = runner, run_name, unchanged, repeats

    def tried(self, variants: Sequence[Variant]) -> list[TriedFix]:
        """Return what the trial of each variant measured. Raises CaptureError if the unchanged one fails.

        Variants whose times differ by 10 % without a clear result run two more times.
        """
        unchanged, runs, errors = list[Run](), dict[str, list[Run]](), dict[str, CaptureError]()
        pending = list(variants)
        for repeats in (self._repeats, _MORE_REPEATS if self._repeats > 1 else 0):
            for _ in range(repeats if pending else 0):
                unchanged.append(self._record(self._unchanged, "unchanged", len(unchanged)))
                for variant in pending:
                    earlier = runs.setdefault(variant.name, [])
                    try:
                        run = self._record(variant.code, variant.name, len(earlier), variant.finding.label)
                    except CaptureError as error:
                        errors[variant.name] = error
                    else:
                        earlier.append(run)
                pending = [variant for variant in pending if variant.name not in errors]
            pending = [each for each in pending if _is_unclear(_compared(unchanged, runs[each.name], each))]
        return [
            TriedFix(
                finding=variant.finding,
                comparison=None if variant.name in errors else _compared(unchanged, runs[variant.name], variant),
                error=errors.get(variant.name),
                place=variant.place,
                work_ratio=variant.work_ratio,
            )
            for variant in variants
        ]

    def _record(self, code: ProgramCode, name: str, earlier: int, fix_for: str = "") -> Run:
        run = self._runner.record(code, f"{self._run_name}.{name}", fix_for)
        return replace(run, name=f"{name} {earlier + 1}")


def _compared(unchanged: list[Run], fixed: list[Run], variant: Variant) -> Comparison:
    return compare(unchanged, fixed, predicted=variant.finding.gain)


def _is_unclear(comparison: Comparison) -> bool:
    """Whether more runs may tell whether there is a difference that is worth it."""
    difference = max(comparison.ratio, 1 / comparison.ratio)
    return not (comparison.above_noise and comparison.conclusive) and difference >= _UNCLEAR_DIFFERENCE
