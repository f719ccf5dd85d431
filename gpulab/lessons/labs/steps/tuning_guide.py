"""The items of PyTorch's Performance Tuning Guide, in its order, and which of them a recorded run leaves open.

Source: docs.pytorch.org/tutorials/recipes/recipes/tuning_guide. Items that a recording cannot show are left out:
gradients in validation, biases before batch norm, debugging APIs, cudnn.benchmark, CPU threads, NUMA. An item is open
if the run does not do what the guide says, whether or not this costs time. That is how people use a checklist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpulab.analysis.kernels.families import is_layout_conversion
from gpulab.lessons.labs.drills.run_counters import AnalysedRun, read_counters
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, EventKind

TENSOR_CORES_USED = 0.5  # share of matrix-kernel time


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a recording shows of the settings that the guide names."""

    loads_in_loop: bool  # a DataLoader with num_workers=0
    pageable_copies: bool  # any copy to the GPU from pageable memory
    compiled: bool  # any kernel of torch.compile
    layout_conversions: bool  # any NCHW/NHWC conversion
    tensor_cores: bool  # they do most of the matrix work, or there is none
    cuda_graphs: bool
    copies_to_host: bool  # any copy from the GPU: .item(), .cpu()
    on_gpu: bool


@dataclass(frozen=True, kw_only=True)
class GuideItem:
    """One item of the guide, and whether a run leaves it open."""

    name: str
    is_open: Callable[[RunSettings], bool]


# In the order of the guide.
TUNING_GUIDE: tuple[GuideItem, ...] = (
    GuideItem(name="DataLoader workers", is_open=lambda run: run.loads_in_loop),
    GuideItem(name="pinned memory", is_open=lambda run: run.pageable_copies),
    GuideItem(name="torch.compile", is_open=lambda run: not run.compiled),
    GuideItem(name="channels_last", is_open=lambda run: run.layout_conversions),
    GuideItem(name="tensor cores", is_open=lambda run: run.on_gpu and not run.tensor_cores),
    GuideItem(name="CUDA graphs", is_open=lambda run: run.on_gpu and not run.cuda_graphs),
    GuideItem(name="no synchronisation", is_open=lambda run: run.copies_to_host),
    GuideItem(name="tensors created on the GPU", is_open=lambda run: run.pageable_copies),
)


def run_settings(run: Run) -> RunSettings:
    """Read the settings from a recording."""
    return _settings(run, read_counters(run))


def _settings(run: Run, counters: Mapping[str, float | None]) -> RunSettings:
    device_rows = [run.event_rows.of_kind(kind) for kind in DEVICE_KINDS]
    names = {name or "" for rows in device_rows for name in rows.text("name").to_list()}
    calls = {name or "" for name in run.event_rows.of_kind(EventKind.LAUNCH).text("name").to_list()}
    tensor_cores = counters["tensor_cores"]
    return RunSettings(
        loads_in_loop=any(each.workers == 0 for each in run.loaders),
        pageable_copies=bool(counters["to_gpu"]),
        compiled=any(name.startswith("triton_") for name in names),
        layout_conversions=any(is_layout_conversion(name) for name in names),
        tensor_cores=tensor_cores is None or tensor_cores >= TENSOR_CORES_USED,
        cuda_graphs=any("GraphLaunch" in name for name in calls),
        copies_to_host=bool(counters["to_host"]),
        on_gpu=AnalysedRun(run).kernels is not None,
    )


def open_items(run: Run) -> tuple[str, ...]:
    """Return the items of the guide that a run leaves open, in the order of the guide."""
    settings = run_settings(run)
    return tuple(item.name for item in TUNING_GUIDE if item.is_open(settings))
