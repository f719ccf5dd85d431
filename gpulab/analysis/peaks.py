"""What GPUs can do at most: dense arithmetic and memory traffic, as their makers state it.

Makers print sparse figures for newer GPUs; these are the dense ones, half of that. GeForce cards are given with
float32 accumulation, as PyTorch uses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab.analysis.kernels.families import is_amd
from gpulab.analysis.kernels.tensor_cores import Precision
from gpulab.run import Gpu

_TERA, _GIGA = 10**12, 10**9


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The peaks of one GPU; None where it has no such units."""

    name: str
    architecture: str  # compute capability, or AMD's gfx number
    float32: float  # floating-point operations per second, a multiply-add as two
    tf32: float | None
    half: float  # float16 on matrix units
    bfloat16: float | None
    memory: float  # bytes per second
    memory_bytes: int  # as on the label; less of it can be used
    multiprocessors: int
    link: float  # bytes per second to the host, one direction, as the standard states it
    power_w: int
    source: str

    def of(self, precision: Precision) -> float | None:
        """The peak for numbers of this precision."""
        if precision is Precision.FLOAT32:
            return self.float32
        if precision is Precision.TF32:
            return self.tf32
        return self.half if precision is Precision.HALF else None


_ENGINEERING = "github.com/stas00/ml-engineering, compute/accelerator, from the makers' pages"
_SHEET = "the maker's data sheet"


def _peaks(
    name: str, arch: str, flops: tuple[float, float | None, float, float | None], memory: tuple[float, int], sms: int,
    link: float, power: int, source: str,
) -> Peaks:  # fmt: skip
    float32, tf32, half, bfloat16 = (None if each is None else each * _TERA for each in flops)
    assert float32 is not None
    assert half is not None
    return Peaks(
        name=name,
        architecture=arch,
        float32=float32,
        tf32=tf32,
        half=half,
        bfloat16=bfloat16,
        memory=memory[0] * _GIGA,
        memory_bytes=memory[1] * _GIGA,
        multiprocessors=sms,
        link=link * _GIGA,
        power_w=power,
        source=source,
    )


# (TFLOP/s in float32, TF32, float16, bfloat16), (GB/s, GB), multiprocessors, link GB/s, watts
PEAKS = (
    _peaks("T4", "7.5", (8.1, None, 65, None), (320, 16), 40, 15.8, 70, _SHEET),
    _peaks("V100 SXM2", "7.0", (15.7, None, 125, None), (900, 32), 80, 15.8, 300, _SHEET),
    _peaks("V100 SXM2 16 GB", "7.0", (15.7, None, 125, None), (900, 16), 80, 15.8, 300, _SHEET),
    _peaks("V100 PCIe", "7.0", (14, None, 112, None), (900, 32), 80, 15.8, 250, _SHEET),
    _peaks("V100 PCIe 16 GB", "7.0", (14, None, 112, None), (900, 16), 80, 15.8, 250, _SHEET),
    _peaks("A10", "8.6", (31.2, 62.5, 125, 125), (600, 24), 72, 31.5, 150, _SHEET),
    _peaks("A10G", "8.6", (35, 35, 70, 70), (600, 24), 80, 31.5, 300, _SHEET),
    _peaks("L4", "8.9", (30.3, 60, 121, 121), (300, 24), 58, 31.5, 72, f"{_SHEET}, its sparse figures halved"),
    _peaks("RTX 3090", "8.6", (35.6, 35.6, 71, 71), (936, 24), 82, 31.5, 350, "NVIDIA's GA102 white paper"),
    _peaks("RTX 4090", "8.9", (82.6, 82.6, 165, 165), (1008, 24), 128, 31.5, 450, "NVIDIA's Ada white paper"),
    _peaks("A100 40 GB", "8.0", (19.5, 156, 312, 312), (1555, 40), 108, 31.5, 400, _ENGINEERING),
    _peaks("A100 40 GB PCIe", "8.0", (19.5, 156, 312, 312), (1555, 40), 108, 31.5, 250, _SHEET),
    _peaks("A100 80 GB PCIe", "8.0", (19.5, 156, 312, 312), (1935, 80), 108, 31.5, 300, _ENGINEERING),
    _peaks("A100 80 GB SXM", "8.0", (19.5, 156, 312, 312), (2039, 80), 108, 31.5, 400, _ENGINEERING),
    _peaks("H100 PCIe", "9.0", (51, 378, 756, 756), (2000, 80), 114, 63, 350, _ENGINEERING),
    _peaks("H100 SXM", "9.0", (67, 494.5, 989, 989), (3350, 80), 132, 63, 700, _ENGINEERING),
    _peaks("H200 SXM", "9.0", (67, 494.5, 989, 989), (4800, 141), 132, 63, 700, _ENGINEERING),
    _peaks("B200", "10.0", (75, 1125, 2250, 2250), (8000, 192), 148, 63, 1000, _ENGINEERING),
)
_BY_NAME = {peaks.name: peaks for peaks in PEAKS}

