"""Find a GPU in the table by a name that a user types, or by the GPU of a recorded run."""

from __future__ import annotations

import re
from difflib import get_close_matches

from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.gpus import SPECS
from gpulab.run import Gpu

_WHOLE_FRAC = 0.8  # of the multiprocessors on the data sheet; a GPU with fewer is a partition, or another model
_DRIVER_PREFIX = re.compile(r"\s*(?:nvidia|tesla|quadro)\b", re.IGNORECASE)


def resolve(name: str) -> GpuSpec:
    """Return the GPU with this name: "h100", "H100 SXM", "a100-80", "rtx4090", or a name as nvidia-smi prints it.

    If a name does not give memory or board, the most common cloud variant is meant: "v100" has 16 GB, "a100" 80 GB.
    Raises RunError with the list of known GPUs for any other name.
    """
    spec = _BY_NAME.get(normalize(name))
    if spec is None and _DRIVER_PREFIX.match(name):
        spec = _by_driver_name(name)
    if spec is not None:
        return spec
    close = get_close_matches(normalize(name), _BY_NAME, n=1, cutoff=0.6)
    raise RunError(
        f"{name!r} is not a GPU that gpulab knows" + (f"; did you mean {_BY_NAME[close[0]].name!r}?" if close else ""),
        why="times can only be computed for GPUs whose peaks, memory and caches are listed",
        fix=f"choose one of {', '.join(each.name for each in SPECS)}",
    )


# A MIG instance, "A100-SXM4-40GB MIG 1g.5gb"; a vGPU, "GRID A100-10C", "NVIDIA A10-4Q" or "GRID A100D-2-20C".
_PART = re.compile(r"\bMIG\b|-\d+[QCAB]$", re.IGNORECASE)


def spec_of(gpu: Gpu | None) -> GpuSpec | None:
    """Return the data sheet of a recorded GPU; None if it is not listed or is a partition of a GPU."""
    if gpu is None or gpu.mig:
        return None
    spec = _by_driver_name(gpu.name)
    if spec and gpu.multiprocessors and gpu.multiprocessors < _WHOLE_FRAC * spec.multiprocessors:
        return None
    return spec


def normalize(name: str) -> str:
    """Return a name without case, spaces, vendor and units, its board last.

    "a100 40gb pcie" and "NVIDIA A100-PCIE-40GB" are both "a10040pcie".
    """
    spaced = re.sub(r"(pcie|sxm\d?)", r" \1 ", name.lower())
    spaced = re.sub(r"(\d)[\s-]*gi?b\b", r"\1 ", spaced)
    spaced = re.sub(r"nvidia|tesla|geforce|\bhbm\w*", " ", spaced)
    parts = ["sxm" if part.startswith("sxm") else part for part in re.findall(r"[a-z0-9]+", spaced)]
    boards = [part for part in parts if part in {"pcie", "sxm"}]
    return "".join([part for part in parts if part not in boards] + boards)


def _by_driver_name(name: str) -> GpuSpec | None:
    """Return the GPU whose driver pattern matches this name; None if there is none, or for a part of a GPU."""
    if _PART.search(name):
        return None
    return next((spec for spec in SPECS if re.search(spec.driver_pattern, name, re.IGNORECASE)), None)


_BY_NAME = {normalize(name): spec for spec in SPECS for name in (spec.name, spec.driver_name, *spec.aliases)}
