"""Compare the plain and the recorded run of a program."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.documented import MIB, Difference
from tests.chaos.program import Observation, Outcome, Program

_OF_PROGRAMS = ("random states", "atexit")  # they follow the steps of the program
RSS_BYTES = 128 * MIB  # resident memory that a recording may keep beyond the plain run
PEAK_BYTES = 256 * MIB  # and use at any time


def differences(program: Program, plain: Observation, recorded: Observation) -> list[Difference]:
    """Return every field that differs."""
    if plain.trouble and plain.trouble == recorded.trouble and plain.trouble.startswith("the process ended"):
        return []  # the program itself ends its process
    if plain.trouble or recorded.trouble:
        return [Difference("trouble", plain.trouble, recorded.trouble)]
    return list(_differences(program, plain, recorded))


def _differences(program: Program, plain: Observation, recorded: Observation) -> Iterator[Difference]:
    before, after = plain.outcome, recorded.outcome
    same_end = program.verdict is not None or (before.value, before.chain) == (after.value, after.chain)
    if program.verdict is not None:
        if plain.verdict != recorded.verdict:
            yield Difference("verdict", str(plain.verdict), str(recorded.verdict), after.origin)
    elif not same_end:
        ends = [" <- ".join(kind for _, kind, _ in each.chain) or "returned" for each in (before, after)]
        group = "" if ends[0] == ends[1] else f"ends with {ends[1]}" if after.chain else "ends without its exception"
        yield Difference("outcome", describe(before), describe(after), after.origin if after.chain else "", group)
    else:
        if plain.notes != recorded.notes:
            yield _first_difference(plain.notes, recorded.notes)
        for name in sorted(plain.calls.keys() | recorded.calls.keys()):
            counts = plain.calls.get(name, 0), recorded.calls.get(name, 0)
            if counts[0] != counts[1]:
                yield Difference(f"calls {name}", *map(str, counts))
        for stream in ("stdout", "stderr"):
            texts = getattr(plain, stream), getattr(recorded, stream)
            if texts[0] != texts[1]:
                yield Difference(stream, *texts)
    yield from _changes(plain, recorded, same_end=same_end and program.verdict is None)
    if recorded.rss_growth_bytes > max(plain.rss_growth_bytes, 0) + RSS_BYTES:
        yield Difference("resident memory", _mib(plain.rss_growth_bytes), _mib(recorded.rss_growth_bytes))
    if recorded.peak_growth_bytes > max(plain.peak_growth_bytes, 0) + PEAK_BYTES:
        yield Difference("peak memory", _mib(plain.peak_growth_bytes), _mib(recorded.peak_growth_bytes))


def _changes(plain: Observation, recorded: Observation, *, same_end: bool) -> Iterator[Difference]:
    """What changed in the process in one of the runs only, or to another value.

    A run that ended elsewhere has not changed what the other has; only what it changed itself counts.
    """
    for name in sorted(plain.changes.keys() | recorded.changes.keys()):
        before, after = plain.changes.get(name, ("", "unchanged")), recorded.changes.get(name, ("", "unchanged"))
        program_made = not same_end and (name in plain.changes or name.startswith(_OF_PROGRAMS))
        if name == "tasks" and "threads" in recorded.changes:
            continue
        if before[1] != after[1] and not program_made:
            yield Difference(f"left behind: {name}", before[1], after[1])


def describe(outcome: Outcome) -> str:
    """Return an outcome as one line."""
    if not outcome.chain:
        return f"returned {outcome.value}"
    return " <- ".join(f"{kind}{arguments}" for _, kind, arguments in outcome.chain)


def _first_difference(plain: list[str], recorded: list[str]) -> Difference:
    index = next(
        (index for index, pair in enumerate(zip(plain, recorded, strict=False)) if pair[0] != pair[1]),
        min(len(plain), len(recorded)),
    )
    return Difference("notes", *(lines[index] if index < len(lines) else "nothing" for lines in (plain, recorded)))


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f} MiB"
