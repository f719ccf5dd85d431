"""Record datasets (recorded_runs/README.md): the runs of lesson 20, on the CPU here or on a virtual GPU.

    python tools/record_drills.py case03                 record what recorded_runs/case03/answer.json describes
    python tools/record_drills.py                        record all, some three minutes on a quiet machine of two cores
    python tools/record_drills.py case03 --overwrite     replace runs that exist; figures of lessons depend on them

Each run is stripped of what would reveal the planted cause: names of files, datasets and threads. The tool writes the
measured fields of the data card, and prints the diagnosis: it must be the one in answer.json.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.files.datasets import (
    CARD,
    MAX_DATASET_BYTES,
    DataCard,
    Dataset,
    Recipe,
    RunFile,
    Versions,
    dataset,
    datasets,
    datasets_folder,
    device_label,
)
from gpulab.rows import Rows, TextColumn
from gpulab.run import TABLE_FIELDS, Run, Source
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.session import VirtualGpu
from gpulab.workloads import WORKLOADS
from gpulab.workloads.training import deep_narrow_model, torch_threads

KEPT_STEPS = 7  # profiled steps that a run on the CPU keeps: enough for a median
_PYTHON_FILE = re.compile(r"\b\w+\.py\b")  # in "preprocess (audio.py:25)"


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

    model = deep_narrow_model(64, 16).to(device, torch.bfloat16)
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

    with torch_threads(1):
        model = deep_narrow_model(512, 5)
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


LOOPS: Mapping[str, Callable[..., object]] = {
    **{entry.name: entry.run for entry in WORKLOADS},
    **{loop.__name__: loop for loop in (called_often, few_rows, filled, many_tensors)},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the named datasets, or all; 1 if a diagnosis is not the known answer or a dataset is too large."""
    parser = argparse.ArgumentParser(description="Record datasets again, or for the first time.")
    parser.add_argument("names", nargs="*", help="datasets, by the names of their folders; all by default")
    parser.add_argument("--overwrite", action="store_true", help="replace runs that exist")
    parser.add_argument("--folder", type=Path, default=datasets_folder(), help="the folder that holds the datasets")
    options = parser.parse_args(arguments)
    selected = [dataset(name, options.folder) for name in options.names] or datasets(options.folder)
    existing = [entry.name for entry in selected if any(entry.folder.glob("*.gpulab"))]
    if existing and not options.overwrite:
        print(f"Nothing was recorded: {', '.join(existing)} hold runs. Pass --overwrite to replace them.")
        return 2
    failures = 0
    for entry in selected:
        problems = record(entry)
        failures += bool(problems)
        print(f"{entry.name}: {'; '.join(problems) or 'recorded'}", flush=True)
    return 1 if failures else 0


def record(entry: Dataset) -> list[str]:
    """Record the runs of a dataset and update its card; return what is wrong with them, if anything."""
    answer = entry.answer
    if answer is None or not answer.recipes:
        return ["not recorded: no recipe in answer.json"]
    card = entry.card
    for file, recipe in answer.recipes.items():
        run = record_run(recipe, card.runs[file].name)
        gpulab.save(anonymous(run if recipe.gpu else shortened(run), card.runs[file].name), entry.folder / file)
    (entry.folder / CARD).write_bytes(encode_card(updated_card(entry, card)))
    first = gpulab.diagnose(entry.load()).first
    rule = first.rule if first else None
    size = sum(path.stat().st_size for path in entry.folder.iterdir())
    too_large = [f"{size:,} bytes, {MAX_DATASET_BYTES:,} at most"] * (size > MAX_DATASET_BYTES)
    return too_large + [f"diagnosed as {rule}, planted {answer.finding}"] * (rule != answer.finding)


def updated_card(entry: Dataset, card: DataCard) -> DataCard:
    """The card with device, date, versions and sizes of the runs that lie in the folder now."""
    run = entry.load()
    files = {
        file: RunFile(name=run_file.name, bytes=(entry.folder / file).stat().st_size)
        for file, run_file in card.runs.items()
    }
    return msgspec.structs.replace(
        card,
        device=device_label(run),
        date=date.fromisoformat(run.source.date) if run.source.date else date.today(),
        versions=Versions(gpulab=gpulab.__version__, torch=run.machine.torch, python=run.machine.python),
        runs=files,
    )


def encode_card(card: DataCard) -> bytes:
    """A card as it lies on disk."""
    return msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n"


def record_run(recipe: Recipe, name: str) -> Run:
    """The run of a recipe; running out of memory is no error here."""
    loop, options = LOOPS[recipe.workload], dict(recipe.options)
    if recipe.gpu is None:
        with contextlib.suppress(MemoryError), gpulab.profile(name, steps=recipe.profiled_steps):
            loop(**options)
        run: Run = gpulab.runs[name]
        return run
    import torch

    gpu = VirtualGpu(recipe.gpu, name, host=HostCosts.reference())
    with contextlib.suppress(torch.cuda.OutOfMemoryError), gpu:
        loop(device="cuda", **options)
    assert gpu.run is not None
    return gpu.run


def shortened(run: Run) -> Run:
    """The run as if the profiler had stopped sooner; marks and sensors stay. For a run on the CPU alone."""
    run_steps = find_steps(run)
    ends = run_steps.end_ns[run_steps.recorded]
    if len(ends) <= KEPT_STEPS or len(run.shape_rows) or len(run.memory_rows):
        return run  # what is beside the events points at their rows
    until_ns = int(ends[KEPT_STEPS - 1])
    events = run.event_rows
    left = events.select(np.flatnonzero(events["start_ns"] + events["dur_ns"] <= until_ns))
    windows = tuple((start, min(end, until_ns)) for start, end in run.recording.windows_ns if start < until_ns)
    return replace(run, event_rows=left, recording=replace(run.recording, windows_ns=windows))


def anonymous(run: Run, name: str) -> Run:
    """The run without what tells whose it was: files, data sets, threads, the moment, the machine's inside."""
    measured = run.source.how == "measured"
    source = Source(how="recorded", device=run.source.device, date=date.today().isoformat()) if measured else run.source
    failure = run.failure and replace(run.failure, where=_without_file_names(run.failure.where))
    tables: dict[str, Any] = {field: _anonymous(getattr(run, field)) for field in TABLE_FIELDS}
    return replace(
        run,
        name=name,
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
    columns = {name: values for name, values in rows.columns.items() if isinstance(values, TextColumn)}
    replaced = {
        name: TextColumn(values.codes, tuple(_without_file_names(word) or "" for word in values.vocabulary))
        for name, values in columns.items()
    }
    return Rows(rows.table, {**rows.columns, **replaced})


def _without_file_names(word: str | None) -> str | None:
    return None if word is None else _PYTHON_FILE.sub("train.py", word)


if __name__ == "__main__":
    sys.exit(main())
