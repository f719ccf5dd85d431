"""Runs with values that a file may hold and no recording has: huge sizes, NaN sensors, odd shape texts, long spans.

The same seed and number give the same run. Each starts from a recorded dataset, a run built by hand, random rows, or
a trace, and gets extreme values in some columns and fields.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpulab import store, trace
from gpulab.errors import GpulabError
from gpulab.files.datasets import datasets
from gpulab.rows import Rows, TextColumn
from gpulab.run import TABLE_FIELDS, Failure, Gap, Gpu, Loader, Machine, Model, Optimizer, Run, Source
from gpulab.store.consistency import find_inconsistency
from gpulab.tables import COLLECTIVES, HOLDERS, MEMORY, EventKind
from tests.support import fuzz
from tests.support.runs.made_runs import (
    MS,
    collective,
    collective_columns,
    event,
    gpu_samples,
    host_samples,
    launched_kernel,
    loader_call,
    mark,
    on_gpu,
    rank_of,
    rows,
    stepped,
)
from tests.support.runs.stored_runs import full_run

YEAR_NS = 365 * 86_400 * 10**9
SIZES = (0, -1, 1, 2**31, 2**40, 2**53, 2**62, 9 * 10**18, 2**63 - 1, -(2**63), -5)
READINGS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-300, 1e300, 5e-324, -1e18, 1e18, 2.0)
TIMES_NS = (0, 1, 10**6, 10**12, YEAR_NS, 10 * YEAR_NS, 2**60, 2**61, 2**62)
NAMES = (
    *("", " ", "\t", "\x00", "\x1b[2J\x1b[31mred\x1b[0m\x07", "\x1b]0;title\x07", "a\rb\nc", "\u202eover\u2066x\u2069"),
    *(
        "\u200f\u200b\ufeff",
        "\x9b1m\x85",
        "\ud800",
        "k" * 5000,
        "名" * 300,
        "=1+1",
        "+a",
        "-2",
        "@x",
        "|",
        "`",
        "nul\x00",
    ),
    *("<script>alert(1)</script>", "$\\frac{1}{0}$", "{0} %s", "None", "0", "../../x", "e\u0301" * 50, "🙂" * 90),
)
SHAPES = (
    *(
        "",
        "null",
        "[]",
        "{}",
        "3",
        '"x"',
        "[[]]",
        "[null]",
        "[[[[2, 3]]]]",
        "[" * 100 + "]" * 100,
        "[[2.5, 3]]",
        "x",
        "[",
    ),
    *('[["a", 3]]', "[[-1, -2]]", "[[0, 0]]", "[[9000000000000000000, 9]]", "[[1e400]]", "[[NaN]]", "[true, [true]]"),
    *(
        "[[4611686018427387904, 4, 4], [2]]",
        '{"a": [1]}',
        "[[2, 3], [3, 4], {}, null, [[1], 2]]",
        "[[" + "9" * 300 + "]]",
    ),
    *("[[64, 3, 224, 224], [64, 3, 7, 7], [], [2, 2], [3, 3], [1, 1], [], [0, 0], []]", "[[1" + ", 1" * 3000 + "]]"),
    "[" * 5000 + "]" * 5000,
)
DTYPES = ("", "null", "[]", "3", '["float"]', '["float", ["float", null]]', "[3, {}]", '["' + "x" * 500 + '"]', "{")


def extreme_run(seed: int, number: int) -> Run:
    """Return the run with this number, as it is read back from its file."""
    dice = random.Random(f"{seed}/{number}")
    for _ in range(20):
        base = dice.choice(BASES)(dice)
        run = dice.choice((lambda run, _: run, with_extreme_values, with_extreme_values, with_extreme_values))(
            base, dice
        )
        try:
            return stored(run)
        except GpulabError:
            continue  # no file can hold this run
    return stored(BASES[0](dice))


def stored(run: Run) -> Run:
    """Return the run after a round trip through its file. Raises StoreError if it cannot be stored."""
    with tempfile.TemporaryDirectory() as folder:
        return store.open(store.save(run, Path(folder) / "run.gpulab"))


@functools.cache
def _recorded() -> tuple[Run, ...]:
    paths = [path for entry in datasets() for path in (entry.run_path, entry.fixed_path) if path]
    return tuple(store.open(path) for path in dict.fromkeys(paths))


def recorded_run(dice: random.Random) -> Run:
    """Return one of the datasets."""
    return dice.choice(_recorded())


def made_run(dice: random.Random) -> Run:
    """Return a training loop on a GPU with something in every table that a rule reads."""

    def step(at: float) -> list[dict[str, Any]]:
        events = [loader_call(at, 30)]
        for number, name in enumerate([*dice.sample(NAMES, 3), "void gemm<float>", "ncclDevKernel_AllReduce"]):
            shapes = [[64, 64], [64, 64]]
            key = round(100 * at) + number + 1
            events += launched_kernel(
                name,
                at + 35 + 8 * number,
                7,
                number=key,
                op=dice.choice(("aten::mm", "aten::add", name)),
                grid=64,
                shapes=shapes,
                dtypes=["float", "float"],
            )
        copy = event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 31, 2, size=10**6)
        return [*events, copy, event(EventKind.SYNC, "cudaStreamSynchronize", at + 80, 15)]

    count = dice.choice((3, 6, 12))
    until = 100 * count
    marks = [mark(100.0 * number, 30, cpu_ms=10, process_ms=100 * number) for number in range(count)]
    samples = gpu_samples({"util_frac": 0.5, "power_w": 300.0, "memory_used_bytes": 2.0**33}, count=until // 25)
    memory = [[at * MS, 0, 0, 1000, 7, 1000, 2000] for at in range(0, until, 50)]
    run = on_gpu(
        stepped(step, count=count),
        marks=marks,
        loaders=[Loader(workers=2, batch_size=32)],
        memory_rows=MEMORY.of(memory),
        samples=host_samples(until, cpu_frac=0.5, workers_cpu_s=0.1),
        gpu_rows=samples,
        holder_rows=HOLDERS.of([["model", "parameter", 0, 2**30, 3, "[64, 64] float32"]]),
    )
    kinds = np.flatnonzero(run.event_rows.matching(lambda name: name.startswith("nccl")))
    moves = [{"event": int(row), **collective_columns(10**6, sequence=n)} for n, row in enumerate(kinds)]
    return dataclasses.replace(run, collective_rows=rows(COLLECTIVES, moves))


def rank_run(dice: random.Random) -> Run:
    """Return one rank of a job that computes and communicates."""

    def step(at: float) -> list[dict[str, Any]]:
        compute = event(EventKind.KERNEL, "void gemm<float>", at + 5, 60)
        moves = collective_columns(dice.choice((10**6, *SIZES[:8])), sequence=round(at))
        return [compute, collective("ncclDevKernel_AllReduce", at + 70, dice.uniform(1, 25), moves=moves)]

    return rank_of(stepped(step), rank=dice.choice((0, 3, 63, 10**6)), ranks=64)


def random_rows(dice: random.Random) -> Run:
    """Return a run in which every column of every table is random."""
    return full_run(dice.choice((0, 1, 2, 50, 400)))


def empty_run(dice: random.Random) -> Run:
    """Return a run without any rows, of no or of a very long duration."""
    run = Run(name="", source=Source(how="recorded", device=""), machine=Machine(), span_ns=0)
    return dataclasses.replace(run, span_ns=dice.choice(TIMES_NS))


def read_trace(dice: random.Random) -> Run:
    """Return the run of a trace with odd values in some of its events. Raises TraceError if nothing is left of it."""
    document = {
        "schemaVersion": 1,
        "record_shapes": 1,
        "baseTimeNanoseconds": 10**18,
        "traceEvents": list(fuzz.events()),
    }
    values = (*fuzz._VALUES, *SIZES, *NAMES[:8], 9e18, 1e400, "NaN", [[9 * 10**18, 9]], [[[[1]]]], [[2, "x"]])
    for entry in document["traceEvents"]:
        while dice.random() < 0.2:
            args = entry.get("args")
            fields = args if dice.random() < 0.8 and args and isinstance(args, dict) else entry
            fields[dice.choice([*fields, "name", "ts", "dur"])] = dice.choice(values)
    try:
        return trace.read(json.dumps(document).encode(errors="surrogatepass"), shapes=True)
    except GpulabError:
        return empty_run(dice)


BASES: tuple[Callable[[random.Random], Run], ...] = (
    made_run,
    recorded_run,
    recorded_run,
    rank_run,
    random_rows,
    empty_run,
    read_trace,
    read_trace,
)


def with_extreme_values(run: Run, dice: random.Random) -> Run:
    """Return the run with extreme values in some columns of some tables, and in some fields."""
    changed: dict[str, Any] = {}
    wide = dice.random() < 0.3  # everywhere at once, or in one or two places: then the views get further
    for field in TABLE_FIELDS:
        table_rows: Rows = getattr(run, field)
        if len(table_rows) and dice.random() < (0.7 if wide else 0.25):
            changed[field] = _with_extreme_columns(table_rows, run, dice, wide)
    if dice.random() < (0.8 if wide else 0.4):
        changed |= _extreme_fields(run, dice)
    extreme = dataclasses.replace(run, **changed)
    for field in changed:  # keep what a file can hold
        if find_inconsistency(extreme) is None:
            break
        if field in TABLE_FIELDS:
            extreme = dataclasses.replace(extreme, **{field: getattr(run, field)})
    return extreme


def _with_extreme_columns(table_rows: Rows, run: Run, dice: random.Random, wide: bool) -> Rows:
    names = [column.name for column in table_rows.table.columns if column.name != "event"]
    columns = dict(table_rows.columns)
    for name in dice.sample(names, min(len(names), dice.randint(1, 8) if wide else 1)):
        columns[name] = _extreme_column(name, columns[name], run, dice)
    rows_ = Rows(table_rows.table, columns)
    order = "start_ns" if "start_ns" in columns and table_rows.table.name == "events" else None
    return rows_.select(np.argsort(rows_[order], kind="stable")) if order and dice.random() < 0.3 else rows_


def _extreme_column(name: str, values: Any, run: Run, dice: random.Random) -> Any:
    generator = np.random.default_rng(dice.randrange(2**32))
    where = generator.random(len(values)) < dice.choice((0.02, 0.3, 1.0))
    if isinstance(values, TextColumn):
        texts = SHAPES if name == "shapes" else DTYPES if name == "dtypes" else NAMES
        if dice.random() < 0.3:
            texts = (dice.choice(texts),)
        table = {"frame": " (x:1)"}.get(name, "")
        chosen = [None if dice.random() < 0.1 else dice.choice(texts) + table for _ in range(len(values))]
        return TextColumn.of(
            new if change else old for new, old, change in zip(chosen, values.to_list(), where, strict=True)
        )
    if name in ("start_ns", "end_ns", "at_ns", "dur_ns"):
        if dice.random() < 0.3:
            return np.where(where, values.mean(dtype=float).astype(np.int64), values)  # all at once
        pool = np.array([time for time in TIMES_NS if dice.random() < 0.6] or [0])
        return np.where(where, generator.choice(pool, len(values)), values)
    if values.dtype.kind == "f":
        pool = np.array(dice.sample(READINGS, 2))
        with np.errstate(over="ignore"):
            return np.where(where, generator.choice(pool, len(values)), values).astype(values.dtype)
    if values.dtype.kind == "b":
        return np.where(where, dice.random() < 0.5, values)
    if name in ("thread", "loader"):
        listed = len(run.threads if name == "thread" else run.loaders)
        return np.where(where, generator.integers(-1, max(listed, 0), len(values)), values).astype(values.dtype)
    if name == "kind":
        return np.where(where, generator.choice(np.unique(values), len(values)), values).astype(values.dtype)
    limits = np.iinfo(values.dtype)
    pool = np.array(sorted({min(max(size, limits.min), limits.max) for size in dice.sample(SIZES, 3)}))
    return np.where(where, generator.choice(pool, len(values)), values).astype(values.dtype)


def _extreme_fields(run: Run, dice: random.Random) -> dict[str, Any]:
    name = functools.partial(dice.choice, NAMES)
    size = functools.partial(dice.choice, (None, *SIZES))
    reading = functools.partial(dice.choice, (None, *READINGS))
    gpus = tuple(
        Gpu(
            index=dice.choice((0, 0, 7, -1, 2**40)),
            name=name(),
            uuid=name(),
            memory_bytes=size(),
            multiprocessors=size(),
            compute_capability=dice.choice((None, "9.0", "x", "", "99999999999.1", "9")),
            power_limit_w=reading(),
            sm_clock_max_mhz=reading(),
            link_generation_max=size(),
            link_width_max=size(),
        )
        for _ in range(max(len(run.machine.gpus), dice.choice((0, 1))))
    )
    machine = dataclasses.replace(
        run.machine,
        gpus=gpus if dice.random() < 0.5 else run.machine.gpus,
        driver=name(),
        torch=name(),
        cpu=name(),
        cores=size(),
        cores_allowed=reading(),
        memory_bytes=size(),
        memory_limit_bytes=size(),
        gaps=(Gap(what=name(), why=name(), fix=name()),),
    )
    fields: dict[str, Callable[[], Any]] = {
        "name": name,
        "source": lambda: Source(
            how=dice.choice(("measured", "recorded", "virtual", "predicted")), device=name(), date=name()
        ),
        "machine": lambda: machine,
        "span_ns": lambda: dice.choice(TIMES_NS),
        "began_ns": lambda: dice.choice((None, 0, -1, 2**62, -(2**62), 1)),
        "outcome": lambda: dice.choice((name(), "OutOfMemoryError", "KeyboardInterrupt")),
        "rank": lambda: dice.choice((None, 0, -1, 63, 2**62, -(2**63))),
        "failure": lambda: Failure(
            message=name(),
            device=size(),
            needed_bytes=size(),
            free_bytes=size(),
            capacity_bytes=size(),
            allocated_bytes=size(),
            reserved_bytes=size(),
            others_bytes=size(),
            phase=name(),
            where=name(),
        ),
        "loaders": lambda: tuple(
            Loader(
                workers=size(),
                batch_size=size(),
                prefetch_factor=size(),
                batches=size(),
                dataset=name(),
                name=name(),
                location=name(),
            )
            for _ in run.loaders
        ),
        "models": lambda: (
            (Model(kind=name(), name=name(), tensors=size(), bytes=size(), dtypes=(name(),), device=name()),) * 2
        ),
        "optimizers": lambda: (
            Optimizer(kind=dice.choice((name(), "AdamW", "SGD")), tensors=size(), elements=size(), device=name()),
        ),
        "threads": lambda: tuple(name() for _ in run.threads),
        "facts": lambda: {
            key: dice.choice((name(), "9" * 400, "-1", "1e9", "NaN", "8"))
            for key in (*run.facts, "threads", "world_size", name())
        },
        "recording": lambda: dataclasses.replace(
            run.recording,
            level=name(),
            options=(name(),),
            lost={name(): dice.choice(SIZES)},
            left_out=(Gap(what=name(), why=name(), fix=name()),),
            windows_ns=dice.choice(
                (
                    (),
                    ((0, 0),),
                    ((0, 2**62),),
                    ((5, 3), (0, 10**9), (0, 10**9)),
                    ((-(2**62), 2**62),),
                    run.recording.windows_ns,
                )
            ),
            pauses_ns=dice.choice(((), ((0, 2**62),), ((7, 2), (-5, 10**9)), run.recording.pauses_ns)),
        ),
    }
    return {field: fields[field]() for field in dice.sample([*fields], dice.randint(1, 5))}
