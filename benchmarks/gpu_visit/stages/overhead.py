"""Stage: what recording costs: a loop alone, with sensors, with a trace, and under a bare torch.profiler.

The four take turns, in an order that rotates; a ratio compares two of the same round. Two loops: many small operators,
which is the worst case for a profiler, and large matrix products, which keep the GPU busy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import gpulab
from benchmarks.gpu_visit.stages.ceilings import synchronize
from benchmarks.gpu_visit.visit import StageResult, Visit
from gpulab.analysis.steps.detection import find_steps
from gpulab.run import Run

VARIANTS = ("nothing", "sensors", "trace", "profiler")
MAX_ROUNDS, MIN_ROUNDS = 9, 2


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run of a variant: the loop's seconds, each step's, all seconds with start and report, and the run."""

    loop_s: float
    steps_s: list[float]
    all_s: float
    run: Run | None = None


@dataclass(frozen=True, kw_only=True)
class LoopSize:
    """A loop of equal layers."""

    width: int
    depth: int
    batch: int
    steps: int
    dtype: torch.dtype = field(default=torch.float32)


LOOPS = {
    "many small operators": LoopSize(width=128, depth=24, batch=64, steps=600),
    "large products": LoopSize(width=4096, depth=8, batch=8192, steps=60, dtype=torch.bfloat16),
}
TINY = LoopSize(width=16, depth=2, batch=4, steps=14)


def overhead(visit: Visit) -> StageResult:
    """Time the variants of each loop; the rounds end with the time of the stage."""
    figures: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    until_s = time.monotonic() + 0.85 * visit.seconds_left
    for number, (name, size) in enumerate(LOOPS.items()):
        share_s = (until_s - time.monotonic()) / (len(LOOPS) - number)
        rounds = timed_rounds(TINY if visit.dry_run else size, visit.device, time.monotonic() + share_s)
        figures[name] = figures_of(rounds)
        rows += [(name, variant, *cells) for variant, cells in table_cells(figures[name]).items()]
        visit.save(StageResult(figures=figures, head=HEAD, rows=rows))
    ratios = {name: figures[name]["trace"]["loop_ratio"]["median"] for name in LOOPS}
    return StageResult(
        headline="trace to nothing: " + ", ".join(f"{ratio:.3f}x ({name})" for name, ratio in ratios.items()),
        figures=figures,
        head=HEAD,
        rows=rows,
    )


HEAD = ("loop", "variant", "loop to nothing", "start to report, to nothing", "longest step", "held by gpulab", "traced")


def timed_rounds(size: LoopSize, device: str, until_s: float) -> list[dict[str, Timing]]:
    """Rounds of all variants; at least two, and no more after that time."""
    train = prepared_loop(size, device)
    for variant in VARIANTS:  # imports, first use of the profiler
        timed(train, variant, device)
    rounds: list[dict[str, Timing]] = []
    most = MIN_ROUNDS if size is TINY else MAX_ROUNDS
    while len(rounds) < most and (len(rounds) < MIN_ROUNDS or time.monotonic() < until_s):
        turn = len(rounds) % len(VARIANTS)
        rounds.append({variant: timed(train, variant, device) for variant in (*VARIANTS[turn:], *VARIANTS[:turn])})
    return rounds


def prepared_loop(size: LoopSize, device: str) -> Callable[[], list[float]]:
    """A function that trains and returns when each step ended on the host."""
    layers = [layer for _ in range(size.depth) for layer in (nn.Linear(size.width, size.width), nn.Tanh())]
    model = nn.Sequential(*layers).to(device, size.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.randn(size.batch, size.width, device=device, dtype=size.dtype)

    def train() -> list[float]:
        ends_s = [time.perf_counter()]
        for _ in range(size.steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), inputs).backward()
            optimizer.step()
            ends_s.append(time.perf_counter())
        return ends_s

    return train


def timed(train: Callable[[], list[float]], variant: str, device: str) -> Timing:
    """Run one variant."""
    synchronize(device)
    began_s = time.perf_counter()
    with recorder(variant, device) as sessions:
        loop_began_s = time.perf_counter()
        ends_s = train()
        synchronize(device)
        loop_s = time.perf_counter() - loop_began_s
    all_s = time.perf_counter() - began_s
    steps_s = [end - start for start, end in pairwise(ends_s)]
    return Timing(loop_s=loop_s, steps_s=steps_s, all_s=all_s, run=sessions[0].run if sessions else None)


@contextlib.contextmanager
def recorder(variant: str, device: str) -> Iterator[list[Any]]:
    """Record in one of the ways; yields gpulab's session in a list, if there is one."""
    if variant == "nothing":
        yield []
    elif variant == "profiler":
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
        with profile(activities=activities):
            yield []
    else:
        with gpulab.profile(f"overhead {variant}", level=variant) as session:
            yield [session]


def figures_of(rounds: list[dict[str, Timing]]) -> dict[str, Any]:
    """Ratios within a round, and what gpulab itself says of its cost."""
    figures: dict[str, Any] = {"rounds": len(rounds)}
    for variant in VARIANTS:
        timings = [each[variant] for each in rounds]
        runs = [timing.run for timing in timings if timing.run is not None]
        pauses_ns = [[end - start for start, end in run.recording.pauses_ns] for run in runs]
        overheads = [ratio for run in runs if (ratio := find_steps(run).profiler_overhead) is not None]
        figures[variant] = {
            "loop_s": [timing.loop_s for timing in timings],
            "loop_ratio": spread([each[variant].loop_s / each["nothing"].loop_s for each in rounds]),
            "all_ratio": spread([each[variant].all_s / each["nothing"].all_s for each in rounds]),
            "to_bare_profiler_ratio": spread([each[variant].all_s / each["profiler"].all_s for each in rounds]),
            "median_step_ms": median(1e3 * median(timing.steps_s) for timing in timings),
            "longest_step_ms": median(1e3 * max(timing.steps_s) for timing in timings),
            "longest_pause_ms": median(max(spans, default=0) / 1e6 for spans in pauses_ns) if pauses_ns else None,
            "pauses_ms": median(sum(spans) / 1e6 for spans in pauses_ns) if pauses_ns else None,
            "traced_step_ratio": spread(overheads) if overheads else None,
            "outside_loop_s": median(timing.all_s - timing.loop_s for timing in timings),
            "events": median(len(run.event_rows) for run in runs) if runs else None,
        }
    return figures


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": median(values), "low": min(values), "high": max(values)}


def table_cells(figures: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The cells of the table, by variant."""
    return {
        variant: (
            _range(figures[variant]["loop_ratio"]),
            _range(figures[variant]["all_ratio"]),
            f"{figures[variant]['longest_step_ms']:.2f} ms",
            "-" if figures[variant]["pauses_ms"] is None else f"{figures[variant]['pauses_ms']:.1f} ms",
            "-" if figures[variant]["traced_step_ratio"] is None else _range(figures[variant]["traced_step_ratio"]),
        )
        for variant in VARIANTS
    }


def _range(values: dict[str, float]) -> str:
    return f"{values['median']:.3f}x ({values['low']:.3f}-{values['high']:.3f})"
