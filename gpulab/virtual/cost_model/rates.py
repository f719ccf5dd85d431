"""What kernels reach of a GPU's peaks: the constants of the price model, each with its reason.

Sources, in the order they were trusted:

* MEDIANS: shares of the peaks that some 27,000 kernels reached on T4, V100, A100, L4, H100 and P100 in float32, as
  medians by kind of kernel, from the measurements that NeuSight's authors published (MIT licence).
* TRACES: kernels in published PyTorch traces: ResNet-50 on a V100, TimeSformer and BERT in bfloat16 on an H100,
  a recommender in TF32 on an A100.
* MAMF: the most that anyone got out of bfloat16 products, by github.com/stas00/ml-engineering.
* ANCHORS: ResNet-50's throughput as NVIDIA's DeepLearningExamples state it. What convolutions on tensor cores reach
  was set once so that its training on V100 and A100 comes out within a sixth; inference comes out a quarter too slow.
* Everything else is a guess by likeness, and marked so. It is ± 30 %.

A median kernel loses about 3 % to a last, half-empty wave of blocks. That loss is counted by itself here, so the
shares for products are the medians over 0.97.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.virtual.specs import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of a GPU's peaks, 0-1, and times that do not shrink with the work."""

    stream: float  # of the memory's rate: elementwise passes
    softmax: float
    norm: float  # layer normalisation, float32
    plain: float  # of float32: large products on the ordinary units
    half: float  # of tensor cores in half precision: large products
    tf32: float
    winograd: float  # of float32: 3 x 3 convolutions; beyond 1, as Winograd's algorithm multiplies less
    direct: float  # of float32: other convolutions
    convolved: float  # of what a product of that size reaches on tensor cores
    attention: float  # of tensor cores in half precision: flash attention forward, heads 64 to 128 wide
    strided: float  # of the memory's rate: copies that change the order of dimensions
    misaligned: tuple[float, float, float]  # of an aligned product in half precision: multiples of 4, of 2, odd ones
    misaligned_tf32: tuple[float, float]  # the same in TF32: multiples of 2, odd ones
    prologue: int  # steps along the inner dimension that the ends of a tile cost as much as, on tensor cores
    step_ns: float  # the least that one step along the inner dimension takes, tensor cores, at full clock
    fixed_ns: float  # of a kernel that does nothing


def _rates(
    stream: float, softmax: float, norm: float, plain: float, conv: float, half: float, tf32: float, convolved: float,
    attention: float, *, generation: int,
) -> Rates:  # fmt: skip
    hopper, ampere = generation >= 90, 80 <= generation < 90
    return Rates(
        stream=stream,
        softmax=softmax,
        norm=norm,
        plain=plain / 0.97,
        half=half,
        tf32=tf32,
        # TRACES, V100: 1.3 to 1.5 of the peak with Winograd, 0.58 to 0.82 without. Other GPUs by the ratio of their
        # MEDIANS for all 3 x 3 convolutions to the V100's 0.78.
        winograd=1.35 * conv / 0.78,
        direct=0.75 * conv / 0.78,
        convolved=convolved,
        attention=attention,
        # TRACES, H100: 0.39 where rows stay whole, 0.15 where they do not. A100: 0.45. Volta: a guess.
        strided=0.35 if hopper else 0.45 if ampere else 0.55,
        # TRACES, H100: odd sizes reach 0.15 to 0.2 of aligned ones, pairs 0.4, as the kernels are those of older GPUs.
        misaligned=(0.9, 0.5, 0.2) if hopper else (0.95, 0.75, 0.45),
        # TRACES, A100: odd sizes reach 0.5 to 0.7.
        misaligned_tf32=(0.5, 0.3) if hopper else (0.8, 0.6),
        # TRACES, H100: 0.65 of the peak with an inner dimension of 768 in 9 waves, 0.76 with 3072.
        prologue=64 if hopper else 48,
        # TRACES, H100: small bfloat16 products take 5 ns for each step, after 3 us.
        step_ns=5.0 if hopper else 7.0,
        # TRACES: elementwise kernels on one block: H100 1.6 to 1.8 us, V100 1.7 to 2.0, B200 2.1 to 2.7.
        fixed_ns=2100.0 if generation >= 100 else 1600.0 if hopper else 1700.0,
    )


# stream, softmax, norm, plain, conv, half, tf32, convolved, attention; conv of A10 and newer: guesses but A100's
_BY_NAME = {
    "T4": _rates(0.745, 0.67, 0.52, 0.48, 0.57, 0.45, 0.0, 0.75, 0.30, generation=75),
    "V100": _rates(0.91, 0.64, 0.60, 0.94, 0.78, 0.72, 0.0, 0.75, 0.30, generation=70),
    # 150 W for an A10, 300 for an A10G: the first throttles in products. Guesses by likeness to T4, L4 and RTX 3090.
    "A10": _rates(0.80, 0.74, 0.62, 0.50, 0.50, 0.60, 0.60, 0.75, 0.45, generation=86),
    "A10G": _rates(0.80, 0.74, 0.62, 0.55, 0.55, 0.85, 0.85, 0.75, 0.60, generation=86),
    # Products one after another throttle an L4's 72 W to 0.28 (its median); among passes over memory they do less so:
    # with 0.28, whole networks came out 28 % too slow on average, in a study whose single results are not used here.
    "L4": _rates(0.78, 0.78, 0.78, 0.38, 0.40, 0.50, 0.50, 0.75, 0.40, generation=89),
    "RTX 3090": _rates(0.88, 0.78, 0.70, 0.65, 0.60, 0.85, 0.85, 0.75, 0.70, generation=86),
    "RTX 4090": _rates(0.88, 0.78, 0.70, 0.65, 0.60, 0.88, 0.88, 0.75, 0.70, generation=89),
    "A100-40": _rates(0.87, 0.72, 0.64, 0.78, 0.67, 0.75, 0.70, 0.75, 0.60, generation=80),
    "A100-80": _rates(0.87, 0.68, 0.59, 0.86, 0.67, 0.80, 0.72, 0.75, 0.60, generation=80),
    "H100": _rates(0.87, 0.66, 0.58, 0.72, 0.60, 0.80, 0.74, 0.62, 0.40, generation=90),
    "H100 PCIe": _rates(0.87, 0.66, 0.58, 0.72, 0.60, 0.62, 0.62, 0.60, 0.40, generation=90),
    "H200": _rates(0.85, 0.60, 0.55, 0.72, 0.60, 0.80, 0.74, 0.62, 0.40, generation=90),
    "B200": _rates(0.80, 0.55, 0.50, 0.72, 0.60, 0.78, 0.70, 0.60, 0.40, generation=100),
}
_PASCAL = _rates(0.745, 0.42, 0.46, 0.70, 0.72, 0.70, 0.0, 0.75, 0.30, generation=60)


def rates(spec: Spec) -> Rates:
    """What kernels reach on this GPU; for one that is not listed, what they reach on its likeliest relative."""
    found = max((name for name in _BY_NAME if spec.name.startswith(name)), key=len, default=None)
    if found is not None:
        return _BY_NAME[found]
    relatives = {61: "T4", 75: "T4", 70: "V100", 80: "A100-40", 86: "A10G", 89: "L4", 90: "H100", 100: "B200"}
    return _BY_NAME[relatives[spec.generation]] if spec.generation in relatives else _PASCAL
