"""Measures which change makes each loop fastest: `python -m benchmarks.wild.measure --out FILE.json`.

Every variant of a loop runs in a fresh process, `--rounds` times; the variants alternate (ABCD, DCBA, ...). The ratio
of a change is the time of the unchanged cell over the time of the changed one in the same round. `--more` adds rounds
of the changes that may be the fastest: two rounds tell which changes cannot win, but not which of the others does.
`--check` runs every variant once at a tenth of its size, compares samples and optimizer steps, and wants a finite loss.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.wild.child import FailedRunError, outcomes_in_child
from benchmarks.wild.loop import WARM_SCALE, Loop
from benchmarks.wild.outcome import UNCHANGED, Outcome
from benchmarks.wild.registry import load_loop, matching_names
from benchmarks.wild.verdict import (
    LoopResult,
    contenders,
    disagreements,
    loop_result,
    round_order,
    undecided,
    with_rounds,
)


def variant_names(loop: Loop) -> list[str]:
    """The unchanged cell and every change."""
    return [UNCHANGED, *(change.name for change in loop.changes)]


def run_round(loop: Loop, variants: list[str], scale: float) -> dict[str, Outcome]:
    """Run the variants one after another, each in its own process."""
    return {variant: outcomes_in_child(loop.name, variant, scale)[variant] for variant in variants}


def checked_rounds(loop: Loop, variants: list[str], rounds: range, scale: float) -> list[dict[str, Outcome]]:
    """Run the variants in each of these rounds; FailedRunError if one of them does not train as the others do."""
    outcomes = []
    for index in rounds:
        results = run_round(loop, round_order(variants, index), scale)
        messages = disagreements(loop, results)
        if messages:
            raise FailedRunError("\n".join(messages))
        outcomes.append(results)
    return outcomes


def measure_loop(loop: Loop, rounds: int, scale: float) -> LoopResult:
    """Measure the loop over `rounds` rounds."""
    variants = variant_names(loop)
    measured = checked_rounds(loop, variants, range(rounds), scale)
    return loop_result(loop, {variant: [each[variant] for each in measured] for variant in variants}, scale)


def measure_contenders(loop: Loop, result: LoopResult, rounds: int) -> LoopResult:
    """The result with the unchanged cell measured in this many rounds, and so the changes that may still win."""
    candidates = contenders(result)
    done = len(result["base_s"])
    if done >= rounds or not undecided(result, candidates):
        return result
    return with_rounds(result, checked_rounds(loop, [UNCHANGED, *candidates], range(done, rounds), result["scale"]))


def result_text(name: str, result: LoopResult) -> str:
    """The result of a loop as lines of text."""
    changes = sorted(result["changes"].items(), key=lambda item: -item[1]["ratio"])
    seconds = sorted(result["base_s"])[len(result["base_s"]) // 2]
    lines = [f"{name}: {seconds:.1f} s, {result['peak_memory_mib']:.0f} MiB, best: {result['best_change']}"]
    lines += [
        f"    {change['ratio']:5.2f}x ({change['low']:.2f} to {change['high']:.2f})  {title} [{change['kind']}]"
        for title, change in changes
    ]
    return "\n".join(lines) + "\n"


def check_text(loop: Loop, outcomes: dict[str, Outcome]) -> str:
    """The outcomes of a check as lines of text."""
    lines = [f"{loop.name}:"]
    lines += [
        f"    {outcome.seconds:6.2f} s ({outcome.cpu_seconds:.2f} s CPU)  {outcome.samples} samples, "
        f"{outcome.optimizer_steps} steps, "
        f"loss {outcome.loss:.4g}, {outcome.peak_memory_mib:.0f} MiB  {variant}"
        for variant, outcome in outcomes.items()
    ]
    return "\n".join(lines) + "\n"


def check_loop(loop: Loop, scale: float) -> tuple[str, list[str]]:
    """Run every variant once in one process; returns a text and what is wrong."""
    try:
        outcomes = outcomes_in_child(loop.name, "all", scale)
    except (FailedRunError, ValueError) as error:
        return "", [str(error)]
    return check_text(loop, outcomes), disagreements(loop, outcomes)


def check_all(names: list[str], scale: float) -> int:
    """Check the loops; returns the number of loops with a problem."""
    failures = 0
    for name in names:
        text, messages = check_loop(load_loop(name), scale)
        sys.stdout.write(text + "".join(f"  PROBLEM {message}\n" for message in messages))
        sys.stdout.flush()
        failures += bool(messages)
    return failures


def measure_all(names: list[str], rounds: int, more: int, scale: float, path: Path, resume: bool) -> int:
    """Measure the loops and write the file after each; returns the number of loops that failed."""
    results: dict[str, LoopResult] = json.loads(path.read_text()) if path.exists() else {}
    failures = 0
    for name in names:
        known = results.get(name) if resume else None
        try:
            loop = load_loop(name)
            result = measure_contenders(loop, known or measure_loop(loop, rounds, scale), rounds + more)
        except (FailedRunError, ValueError) as error:
            sys.stdout.write(f"{name}: PROBLEM {error}\n")
            failures += 1
            continue
        if result is known:
            continue
        results[name] = result
        path.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        sys.stdout.write(result_text(name, result))
        sys.stdout.flush()
    return failures


def main() -> None:
    """Parse the arguments and measure or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--loop", action="append", default=[], help="a loop or a family, e.g. vision/cifar or vision; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--more", type=int, default=0, help="further rounds of the changes that may be the fastest")
    parser.add_argument("--out", type=Path, help="the JSON file to write; loops that are in it already are replaced")
    parser.add_argument("--resume", action="store_true", help="of the loops in the file, run only the missing rounds")
    parser.add_argument("--check", action="store_true", help="run every variant once at a tenth of its size")
    parser.add_argument("--scale", type=float, default=None, help="fraction of the full size; 1, or 0.1 with --check")
    arguments = parser.parse_args()
    names = matching_names(arguments.loop)
    if arguments.check:
        failures = check_all(names, arguments.scale or WARM_SCALE)
    elif arguments.out is None:
        parser.error("--out is needed to measure")
    else:
        failures = measure_all(
            names, arguments.rounds, arguments.more, arguments.scale or 1.0, arguments.out, arguments.resume
        )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
