"""Remedies for programs that run out of memory, tried on the card: what came of each, and if a cheaper one does too."""

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

GIB = 2**30
FIRST = ("wide", "many", "long", "more")  # those of CASES that fail in their first step


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a program ended on the card."""

    ran: bool
    asked_bytes: int = 0  # that were not to be had
    phase: str = "forward"  # in which they were asked for


@cache
def attempt(program: Program) -> Attempt:
    """Run a program on the virtual card. The same program ends the same way, so it is run once."""
    if fits(program):
        return Attempt(ran=True)
    failure = runs["attempt"].failure
    if failure is None:  # it failed, so there is one
        return Attempt(ran=False)
    return Attempt(ran=False, asked_bytes=failure.needed_bytes or 0, phase=failure.phase or "forward")


def cheapest(program: Program) -> str | None:
    """The first remedy, in the order of their price, with which the program runs; None where no single one does."""
    changed = ((name, remedy(program)) for name, remedy in REMEDIES.items())
    return next((name for name, other in changed if other != program and attempt(other).ran), None)


def known(*names: str) -> View:
    """What is known of programs that fail in their first step, a column each."""
    programs = [CASES[name] for name in names]
    ends = [attempt(program) for program in programs]
    lines = (
        ("weights, gradients, Adam's numbers", [f"{states_bytes(each) / GIB:.1f} GiB" for each in programs]),
        ("samples in a batch", [f"{each.batch:,}" for each in programs]),
        ("tokens in a sample", [f"{each.length:,}" for each in programs]),
        ("half precision", ["yes" if each.half else "no" for each in programs]),
        ("attention", ["fused" if each.fused else "written out" for each in programs]),
        ("asked for, and not to be had", [_size(each.asked_bytes) for each in ends]),
        ("in", [each.phase for each in ends]),
    )
    table = Table(header=("", *names), rows=tuple(Row((name, *cells)) for name, cells in lines))
    room = Line(f"The card has {room_bytes() / GIB:.1f} GiB for tensors.", soft=True)
    return View(Sheet("gpulab: programs that ran out of memory", (table, room)))


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(View):
    """A remedy for each of some programs, and what came of it: end a cell with it."""

    right: tuple[str, ...]  # programs that run with theirs, and with none that is cheaper


def tried(chosen: Mapping[str, str]) -> Chosen:
    """Run each of the four that fail in their first step with the remedy chosen for it, and with every cheaper one."""
    told = {name: _told(CASES[name], chosen.get(name)) for name in FIRST}
    rows = tuple(Row((name, chosen.get(name) or "-", words)) for name, (_, words) in told.items())
    table = Table(header=("program", "remedy", "what came of it"), rows=rows, left=3)
    strange = [name for name in chosen if name not in FIRST]
    more = (Line(f"There is no program {strange[0]!r}; there are {', '.join(FIRST)}."),) if strange else ()
    return Chosen(
        Sheet("gpulab: remedies tried", (table, *more)), right=tuple(name for name, (right, _) in told.items() if right)
    )


@dataclass(frozen=True, eq=False, repr=False)
class Plan(View):
    """Some remedies at once for the program that fails for two reasons: end a cell with it."""

    count: int | None  # of remedies, if it runs with them


def planned(names: Sequence[str]) -> Plan:
    """Run the program that fails for two reasons with all of these in place."""
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in REMEDIES]
    if unknown:
        return Plan(Sheet("gpulab: a plan", (Line(_no_such(unknown[0])),)), count=None)
    program = mended(BOTH, names)
    end = attempt(program)
    with_what = f"With {', '.join(names)}" if names else "As it is"
    words = f"{with_what}: {'it runs' if end.ran else _why(program, end)}."
    return Plan(Sheet("gpulab: a plan", (Line(words),)), count=len(names) if end.ran else None)


def _told(program: Program, remedy: str | None) -> tuple[bool, str]:
    """Whether this is the cheapest remedy that helps, and what to say."""
    if remedy is None:
        return False, "not chosen yet"
    if remedy not in REMEDIES:
        return False, _no_such(remedy)
    other = REMEDIES[remedy](program)
    if other == program:
        return False, "changes nothing: there is nothing of it to change, or it is done already"
    end = attempt(other)
    if not end.ran:
        return False, _why(other, end)
    if remedy != cheapest(program):
        return False, "runs, but a cheaper one does too"
    return True, "runs, and nothing cheaper does"


def _why(program: Program, end: Attempt) -> str:
    words = f"runs out: {_size(end.asked_bytes)} more wanted in {end.phase}"
    always, room = states_bytes(program), room_bytes()
    if always <= room:
        return words
    return f"{words}; {always / GIB:.1f} GiB are there whatever the batch, and the card has {room / GIB:.1f}"


def _no_such(name: str) -> str:
    return f"there is no remedy {name!r}; there are {', '.join(REMEDIES)}"


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:,.0f} MiB"
