"""Loops without their DataLoader workers: `python -m benchmarks.wild.without_workers RUNS LOOP ...`.

Each loop is recorded once, and its time without workers predicted. Then it runs in turn as it is, with every DataLoader
loading in the main process, and with workers that live on from pass to pass, each time in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.wild.diagnose import record_in_child

ROOT = Path(__file__).parents[2]
UNCHANGED, WITHOUT, PERSISTENT = "unchanged", "without", "persistent"
NEED_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout")
WORKERS_POSITION = 5  # of num_workers among the arguments of a DataLoader, after the dataset
TIMEOUT_S = 300


def change_loaders(variant: str) -> None:
    """Let every DataLoader that is created from now on have no workers, or persistent ones."""
    from torch.utils.data import DataLoader

    kind: Any = DataLoader
    original = kind.__init__

    def changed(loader: Any, *arguments: Any, **options: Any) -> None:
        values = list(arguments)
        if len(values) > WORKERS_POSITION:
            options["num_workers"] = values[WORKERS_POSITION]
            options.update(zip(("collate_fn", "pin_memory"), values[WORKERS_POSITION + 1 :], strict=False))
            values = values[:WORKERS_POSITION]
        if variant == WITHOUT:
            options = {name: value for name, value in options.items() if name not in NEED_WORKERS} | {"num_workers": 0}
        elif options.get("num_workers"):
            options["persistent_workers"] = True
        original(loader, *values, **options)

    kind.__init__ = changed


def seconds_of(name: str, variant: str, scale: float) -> float:
    """Return the time of the cell in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.wild.without_workers", "--child", variant, str(scale), name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return float(done.stdout.splitlines()[-1])


def run_child(variant: str, scale: float, name: str) -> None:
    """Run the cell of a loop and print its time."""
    from benchmarks.wild.outcome import run_variant
    from benchmarks.wild.registry import load_loop

    if variant != UNCHANGED:
        change_loaders(variant)
    print(run_variant(load_loop(name), None, scale).seconds)


def prediction_of(path: Path) -> str:
    """Return the predicted gain without workers, and the first finding."""
    import gpulab
    from gpulab.analysis.data.idle_workers import without_workers
    from gpulab.analysis.steps.detection import find_steps
    from gpulab.analysis.steps.ledger import build_ledger
    from gpulab.rules import diagnose

    run = gpulab.load(path)
    steps, first = find_steps(run), diagnose(run).first
    ledger = build_ledger(run, steps)
    times = without_workers(run, steps, ledger) if ledger is not None else None
    finding = next((each for each in diagnose(run).findings if "num_workers=0" in each.fix + each.advice), None)
    gain = finding.gain if finding else None
    predicted = f"{gain.worst_speedup:.2f}-{gain.best_speedup:.2f}x" if gain else "-"
    model = "-"
    if times is not None:
        model = f"{times.crowded_ns / 1e6:.1f}, {times.idle_ns / 1e6:.1f}"
        predicted = f"{times.now_ns / times.worst_ns:.2f}-{times.now_ns / times.best_ns:.2f}x"
    return f"{model} | {predicted} | {first.rule if first else 'none'}"


def row_of(name: str, folder: Path, rounds: int, scale: float) -> str:
    """Return a row of the table."""
    path = folder / f"{name.replace('/', '_')}.gpulab"
    if not path.exists() and (problem := record_in_child(name, path, scale)):
        return f"| {name} | {problem[-100:]!r} |"
    ratios: dict[str, list[str]] = {WITHOUT: [], PERSISTENT: []}
    for index in range(rounds):
        order = [UNCHANGED, *ratios][:: -1 if index % 2 else 1]
        seconds = {variant: seconds_of(name, variant, scale) for variant in order}
        for variant, texts in ratios.items():
            texts.append(f"{seconds[UNCHANGED] / seconds[variant]:.2f}x")
    measured = " | ".join(", ".join(texts) for texts in ratios.values())
    return f"| {name} | {prediction_of(path)} | {measured} |"


def main() -> None:
    """Print a table, one row for each loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", help="a folder; recordings in it are read and not made again")
    parser.add_argument("loops", nargs="*", metavar="LOOP", help="of the wild corpus")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.6)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.child:
        variant, scale, name = options.child
        run_child(variant, float(scale), name)
        return
    options.runs.mkdir(parents=True, exist_ok=True)
    print("| loop | model beside workers, beside idle ones, ms | predicted | first finding | without | persistent |")
    print("|---|---|---|---|---|---|")
    for name in options.loops:
        print(row_of(name, options.runs, options.rounds, options.scale), flush=True)


if __name__ == "__main__":
    main()
