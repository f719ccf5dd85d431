"""Try fixes for programs that run out of memory on a virtual GPU, and find the cheapest fix that works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpulab.capture.run_registry import runs
from gpulab.lessons.labs.memory.oom_programs import (
    BOTH,
    CASES,
    REMEDIES,
    Program,
    fits,
    mended,
    room_bytes,
    states_bytes,
)
from gpulab.views.sheet.sheet import Line, Row, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.wording import size

GIB = 2**30
FIRST = ("wide", "many", "long", "more")  # those of CASES that fail in their first step


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Outcome of a program on the virtual GPU."""

    ran: bool
    asked_bytes: int = 0  # size of the allocation that failed
    phase: str = "forward"  # of the step, in which the allocation failed


@cache
def attempt(program: Program) -> Attempt:
    """Run a program on the virtual GPU; cached, because the outcome is deterministic."""
    if fits(program):
        return Attempt(ran=True)
    failure = runs["attempt"].failure
    if failure is None:  # cannot happen: a program that does not fit has a failure
        return Attempt(ran=False)
    return Attempt(ran=False, asked_bytes=failure.needed_bytes or 0, phase=failure.phase or "forward")


def cheapest(program: Program) -> str | None:
    """Return the cheapest single fix with which the program fits; None if there is none."""
    changed = ((name, fix(program)) for name, fix in REMEDIES.items())
    return next((name for name, other in changed if other != program and attempt(other).ran), None)


def known(*names: str) -> View:
    """Tabulate programs that fail in their first step, one column each."""
    programs = [CASES[name] for name in names]
    outcomes = [attempt(program) for program in programs]
    lines = (
        ("weights, gradients, Adam state", [size(states_bytes(each)) for each in programs]),
        ("samples per batch", [f"{each.batch:,}" for each in programs]),
        ("tokens per sample", [f"{each.length:,}" for each in programs]),
        ("half precision", ["yes" if each.half else "no" for each in programs]),
        ("attention", ["fused" if each.fused else "written out" for each in programs]),
        ("allocation that failed", [size(each.asked_bytes) for each in outcomes]),
        ("failed in", [each.phase for each in outcomes]),
    )
    table = Table(header=("", *names), rows=tuple(Row((name, *cells)) for name, cells in lines))
    capacity = Line(f"The GPU has {size(room_bytes())} for tensors.", soft=True)
    return View(Sheet("gpulab: programs that ran out of memory", (table, capacity)))


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(View):
    """Results of one fix per program, as a view to end a cell with."""

    right: tuple[str, ...]  # programs that fit with their fix, and with no cheaper one


def tried(chosen: Mapping[str, str]) -> Chosen:
    """Run the four programs that fail in their first step with the chosen fixes, and look for cheaper ones."""
    results = {name: _judge(CASES[name], chosen.get(name)) for name in FIRST}
    rows = tuple(Row((name, chosen.get(name) or "-", text)) for name, (_, text) in results.items())
    table = Table(header=("program", "fix", "result"), rows=rows, left=3)
    unknown = [name for name in chosen if name not in FIRST]
    notes = (Line(f"There is no program {unknown[0]!r}; use one of {', '.join(FIRST)}."),) if unknown else ()
    return Chosen(
        Sheet("gpulab: fixes tried", (table, *notes)),
        right=tuple(name for name, (right, _) in results.items() if right),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Plan(View):
    """Result of several fixes at once for the program with two reasons, as a view to end a cell with."""

    count: int | None  # number of fixes if the program fits; else None


def planned(names: Sequence[str]) -> Plan:
    """Run the program that fails for two reasons with all of these fixes."""
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in REMEDIES]
    if unknown:
        return Plan(Sheet("gpulab: a plan", (Line(_unknown_fix(unknown[0])),)), count=None)
    program = mended(BOTH, names)
    outcome = attempt(program)
    prefix = f"With {', '.join(names)}" if names else "Without fixes"
    text = f"{prefix}: {'it fits' if outcome.ran else _describe_failure(program, outcome)}."
    return Plan(Sheet("gpulab: a plan", (Line(text),)), count=len(names) if outcome.ran else None)


def _judge(program: Program, fix: str | None) -> tuple[bool, str]:
    """Return whether this is the cheapest fix that works, and a description of the result."""
    if fix is None:
        return False, "no fix chosen yet"
    if fix not in REMEDIES:
        return False, _unknown_fix(fix)
    other = REMEDIES[fix](program)
    if other == program:
        return False, "changes nothing: it does not apply to this program, or is already applied"
    outcome = attempt(other)
    if not outcome.ran:
        return False, _describe_failure(other, outcome)
    if fix != cheapest(program):
        return False, "fits, but a cheaper fix works, too"
    return True, "fits, and no cheaper fix works"


def _describe_failure(program: Program, outcome: Attempt) -> str:
    text = f"out of memory: an allocation of {size(outcome.asked_bytes)} failed in {outcome.phase}"
    fixed_bytes, capacity = states_bytes(program), room_bytes()
    if fixed_bytes <= capacity:
        return text
    return f"{text}; {size(fixed_bytes)} do not depend on the batch size, and the GPU has {size(capacity)}"


def _unknown_fix(name: str) -> str:
    return f"there is no fix {name!r}; use one of {', '.join(REMEDIES)}"
