"""Stage: versions, driver and GPU, what NVML can read, and how fast memory, copies and matrix products are."""

from __future__ import annotations

import importlib.metadata
import math
import shutil
import sys
import time
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_visit.stages.ceilings import keep_busy, measure_ceilings
from benchmarks.gpu_visit.stages.nvml_fields import read_fields
from benchmarks.gpu_visit.visit import Check, StageResult, Visit
from gpulab.hardware.lookup import spec_of
from gpulab.run import Machine
from gpulab.sensors import describe_machine
from gpulab.sensors.nvidia.nvml import Nvml

PACKAGES = ("gpulab", "triton", "numpy", "pandas", "nvidia-ml-py", "ipython", "transformers", "lightning", "accelerate")
COMPILERS = ("cc", "gcc", "g++", "nvcc", "ncu")


def environment(visit: Visit) -> StageResult:
    """Describe the machine; nothing is changed on it."""
    machine = describe_machine()
    ceilings = measure_ceilings(visit.device)
    keep_busy(visit.device)
    fields = read_fields()
    columns = readable_columns()
    spec = spec_of(machine.gpus[0]) if machine.gpus else None
    figures = {
        "versions": versions(),
        "machine": asdict(machine),
        "programs": {name: shutil.which(name) for name in COMPILERS},
        "torch": torch_facts(),
        "sensor_columns": columns,
        "nvml_fields": fields,
        "ceilings": ceilings,
        "virtual_gpu": spec.name if spec else None,
    }
    readable = [name for name, field in fields.items() if "value" in field]
    rows = [(name, _cell(field)) for name, field in fields.items()]
    rows += [(name, f"{value:.4g}") for name, value in ceilings.items()]
    headline = f"{machine.device}; {len(readable)} of {len(fields)} NVML fields readable"
    return StageResult(
        headline=headline, figures=figures, checks=checks(machine, columns), head=("reading", "value"), rows=rows
    )


def checks(machine: Machine, columns: dict[str, float | None]) -> list[Check]:
    """The GPU is described, is one that gpulab lists, and each sensor gives a value."""
    if not machine.gpus:
        return [Check(name="NVML describes a GPU", holds=None, detail="; ".join(gap.why for gap in machine.gaps))]
    unreadable = ", ".join(name for name, value in columns.items() if value is None)
    return [
        Check(name="NVML describes a GPU", holds=True),
        Check(name="the GPU is in gpulab's table", holds=spec_of(machine.gpus[0]) is not None, detail=machine.device),
        # A sensor may be refused by the machine; a gap then says so, and that is no failure of gpulab's.
        Check(name="every sensor gives a value", holds=None if unreadable else True, detail=unreadable),
    ]


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that matter; None if one is not installed."""
    import torch

    names: dict[str, str | None] = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
    for name in PACKAGES:
        try:
            names[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            names[name] = None
    return names


def torch_facts() -> dict[str, Any]:
    """What PyTorch was built for, and the GPU as it sees it."""
    import torch

    facts: dict[str, Any] = {"cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts["properties"] = str(torch.cuda.get_device_properties(0))
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts["architectures"] = torch.cuda.get_arch_list()
    return facts


def readable_columns() -> dict[str, float | None]:
    """A reading of each sensor column of the first GPU; None where it cannot be read."""
    nvml = Nvml()
    nvml.open()
    try:
        if not nvml.gpus:
            return {}
        nvml.read(nvml.gpus[0])
        time.sleep(1.1)  # the slowest are read once a second
        values = nvml.read(nvml.gpus[0])
    finally:
        nvml.close()
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _cell(field: dict[str, Any]) -> str:
    return f"{field['value']} ({field['ms']:.2f} ms)" if "value" in field else f"not readable: {field['error']}"
