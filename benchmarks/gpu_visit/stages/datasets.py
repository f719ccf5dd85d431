"""Stage: recorded runs of planted loops for recorded_runs/, each a folder with a data card, before and after the fix.

A folder can be moved to recorded_runs/ under a name that does not give the cause away. `answer.json` is written only
where the diagnosis of the saved run names the planted cause.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

import gpulab
from benchmarks.gpu_visit.planted_loops import LoopSettings, PlantedLoop, planted_loop
from benchmarks.gpu_visit.planted_loops.measuring import settings_of
from benchmarks.gpu_visit.stages.ceilings import synchronize
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json
from gpulab.files.datasets import (
    ANSWER,
    CARD,
    FIXED,
    MAX_DATASET_BYTES,
    RUN,
    DataCard,
    KnownAnswer,
    RunFile,
    Versions,
    device_label,
)
from gpulab.run import Run
from tools.record_drills import anonymous, encode_card

RECORDED = ("no_workers", "item_every_step", "pageable_copies", "tf32_off", "unfused_optimizer", "channels_first")
DRY_RECORDED = RECORDED[1:2]
PROFILED_STEPS = (12, 6, 4)  # fewer if the files would be too large


def datasets(visit: Visit) -> StageResult:
    """Record each loop before and after its fix; folders that are complete stay."""
    result = StageResult()
    names = DRY_RECORDED if visit.dry_run else RECORDED
    for name in names:
        folder = visit.parts_folder() / name
        if read_json(folder / CARD) is None:
            record(planted_loop(name), folder, dry_run=visit.dry_run)
        result = result_of(names, visit.parts_folder())
        visit.save(result)
    return result


def record(loop: PlantedLoop, folder: Path, *, dry_run: bool) -> None:
    """Record both sides with as many steps as fit into the size of a dataset; then write card and answer."""
    settings = settings_of(loop, dry_run=dry_run)
    for profiled_steps in PROFILED_STEPS:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, fixed in ((RUN, False), (FIXED, True)):
            run = anonymous(record_side(loop, replace(settings, fixed=fixed), profiled_steps), run_name(file))
            gpulab.save(run, folder / file)
        if folder_bytes(folder) <= MAX_DATASET_BYTES:
            break
    saved = gpulab.load(folder / RUN)
    first = gpulab.diagnose(saved).first
    if first is not None and first.rule in loop.rules:
        answer = KnownAnswer(planted=f"{loop.about}; fixed: {loop.fix}", finding=first.rule, fixed_in=None, recipes={})
        (folder / ANSWER).write_bytes(msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n")
    (folder / CARD).write_bytes(encode_card(card_of(saved, folder)))


def record_side(loop: PlantedLoop, settings: LoopSettings, profiled_steps: int) -> Run:
    """Profile one side of a loop."""
    with gpulab.profile(loop.name, steps=profiled_steps) as session:
        loop.run(settings)
        synchronize(settings.device)
    assert session.run is not None
    return session.run


def run_name(file: str) -> str:
    """The name of the run in a file."""
    return "training" if file == RUN else "training_fixed"


def card_of(run: Run, folder: Path) -> DataCard:
    """The data card: device, date, versions and sizes are those of the run."""
    return DataCard(
        title="A training loop on a GPU",
        recorded="A short training loop with one planted cause, and the same loop without it (fixed.gpulab).",
        device=device_label(run),
        date=date.fromisoformat(run.source.date) if run.source.date else date.today(),
        versions=Versions(gpulab=gpulab.__version__, torch=run.machine.torch, python=run.machine.python),
        command="python tools/gpu_visit.py --only datasets --again datasets",
        processing="File names, thread names, dataset names, the time of day and the platform were removed.",
        limits="Times are those of this GPU and its host; the loop uses random data.",
        licence="Apache-2.0",
        used_for="Exercises, and tests of the diagnosis on recordings of a real GPU.",
        runs={file: RunFile(name=run_name(file), bytes=(folder / file).stat().st_size) for file in (RUN, FIXED)},
    )


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def result_of(names: tuple[str, ...], parts: Path) -> StageResult:
    """What is there so far: sizes, first findings, whether the answers agree."""
    figures: dict[str, Mapping[str, Any]] = {}
    for name in names:
        folder = parts / name
        card = read_json(folder / CARD)
        if card is not None:
            answer = read_json(folder / ANSWER)
            finding = answer["finding"] if answer else None
            figures[name] = {"bytes": folder_bytes(folder), "finding": finding, "device": card["device"]}
    large = [name for name, facts in figures.items() if facts["bytes"] > MAX_DATASET_BYTES]
    return StageResult(
        headline=f"{len(figures)} of {len(names)} recorded",
        figures=figures,
        checks=[Check(name="each is small enough", holds=not large, detail=", ".join(large))],
        head=("dataset", "bytes", "diagnosed as planted"),
        rows=[(name, f"{facts['bytes']:,}", str(facts["finding"] or "no")) for name, facts in figures.items()],
    )
