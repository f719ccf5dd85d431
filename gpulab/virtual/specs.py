"""The GPUs that can be played: what a process sees of each, beyond the peaks of `gpulab.analysis.peaks`.

Where figures are from: `usable_bytes` is the "total capacity" of PyTorch's out-of-memory messages, as people quote
them (drivers differ by up to 1 %). Clocks and caches are the makers' data sheets and white papers; those marked from
memory could not be looked up again. `context_bytes` and `idle_w` are allowances, not measurements: a CUDA context
with cuBLAS and cuDNN loaded takes 300 to 600 MiB, more on newer GPUs, and a GPU with a context idles at a tenth to a
fifth of its limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from gpulab.analysis.peaks import PEAKS, Peaks
from gpulab.errors import RunError

_MIB, _GIB = 2**20, 2**30
_QUOTED = "total capacity as quoted in out-of-memory messages"
_MEMORY = "from memory, unchecked"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One GPU that can be played."""

    peaks: Peaks
    name: str  # "H100 SXM"
    driver_name: str  # as nvidia-smi prints it
    compute_capability: tuple[int, int]
    multiprocessors: int
    usable_bytes: int  # what a process sees as all of its memory
    context_bytes: int  # an allowance: the context, and what cuBLAS and cuDNN load
    l2_bytes: int
    sm_clock_mhz: int  # at most
    idle_w: int  # an allowance: with a context, and nothing to do
    full_w: int  # the board's limit
    source: str

    @property
    def generation(self) -> int:
        """The compute capability in one number: 80 for (8, 0)."""
        return self.compute_capability[0] * 10 + self.compute_capability[1]


_PEAKS = {peaks.name: peaks for peaks in PEAKS}


def _spec(
    peaks: str, name: str, driver: str, usable_gib: float, context_mib: int, l2_mib: float, clock: int, idle: int,
    source: str,
) -> Spec:  # fmt: skip
    found = _PEAKS[peaks]
    major, _, minor = found.architecture.partition(".")
    return Spec(
        peaks=found,
        name=name,
        driver_name=driver,
        compute_capability=(int(major), int(minor)),
        multiprocessors=found.multiprocessors,
        usable_bytes=int(usable_gib * _GIB) // _MIB * _MIB,
        context_bytes=context_mib * _MIB,
        l2_bytes=int(l2_mib * _MIB),
        sm_clock_mhz=clock,
        idle_w=idle,
        full_w=found.power_w,
        source=source,
    )


_T4 = f"memory, L2, clock: deviceQuery of a T4, published; {_QUOTED}"
_V100 = f"NVIDIA's Volta white paper; {_QUOTED}"
_A100 = f"NVIDIA's A100 white paper; {_QUOTED}"
_H100 = f"NVIDIA's H100 white paper; the clock of SXM {_MEMORY}; {_QUOTED}"
_ADA = f"NVIDIA's Ada white paper; {_QUOTED}"
_GA102 = f"NVIDIA's GA102 white paper; {_QUOTED}"

