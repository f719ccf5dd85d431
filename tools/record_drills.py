"""The runs of lesson 20, recorded anew: twelve cases, what each is once mended, and a few beside them.

    python tools/record_drills.py             all of them, some three minutes on a quiet machine of two cores
    python tools/record_drills.py case03      those whose file is named so

Half are recorded on the CPU here, half computed for a virtual GPU. Each is stripped of what would give the answer
away: names of files, data sets and models. Look at the diagnosis it prints: it must be the one that was planted.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpulab
from gpulab.analysis.steps.detection import steps
from gpulab.rows import Rows, Words
from gpulab.run import FIELDS, Run, Source
from gpulab.virtual.host.costs import Host
from gpulab.virtual.session import VirtualGpu
from gpulab.workloads import workload
from gpulab.workloads.training import computing_on, narrow_and_deep

FOLDER = Path(__file__).resolve().parents[1] / "gpulab" / "lessons" / "recorded"
MOST_BYTES = 60_000
RECORDED = 16  # steps that the profiler records of most
KEPT = 7  # recorded steps, of a run on the CPU: enough for a median
HEALTHY = "products_half"
_PLACE = re.compile(r"\b\w+\.py\b")  # a file of ours, in "preprocess (audio.py:25)"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one file is made."""

    file: str
    called: str  # the name the run bears
    run: Callable[..., object]  # takes `device` and `steps`
    gpu: str | None = None  # a virtual one; None: this CPU
    recorded: int | None = None  # steps that the profiler records on the CPU
    options: Mapping[str, Any] | None = None


def few_rows(*, device: str = "cuda", steps: int = 4, rows: int = 4) -> None:
    """An LSTM that is given few sequences, or many."""
    import torch
    from torch import nn

    width, length = 832, 200
    model = nn.LSTM(width, width, batch_first=True).to(device, torch.bfloat16)
    samples = torch.randn(rows, length, width, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(samples)[0], samples)
        loss.backward()
        optimizer.step()


def called_often(*, device: str = "cuda", steps: int = 5, rows: int = 1) -> None:
    """A deep, narrow model, one sample at a time, or enough of them for each call to be worth it."""
    import torch
    from torch import nn

    model = narrow_and_deep(64, 16).to(device, torch.bfloat16)
    samples = torch.randn(rows, 64, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(samples), samples.mean(1, keepdim=True))
        loss.backward()
        optimizer.step()


def many_tensors(*, steps: int = 60, fused: bool = False) -> None:
    """A perceptron of 22 parameter tensors and few samples, updated one by one or all at once."""
    import torch
    from torch import nn

    with computing_on(1):
        model = narrow_and_deep(512, 5)
        samples = torch.randn(16, 512)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=False)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(samples), samples.mean(1, keepdim=True))
            loss.backward()
            optimizer.step()


def filled(*, device: str = "cuda", steps: int = 4, width: int = 2048, lengths: tuple[int, ...] = (1,)) -> None:
    """A perceptron trained with Adam on as many thousand samples a step as `lengths` says, over and over."""
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        samples = torch.randn(1024 * lengths[step % len(lengths)], width, device=device)
        optimizer.zero_grad()
        loss = model(samples).square().mean()
        loss.backward()
        optimizer.step()


def _on_gpu(number: int, name: str) -> Iterator[Recipe]:
    """A case and what it is once mended, from one of gpulab's workloads, on a virtual H100."""
    file, called, flawed, options = f"case{number:02}", f"case {number}", workload(name), {"steps": 8}
    yield Recipe(file=file, called=called, run=flawed.run, gpu="h100", options=options)
    if flawed.twin and flawed.twin != HEALTHY:  # which is a case of its own
        run = workload(flawed.twin).run
        yield Recipe(file=f"{file}_mended", called=f"{called}, mended", run=run, gpu="h100", options=options)


def _on_cpu(number: int, name: str) -> Iterator[Recipe]:
    """The same, recorded on the CPU."""
    file, called, flawed = f"case{number:02}", f"case {number}", workload(name)
    assert flawed.twin is not None
    yield Recipe(file=file, called=called, run=flawed.run, recorded=RECORDED)
    yield Recipe(file=f"{file}_mended", called=f"{called}, mended", run=workload(flawed.twin).run, recorded=RECORDED)