# The first that a driver's name for the GPU answers to.
_NAMES = (
    (r"\bT4\b", "T4"),
    (r"V100.*PCIE", "V100 PCIe"),  # of 16 GB and of 32 alike: they compute alike
    (r"V100", "V100 SXM2"),
    (r"\bA10G\b", "A10G"),
    (r"\bA10\b", "A10"),
    (r"\bL4\b", "L4"),
    (r"RTX 3090(?! Ti)", "RTX 3090"),
    (r"RTX 4090(?! D| Laptop)", "RTX 4090"),
    (r"A100.*80GB PCI", "A100 80 GB PCIe"),
    (r"A100.*80GB", "A100 80 GB SXM"),
    (r"A100.*PCI", "A100 40 GB PCIe"),
    (r"A100", "A100 40 GB"),
    (r"H100 (?:PCIe|NVL)", "H100 PCIe"),
    (r"H100", "H100 SXM"),
    (r"\bH200\b(?! NVL)", "H200 SXM"),
    (r"\bB200\b", "B200"),
)

# Of a GPU that is not listed, how many times as fast its tensor cores are as its plain ones, by compute capability:
# the least that a GPU of it has. (TF32, half)
_RATIOS = {
    "7.0": (1.0, 8.0), "7.5": (1.0, 4.0), "8.0": (8.0, 16.0), "8.6": (1.0, 2.0), "8.7": (1.0, 2.0), "8.9": (1.0, 2.0),
    "9.0": (7.0, 14.0), "10.0": (14.0, 28.0), "10.3": (14.0, 28.0), "12.0": (1.0, 2.0), "12.1": (1.0, 2.0),
}  # fmt: skip


def peaks_of(gpu: Gpu | None) -> Peaks | None:
    """The peaks of a GPU by the name its driver gives it; None for one that is not listed, and for a part of one."""
    if gpu is None or gpu.mig:
        return None
    found = next((_BY_NAME[name] for pattern, name in _NAMES if re.search(pattern, gpu.name)), None)
    if found and gpu.multiprocessors and gpu.multiprocessors < 0.8 * found.multiprocessors:
        return None  # a part of one, or another of a similar name
    return found


def times_as_fast(gpu: Gpu | None, to: Precision, than: Precision) -> float | None:
    """How many times as fast one precision is as another at most; None where that is not known."""
    if gpu is None or is_amd(gpu.name):
        return None
    peaks = peaks_of(gpu)
    if peaks is not None:
        fast, slow = peaks.of(to), peaks.of(than)
        return fast / slow if fast and slow else None
    tf32, half = _RATIOS.get(gpu.compute_capability or "", (None, None))
    known = {Precision.FLOAT32: 1.0, Precision.TF32: tf32, Precision.HALF: half}
    fast, slow = known.get(to), known.get(than)
    return fast / slow if fast and slow else None
