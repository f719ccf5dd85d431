"""Recorded runs that come with gpulab: one folder per dataset, each with a data card.

    run.gpulab      the recorded run
    fixed.gpulab    the same training without the planted cause, if there is one
    card.json       the data card: what was recorded, on which device, when, how, under which licence
    answer.json     the planted cause and how to record it again; separate, so that a diagnosis cannot read it

The folders are in `recorded_runs/` of a clone and in `gpulab/recorded_runs/` of an installed wheel.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpulab.errors import GpulabError
from gpulab.files.loading import load_run
from gpulab.run import Run
from gpulab.wording import did_you_mean

RUN, FIXED, CARD, ANSWER = "run.gpulab", "fixed.gpulab", "card.json", "answer.json"
MAX_DATASET_BYTES = 2_000_000  # all files of a dataset together, because every wheel contains them

_T = TypeVar("_T")


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a dataset: its name and the size of its file."""

    name: str
    bytes: int


class Versions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Versions that recorded a dataset; None if the run does not say."""

    gpulab: str
    torch: str | None
    python: str | None


class DataCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origin and use of a dataset. It does not reveal what is wrong with the run."""

    title: str
    recorded: str  # content of the run
    device: str  # as `device_label` gives it
    date: datetime.date
    versions: Versions
    command: str  # records it again
    processing: str  # changes after recording
    limits: str  # how far the numbers can be trusted
    licence: str
    used_for: str
    runs: Mapping[str, RunFile]  # by file name


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one run was recorded: a training loop, its options, and the device."""

    workload: str  # of gpulab.workloads or tools/record_drills.py
    options: Mapping[str, Any]  # keyword arguments of the loop; defaults are omitted
    gpu: str | None  # a virtual GPU; None for the CPU
    profiled_steps: int | None  # maximum number of profiled steps; None for all


class KnownAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The planted cause of a run, and the correct diagnosis."""

    planted: str
    finding: str | None  # the rule of the first finding; None if nothing is wrong
    fixed_in: str | None  # the dataset with the fixed run, if there is no fixed.gpulab
    recipes: Mapping[str, Recipe]  # by file name; empty for a run that the tool does not record


@dataclass(frozen=True)
class Dataset:
    """A folder with a recorded run and its data card."""

    name: str
    folder: Path

    @property
    def card(self) -> DataCard:
        """The data card. Raises GpulabError if card.json is damaged."""
        return _decode(self.folder / CARD, DataCard)

    @property
    def answer(self) -> KnownAnswer | None:
        """The planted cause; None for a run without a known answer. Raises GpulabError if answer.json is damaged."""
        path = self.folder / ANSWER
        return _decode(path, KnownAnswer) if path.exists() else None

    @property
    def run_path(self) -> Path:
        """The file of the run."""
        return self.folder / RUN

    @property
    def fixed_path(self) -> Path | None:
        """The file of the same training without the planted cause; None if there is none."""
        path = self.folder / FIXED
        if path.exists():
            return path
        other = self.answer and self.answer.fixed_in
        return self.folder.parent / other / RUN if other else None

    def load(self) -> Run:
        """The run. Raises StoreError if its file cannot be read."""
        return load_run(self.run_path, progress=False)

    def load_fixed(self) -> Run | None:
        """The same training without the planted cause; None if there is no such run."""
        return load_run(self.fixed_path, progress=False) if self.fixed_path else None


def datasets(folder: Path | None = None) -> tuple[Dataset, ...]:
    """All datasets of a folder by name; by default those that come with gpulab."""
    cards = sorted((folder or datasets_folder()).glob(f"*/{CARD}"))
    return tuple(Dataset(path.parent.name, path.parent) for path in cards)


def dataset(name: str, folder: Path | None = None) -> Dataset:
    """The dataset of this name. Raises GpulabError if there is none."""
    by_name = {entry.name: entry for entry in datasets(folder)}
    if name not in by_name:
        raise GpulabError(
            f"There is no dataset {name!r}.",
            why=f"the datasets are {', '.join(by_name)}",
            fix=did_you_mean(name, by_name) or "use one of these names",
        )
    return by_name[name]


def datasets_folder() -> Path:
    """The folder of all datasets in an installed wheel or a clone. Raises GpulabError if there is none."""
    package = Path(__file__).resolve().parents[1]
    # Folders without data cards are ignored: site-packages may contain a folder of this name of another project.
    for folder in (package / "recorded_runs", package.parent / "recorded_runs"):
        if any(folder.glob(f"*/{CARD}")):
            return folder
    raise GpulabError(
        "The recorded datasets are missing.",
        why="this installation of gpulab was packed without them",
        fix="pip install --force-reinstall gpulab",
    )


def device_label(run: Run) -> str:
    """The device of a run as a data card names it: "virtual H100 SXM (estimated)", "AMD EPYC"."""
    return f"virtual {run.source.device} (estimated)" if run.source.how == "virtual" else run.source.device


def _decode(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GpulabError(
            f"{path.parent.name}/{path.name} cannot be read.", why=str(error), fix="see recorded_runs/README.md"
        ) from error
