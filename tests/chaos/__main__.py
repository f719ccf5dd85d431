"""The attack campaign: programs that a profiler could disturb run plain and recorded, and must end alike.

    python -m tests.chaos [--area A ...] [--count N] [--seed S] [--jobs J] [--only AREA:NUMBER]

Prints a table by area and each kind of defect with the command that repeats its smallest example.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator

import torch

from tests.chaos import recorders
from tests.chaos.areas import AREAS
from tests.chaos.campaign import AreaTally, Probe, run_probes
from tests.chaos.comparison import describe, differences
from tests.chaos.documented import DOCUMENTED, documented_reason
from tests.chaos.program import Observation, Program

COLUMNS = ("area", "probes", "identical", "documented", "defects", "kinds", "runs", "seconds")


def main() -> int:
    """Run the campaign; 1 if a probe has a defect."""
    options = _options()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a program that a shell starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    recorders.warm_up()
    if options.only:
        area, _, number = options.only.partition(":")
        return _show_one(_probe(area, int(number), options.seed))
    tallies = {area: AreaTally() for area in options.area or AREAS}
    for area, tally in tallies.items():
        began_s = time.monotonic()
        count = _share(area, list(tallies), options.count)
        for probe, program, plain, recorded in run_probes(_probes(area, count, options.seed), jobs=options.jobs):
            kinds = tally.add(probe, program, plain, recorded)
            if options.verbose and kinds:
                print(f"{area}:{probe.number} {program.recorder}: {program.name}", *kinds, sep="\n    ", flush=True)
        tally.spent_s = time.monotonic() - began_s
        print(f"{area}: {tally.probes} probes in {tally.spent_s:.0f} s", file=sys.stderr, flush=True)
    _print_table(tallies)
    _print_defects(tallies, options.seed)
    return int(any(tally.defective for tally in tallies.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--area", action="append", choices=list(AREAS))
    parser.add_argument("--count", type=int, help="probes in total, shared among the areas; by default the full number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", metavar="AREA:NUMBER", help="run one probe and show both runs")
    parser.add_argument("--verbose", action="store_true", help="name each probe with a defect")
    return parser.parse_args()


def _share(area: str, areas: list[str], count: int | None) -> int:
    full = AREAS[area].count
    return full if count is None else max(1, round(count * full / sum(AREAS[each].count for each in areas)))


def _probe(area: str, number: int, seed: int) -> Probe:
    return Probe(area, number, lambda: AREAS[area].make(number, random.Random(f"{seed}:{area}:{number}")))


def _probes(area: str, count: int, seed: int) -> Iterator[Probe]:
    full = range(AREAS[area].count)
    numbers = sorted(random.Random(seed).sample(full, count)) if count < len(full) else range(count)
    return (_probe(area, number, seed) for number in numbers)


def _print_table(tallies: dict[str, AreaTally]) -> None:
    rows = [
        (
            area,
            *(f"{number:,}" for number in (tally.probes, tally.identical, tally.documented, tally.defective)),
            str(len(tally.defects)),
            f"{tally.recorded:,}",
            f"{tally.spent_s:.0f}",
        )
        for area, tally in tallies.items()
    ]
    numbers = [[int(cell.replace(",", "")) for cell in row[1:]] for row in rows]
    rows.append(("total", *(f"{sum(column):,}" for column in zip(*numbers, strict=True))))
    widths = [max(len(row[index]) for row in (COLUMNS, *rows)) for index in range(len(COLUMNS))]
    for row in (COLUMNS, *rows):
        print(row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))
    used = {name: sum(tally.reasons[name] for tally in tallies.values()) for name in (each.name for each in DOCUMENTED)}
    for entry in DOCUMENTED:
        print(f"documented, {used[entry.name]} probes: {entry.name}: {entry.reason}")


def _print_defects(tallies: dict[str, AreaTally], seed: int) -> None:
    for tally in tallies.values():
        for defect in sorted(tally.defects.values(), key=lambda each: -each.count):
            program = defect.program
            print(f"\n{defect.count} probes: {defect.kind}")
            print(f"    {program.recorder}: {program.name}")
            print(f"    python -m tests.chaos --seed {seed} --only {defect.area}:{defect.number}")


def _show_one(probe: Probe) -> int:
    [(_, program, plain, recorded)] = run_probes([probe])
    print(f"{probe.area}:{probe.number}, recorder {program.recorder!r}: {program.name}")
    _print_observation("plain", plain)
    _print_observation("recorded", recorded)
    return _print_differences(program, plain, recorded)


def _print_observation(title: str, observation: Observation) -> None:
    print(f"{title}: {observation.trouble or describe(observation.outcome)} {observation.outcome.origin}")
    for label in ("verdict", "notes", "calls", "stdout", "stderr", "changes", "recorded"):
        if value := getattr(observation, label):
            print(f"    {label}: {value}")


def _print_differences(program: Program, plain: Observation, recorded: Observation) -> int:
    defects = 0
    for difference in differences(program, plain, recorded):
        reason = documented_reason(program, difference, recorded)
        defects += reason is None
        print(f"{'DEFECT' if reason is None else f'documented ({reason})'}: {difference}")
    print(f"{defects} defects" if defects else "no defects")
    return int(defects > 0)


if __name__ == "__main__":
    sys.exit(main())