RECIPES: tuple[Recipe, ...] = (
    *_on_cpu(1, "waiting"),
    *_on_gpu(2, "results_fetched"),
    *_on_cpu(3, "audio_python"),
    *_on_gpu(4, "products_float32"),
    Recipe(file="case05", called="case 5", run=called_often, gpu="h100"),
    Recipe(
        file="case05_mended", called="case 5, mended", run=called_often, gpu="h100", options={"steps": 4, "rows": 2**18}
    ),
    *_on_cpu(6, "counting_workers"),
    *_on_gpu(7, "copies_pageable"),
    Recipe(file="case08", called="case 8", run=many_tensors, recorded=5, options={"steps": 300}),
    Recipe(
        file="case08_mended",
        called="case 8, mended",
        run=many_tensors,
        recorded=5,
        options={"steps": 500, "fused": True},
    ),
    Recipe(file="case09", called="case 9", run=few_rows, gpu="h100", options={"steps": 5}),
    Recipe(file="case09_mended", called="case 9, mended", run=few_rows, gpu="h100", options={"steps": 5, "rows": 512}),
    *_on_cpu(10, "kept_graphs"),
    *_on_gpu(11, "products_half"),
    *_on_gpu(12, "attention_by_hand"),
    # Beside them: workers that wait instead of computing, and three ways to run out of memory.
    Recipe(file="beside1", called="beside 1", run=workload("waiting_one_worker").run, recorded=RECORDED),
    Recipe(file="memory1", called="memory 1", run=filled, gpu="t4", options={"lengths": (512,)}),
    Recipe(file="memory2", called="memory 2", run=filled, gpu="t4", options={"width": 12288}),
    Recipe(file="memory3", called="memory 3", run=filled, gpu="t4", options={"steps": 3, "lengths": (16, 16, 512)}),
)


def main(wanted: list[str]) -> int:
    """Make the files whose name begins with one of these, or all; 1 if one is too large."""
    problems = 0
    for recipe in RECIPES:
        if wanted and not any(recipe.file.startswith(each) for each in wanted):
            continue
        run = recorded(recipe)
        run = run if recipe.gpu else shortened(run)
        path = gpulab.save(anonymous(run, recipe.called), FOLDER / f"{recipe.file}.gpulab")
        size = path.stat().st_size
        first = gpulab.diagnose(gpulab.load(path)).first
        problems += size > MOST_BYTES
        told = first.rule if first else "nothing"
        print(f"{path.name}: {size:,} bytes{' TOO MANY' * (size > MOST_BYTES)}, {told}", flush=True)
    return 1 if problems else 0


def recorded(recipe: Recipe) -> Run:
    """The run of a recipe; running out of memory is no error here."""
    options = dict(recipe.options or {})
    if recipe.gpu is None:
        with contextlib.suppress(MemoryError), gpulab.profile(recipe.called, steps=recipe.recorded):
            recipe.run(**options)
        run: Run = gpulab.runs[recipe.called]
        return run
    import torch

    gpu = VirtualGpu(recipe.gpu, recipe.called, host=Host.usual())
    with contextlib.suppress(torch.cuda.OutOfMemoryError), gpu:
        recipe.run(device="cuda", **options)
    assert gpu.run is not None
    return gpu.run


def shortened(run: Run) -> Run:
    """The run as if the profiler had stopped sooner; marks and sensors stay. For a run on the CPU alone."""
    found = steps(run)
    ends = found.end_ns[found.recorded]
    if len(ends) <= KEPT or len(run.shape_rows) or len(run.memory_rows):
        return run  # what is beside the events points at their rows
    until_ns = int(ends[KEPT - 1])
    events = run.event_rows
    left = events.where(np.flatnonzero(events["start_ns"] + events["dur_ns"] <= until_ns))
    windows = tuple((start, min(end, until_ns)) for start, end in run.recording.windows_ns if start < until_ns)
    return replace(run, event_rows=left, recording=replace(run.recording, windows_ns=windows))


def anonymous(run: Run, called: str) -> Run:
    """The run without what tells whose it was: files, data sets, threads, the moment, the machine's inside."""
    measured = run.source.how == "measured"
    source = Source(how="recorded", device=run.source.device, date=date.today().isoformat()) if measured else run.source
    failure = run.failure and replace(run.failure, where=_unplaced(run.failure.where))
    tables: dict[str, Any] = {field: _anonymous(getattr(run, field)) for field in FIELDS}
    return replace(
        run,
        name=called,
        source=source,
        began_ns=None,
        failure=failure,
        machine=replace(run.machine, platform="Linux", container=None, gaps=()),
        threads=tuple(f"thread {number}" for number in range(len(run.threads))),
        loaders=tuple(replace(each, dataset="Items", dataset_name=None, name="loader") for each in run.loaders),
        **tables,
    )


def _anonymous(rows: Rows) -> Rows:
    """The same rows; file names in their words are all one."""
    words = {name: values for name, values in rows.columns.items() if isinstance(values, Words)}
    told = {
        name: Words(values.codes, tuple(_unplaced(word) or "" for word in values.vocabulary))
        for name, values in words.items()
    }
    return Rows(rows.table, {**rows.columns, **told})


def _unplaced(word: str | None) -> str | None:
    return None if word is None else _PLACE.sub("train.py", word)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