# peaks, name, driver's name, usable GiB, context MiB, L2 MiB, MHz, idle watts, source
SPECS: tuple[Spec, ...] = (
    _spec("T4", "T4", "Tesla T4", 14.75, 350, 4, 1590, 25, _T4),
    _spec("V100 SXM2 16 GB", "V100 16 GB", "Tesla V100-SXM2-16GB", 15.77, 400, 6, 1530, 55, _V100),
    _spec("V100 SXM2", "V100 32 GB", "Tesla V100-SXM2-32GB", 31.73, 400, 6, 1530, 55, _V100),
    _spec("V100 PCIe 16 GB", "V100 PCIe 16 GB", "Tesla V100-PCIE-16GB", 15.77, 400, 6, 1380, 40, _V100),
    _spec("V100 PCIe", "V100 PCIe 32 GB", "Tesla V100-PCIE-32GB", 31.73, 400, 6, 1380, 40, _V100),
    _spec("A10", "A10", "NVIDIA A10", 22.05, 400, 6, 1695, 55, f"all beyond the peaks {_MEMORY}"),
    _spec("A10G", "A10G", "NVIDIA A10G", 22.05, 400, 6, 1710, 60, f"all but the memory {_MEMORY}; {_QUOTED}"),
    _spec("L4", "L4", "NVIDIA L4", 22.03, 400, 48, 2040, 30, f"clock and L2 {_MEMORY}; {_QUOTED}"),
    _spec("RTX 3090", "RTX 3090", "NVIDIA GeForce RTX 3090", 23.68, 400, 6, 1695, 110, _GA102),
    _spec("RTX 4090", "RTX 4090", "NVIDIA GeForce RTX 4090", 23.64, 400, 72, 2520, 60, _ADA),
    _spec("A100 40 GB PCIe", "A100-40 PCIe", "NVIDIA A100-PCIE-40GB", 39.39, 500, 40, 1410, 55, _A100),
    _spec("A100 40 GB", "A100-40 SXM", "NVIDIA A100-SXM4-40GB", 39.49, 500, 40, 1410, 70, _A100),
    _spec("A100 80 GB PCIe", "A100-80 PCIe", "NVIDIA A100 80GB PCIe", 79.15, 500, 40, 1410, 65, _A100),
    _spec("A100 80 GB SXM", "A100-80 SXM", "NVIDIA A100-SXM4-80GB", 79.15, 500, 40, 1410, 80, _A100),
    _spec("H100 PCIe", "H100 PCIe", "NVIDIA H100 PCIe", 79.10, 600, 50, 1755, 80, _H100),
    _spec("H100 SXM", "H100 SXM", "NVIDIA H100 80GB HBM3", 79.10, 600, 50, 1980, 115, _H100),
    _spec("H200 SXM", "H200", "NVIDIA H200", 139.80, 600, 50, 1980, 120, f"as H100 SXM; {_QUOTED}"),
    _spec("B200", "B200", "NVIDIA B200", 178.35, 700, 126, 1965, 190, f"clock and L2 {_MEMORY}; {_QUOTED}"),
)

_USUAL = {  # what is meant where a name leaves the memory or the board open: what clouds rent most
    "v100": "V100 16 GB", "v10016": "V100 16 GB", "v10032": "V100 32 GB", "a100": "A100-80 SXM", "h100": "H100 SXM",
    "a10040": "A100-40 SXM", "a10080": "A100-80 SXM", "a100sxm": "A100-80 SXM", "a100pcie": "A100-80 PCIe",
    "v100sxm2": "V100 16 GB", "v100sxm": "V100 16 GB", "v100pcie": "V100 PCIe 16 GB", "h200sxm": "H200",
    "3090": "RTX 3090", "4090": "RTX 4090", "b200sxm": "B200", "h10080": "H100 SXM",
}  # fmt: skip


def spec(name: str) -> Spec:
    """The GPU of this name: "h100", "H100 SXM", "a100-80", "a100 40gb pcie", "rtx4090", or as nvidia-smi prints it.

    Raises RunError for one that is not listed.
    """
    wanted = _bare(name)
    for each in SPECS:
        if wanted in {_bare(each.name), _bare(each.driver_name)}:
            return each
    usual = _USUAL.get(wanted)
    if usual is not None:
        return next(each for each in SPECS if each.name == usual)
    listed = ", ".join(each.name for each in SPECS)
    near = _nearest(wanted)
    raise RunError(
        f"{name!r} is no GPU that can be played" + (f"; did you mean {near!r}?" if near else ""),
        why="what a GPU can do must be known to price work on it, and only some are listed",
        fix=f"choose one of {listed}",
    )


def _bare(name: str) -> str:
    """A name without case, spaces, makers and units, its parts in one order: "a100 40gb pcie" is "A100-PCIE-40GB"."""
    lower = re.sub(r"(\d)[\s-]*gi?b\b", r"\1 ", name.lower())
    lower = re.sub(r"nvidia|tesla|geforce|\bhbm\w*", " ", lower)
    parts = re.findall(r"[a-z0-9]+", re.sub(r"(pcie|sxm\d?)", r" \1 ", lower))
    parts = ["sxm" if part.startswith("sxm") else part for part in parts]
    boards = [part for part in parts if part in {"pcie", "sxm"}]
    return "".join([part for part in parts if part not in boards] + boards)


def _nearest(wanted: str) -> str | None:
    known = {_bare(each.name): each.name for each in SPECS} | _USUAL
    found = get_close_matches(wanted, known, n=1, cutoff=0.6)
    return known[found[0]] if found else None
