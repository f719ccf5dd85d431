"""Shared by several tests: from test_timeline_tiles."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rows import TextColumn
from gpulab.rules.engine.finding import Diagnosis
from gpulab.run import Machine
from gpulab.tables import EVENTS, EventKind
from gpulab.views.timeline import Scene
from tests.support.runs.made_runs import GPUS, event, run_of

MOST = 49_152


def undiagnosed(run):
    """A diagnosis without rules: what a scene needs, quickly."""
    run_steps = find_steps(run)
    return Diagnosis(
        run=run,
        steps=run_steps,
        ledger=build_ledger(run, run_steps),
        findings=(),
        unjudged=(),
        verdict="",
        next_limit=None,
    )


def read(tile):
    """A tile as the format says, by nobody's code but the standard library's and numpy."""
    (length,) = struct.unpack("<I", tile[:4])
    assert (4 + length) % 8 == 0
    head = json.loads(tile[4 : 4 + length].decode())
    sizes = {"f64": "<f8", "u16": "<u2", "u8": "u1", "i32": "<i4"}
    arrays = {}
    for name, (offset, count, dtype) in head["columns"].items():
        assert offset % 8 == 0
        arrays[name] = np.frombuffer(tile, sizes[dtype], count, offset)
    bins = {(e["row"], e["key"]): np.frombuffer(tile, "u1", head["bins"], e["offset"]) for e in head["bins_of"]}
    curves = {
        e["row"]: tuple(
            np.frombuffer(tile, kind, e["count"], e[field])
            for field, kind in (("offset_at", "<f8"), ("offset_low", "<f4"), ("offset_high", "<f4"))
        )
        for e in head["curves"]
    }
    return head, arrays, bins, curves


def large(count=1_000_000, *, names=3000, streams=40, threads=200, hostile=False):
    """A run of many events, made column by column: host calls in many threads, and kernels on many streams."""
    units = count // 2
    unit = np.arange(units)
    start = np.stack([unit * 2_000, unit * 2_000 + 700], 1).ravel()
    dur = np.stack([np.full(units, 1_500), 300 + unit % 1_000], 1).ravel()
    kind = np.tile(np.array([EventKind.LAUNCH, EventKind.KERNEL], np.int8), units)
    on_gpu = kind == EventKind.KERNEL
    word = "\u202e<script>'\"\\\x00" * 1000 if hostile else "kernel_"
    edges = np.repeat(unit, 2)
    columns = {
        "kind": kind,
        "name": TextColumn((edges % names).astype(np.int32), tuple(f"{word}{n}" for n in range(names))),
        "start_ns": start,
        "dur_ns": dur,
        "thread": np.where(on_gpu, -1, edges % threads),
        "device": np.where(on_gpu, 0, -1),
        "stream": np.where(on_gpu, 7 + edges % streams, -1),
        "correlation": edges,
        "bytes": np.full(2 * units, -1),
    }
    rows = EVENTS.rows(columns)
    run = run_of([event(EventKind.OP, "aten::add", 0, units * 0.002)], machine=Machine(gpus=(GPUS["H100"],)))
    return replace(run, event_rows=rows, threads=tuple(f"thread {n}" for n in range(threads)))


def looked_at(scene: Scene):
    """Tiles of every level: the first, one in the middle, the last."""
    for level in range(scene.max_level + 1):
        for index in sorted({0, (1 << level) // 3, (1 << level) - 1}):
            yield level, index, scene.tile(level, index)


def small_run(**more):
    events = []
    for step in range(6):
        at = step * 0.1
        events.append(event(EventKind.STEP, f"ProfilerStep#{step}", at, 0.1))
        for n in range(5):
            begin = at + n * 0.018
            events.append(event(EventKind.OP, f"aten::op{n}", begin, 0.015))
            events.append(event(EventKind.OP, "aten::inner", begin + 0.001, 0.012))
            events.append(event(EventKind.LAUNCH, "cudaLaunchKernel", begin + 0.002, 0.005, correlation=step * 10 + n))
            events.append(event(EventKind.KERNEL, f"gemm_{n}", begin + 0.009, 0.011, correlation=step * 10 + n))
    return run_of(events, machine=Machine(gpus=(GPUS["H100"],)), **more)
