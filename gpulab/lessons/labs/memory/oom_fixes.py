"""Try fixes for programs that run out of memory on a virtual GPU, and find the cheapest fix that works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpulab.capture.run_registry import runs
from gpulab.lessons.labs.memory.oom_programs import (
    OOM_FIXES,
    OOM_PROGRAMS,
    TWO_CAUSES,
    TrainingProgram,
    apply_fixes,
    card_capacity_bytes,
    model_state_bytes,
    runs_on_card,
)
from gpulab.views.sheet.sheet import Line, Row, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import size

GIB = 2**30
FIRST_STEP_FAILURES = ("wide", "many", "long", "more")  # those of CASES that fail in their first step


@dataclass(frozen=True, kw_only=True)
class ProgramOutcome:
    """Outcome of a program on the virtual GPU."""

    ran: bool
    requested_bytes: int = 0  # size of the allocation that failed
    phase: str = "forward"  # of the step, in which the allocation failed


@cache
def try_program(program: TrainingProgram) -> ProgramOutcome:
    """Run a program on the virtual GPU; cached, because the outcome is deterministic."""
    if runs_on_card(program):
        return ProgramOutcome(ran=True)
    failure = runs["attempt"].failure
    if failure is None:  # cannot happen: a program that does not fit has a failure
        return ProgramOutcome(ran=False)
    return ProgramOutcome(ran=False, requested_bytes=failure.needed_bytes or 0, phase=failure.phase or "forward")


def cheapest_fix(program: TrainingProgram) -> str | None:
    """Return the cheapest single fix with which the program fits; None if there is none."""
    changed = ((name, fix(program)) for name, fix in OOM_FIXES.items())
    return next((name for name, other in changed if other != program and try_program(other).ran), None)


def program_table(*names: str) -> View:
    """Tabulate programs that fail in their first step, one column each."""
    programs = [OOM_PROGRAMS[name] for name in names]
    outcomes = [try_program(program) for program in programs]
    lines = (
        ("weights, gradients, Adam state", [size(model_state_bytes(each)) for each in programs]),
        ("samples per batch", [f"{each.batch:,}" for each in programs]),
        ("tokens per sample", [f"{each.length:,}" for each in programs]),
        ("half precision", ["yes" if each.bfloat16 else "no" for each in programs]),
        ("attention", ["fused" if each.fused else "written out" for each in programs]),
        ("allocation that failed", [size(each.requested_bytes) for each in outcomes]),
        ("failed in", [each.phase for each in outcomes]),
    )
    table = TableBlock(header=("", *names), rows=tuple(Row((name, *cells)) for name, cells in lines))
    capacity = Line(f"The GPU has {size(card_capacity_bytes())} for tensors.", soft=True)
    return View(Sheet("gpulab: programs that ran out of memory", (table, capacity)))


@dataclass(frozen=True, eq=False, repr=False)
class FixTrials(View):
    """Results of one fix per program, as a view to end a cell with."""

    solved: tuple[str, ...]  # programs that fit with their fix, and with no cheaper one


def try_fixes(chosen: Mapping[str, str]) -> FixTrials:
    """Run the four programs that fail in their first step with the chosen fixes, and look for cheaper ones."""
    if not isinstance(chosen, Mapping):
        line = Line('Write one fix for each program: chosen = {"wide": ..., "many": ..., "long": ..., "more": ...}')
        return FixTrials(Sheet("gpulab: fixes tried", (line,)), solved=())
    results = {name: _judge(OOM_PROGRAMS[name], chosen.get(name)) for name in FIRST_STEP_FAILURES}
    rows = tuple(Row((name, str(chosen.get(name) or "-"), text)) for name, (_, text) in results.items())
    table = TableBlock(header=("program", "fix", "result"), rows=rows, text_columns=3)
    unknown = [name for name in chosen if name not in FIRST_STEP_FAILURES]
    notes = (
        (Line(f"There is no program {unknown[0]!r}; use one of {', '.join(FIRST_STEP_FAILURES)}."),) if unknown else ()
    )
    return FixTrials(
        Sheet("gpulab: fixes tried", (table, *notes)),
        solved=tuple(name for name, (right, _) in results.items() if right),
    )


@dataclass(frozen=True, eq=False, repr=False)
class FixPlan(View):
    """Result of several fixes at once for the program with two reasons, as a view to end a cell with."""

    count: int | None  # number of fixes if the program fits; else None


def try_plan(names: Sequence[str]) -> FixPlan:
    """Run the program that fails for two reasons with all of these fixes."""
    names = [names] if isinstance(names, str) else list(names or ())
    unknown = [name for name in names if not _is_fix(name)]
    if unknown:
        return FixPlan(Sheet("gpulab: a plan", (Line(_unknown_fix(unknown[0])),)), count=None)
    program = apply_fixes(TWO_CAUSES, names)
    outcome = try_program(program)
    prefix = f"With {', '.join(names)}" if names else "Without fixes"
    text = f"{prefix}: {'it fits' if outcome.ran else _describe_failure(program, outcome)}."
    return FixPlan(Sheet("gpulab: a plan", (Line(text),)), count=len(names) if outcome.ran else None)


def _judge(program: TrainingProgram, fix: str | None) -> tuple[bool, str]:
    """Return whether this is the cheapest fix that works, and a description of the result."""
    if fix is None:
        return False, "no fix chosen yet"
    if not _is_fix(fix):
        return False, _unknown_fix(fix)
    other = OOM_FIXES[fix](program)
    if other == program:
        return False, "changes nothing: it does not apply to this program, or is already applied"
    outcome = try_program(other)
    if not outcome.ran:
        return False, _describe_failure(other, outcome)
    if fix != cheapest_fix(program):
        return False, "fits, but a cheaper fix works, too"
    return True, "fits, and no cheaper fix works"


def _describe_failure(program: TrainingProgram, outcome: ProgramOutcome) -> str:
    text = f"out of memory: an allocation of {size(outcome.requested_bytes)} failed in {outcome.phase}"
    fixed_bytes, capacity = model_state_bytes(program), card_capacity_bytes()
    if fixed_bytes <= capacity:
        return text
    return f"{text}; {size(fixed_bytes)} do not depend on the batch size, and the GPU has {size(capacity)}"


def _is_fix(name: object) -> bool:
    return isinstance(name, str) and name in OOM_FIXES


def _unknown_fix(name: object) -> str:
    names = ", ".join(f'"{fix}"' for fix in OOM_FIXES)
    return f"there is no fix {name!r}; write one of {names}"
