"""The table of GPUs.

Sources of the figures:

* Peaks are the vendors' dense figures; for newer GPUs the vendors publish sparse ones, which are halved here. GeForce
  cards are listed with float32 accumulation, as PyTorch uses it.
* `usable_bytes` is the "total capacity" of PyTorch's out-of-memory messages, as quoted by users (drivers differ by
  up to 1 %). Clocks and caches are from the vendors' data sheets and white papers; those marked "from memory" could
  not be looked up again.
* `nvlink_bytes_per_s` is half of the total of both directions that the makers state for boards with NVLink between all
  GPUs (SXM). Bridges between pairs of PCIe cards are optional, so PCIe cards are listed without.
* `context_bytes` and `idle_w` are allowances, not measurements: a CUDA context with cuBLAS and cuDNN loaded takes 300
  to 600 MiB, more on newer GPUs, and a GPU with a context idles at a tenth to a fifth of its limit.

Shares of the peaks that kernels reach, by source, in the order in which the sources were trusted:

* MEDIANS: shares of the peaks that some 27,000 kernels reached on T4, V100, A100, L4, H100 and P100 in float32, as
  medians by kind of kernel, from the measurements that NeuSight's authors published (MIT licence).
* TRACES: kernels in published PyTorch traces: ResNet-50 on a V100, TimeSformer and BERT in bfloat16 on an H100,
  a recommender in TF32 on an A100.
* MAMF: the maximum measured rate of bfloat16 products, by github.com/stas00/ml-engineering.
* ANCHORS: ResNet-50's throughput in NVIDIA's DeepLearningExamples. The share of convolutions on tensor cores
  was set once so that its training on V100 and A100 comes out within a sixth; inference comes out a quarter too slow.
* Everything else is a guess from similar GPUs, and marked so. It is ± 30 %.
"""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec, Shares

_TERA, _GIGA, _MIB, _GIB = 10**12, 10**9, 2**20, 2**30

_ENGINEERING = "github.com/stas00/ml-engineering, compute/accelerator, from the makers' pages"
_SHEET = "the maker's data sheet"
_QUOTED = "total capacity as quoted in out-of-memory messages"
_FROM_MEMORY = "from memory, unchecked"
_T4 = f"memory, L2, clock: deviceQuery of a T4, published; {_QUOTED}"
_V100 = f"NVIDIA's Volta white paper; {_QUOTED}"
_A100 = f"NVIDIA's A100 white paper; {_QUOTED}"
_H100 = f"NVIDIA's H100 white paper; the clock of SXM {_FROM_MEMORY}; {_QUOTED}"


def _gpu(
    name: str, driver_name: str, aliases: tuple[str, ...], pattern: str, *, capability: str, sms: int, mhz: int,
    tflops: tuple[float, float | None, float, float | None], gb_per_s: int, gb: int, usable_gib: float,
    context_mib: int, l2_mib: int, pcie: int, watts: tuple[int, int], shares: Shares, peaks: str, source: str,
    nvlink: int | None = None,
) -> GpuSpec:  # fmt: skip
    """`tflops`: in float32, TF32, FP16 and bfloat16. `watts`: idle, and the limit. `peaks`: their source.

    `nvlink`: GB/s in one direction.
    """
    float32, tf32, half, bfloat16 = tflops
    return GpuSpec(
        name=name,
        aliases=aliases,
        driver_name=driver_name,
        driver_pattern=pattern,
        compute_capability=capability,
        multiprocessors=sms,
        sm_clock_mhz=mhz,
        float32_flops_per_s=float32 * _TERA,
        tf32_flops_per_s=None if tf32 is None else tf32 * _TERA,
        half_flops_per_s=half * _TERA,
        bfloat16_flops_per_s=None if bfloat16 is None else bfloat16 * _TERA,
        memory_bytes_per_s=gb_per_s * _GIGA,
        memory_bytes=gb * _GIGA,
        usable_bytes=int(usable_gib * _GIB) // _MIB * _MIB,
        context_bytes=context_mib * _MIB,
        l2_bytes=l2_mib * _MIB,
        pcie_generation=pcie,
        pcie_lanes=16,
        nvlink_bytes_per_s=None if nvlink is None else nvlink * _GIGA,
        idle_w=watts[0],
        power_limit_w=watts[1],
        shares=shares,
        peaks_source=peaks,
        source=source,
    )


def _shares(
    streaming: float, softmax: float, layer_norm: float, float32_gemm: float, float32_conv: float, half_gemm: float,
    tf32_gemm: float, tensor_core_conv: float, flash_attention: float,
) -> Shares:  # fmt: skip
    return Shares(
        streaming=streaming,
        softmax=softmax,
        layer_norm=layer_norm,
        float32_gemm=float32_gemm,
        float32_conv=float32_conv,
        half_gemm=half_gemm,
        tf32_gemm=tf32_gemm,
        tensor_core_conv=tensor_core_conv,
        flash_attention=flash_attention,
    )


# In the order of the fields of Shares. float32_conv of A10 and newer: guesses but A100's.
_T4_SHARES = _shares(0.745, 0.67, 0.52, 0.48, 0.57, 0.45, 0.0, 0.75, 0.30)
_V100_SHARES = _shares(0.91, 0.64, 0.60, 0.94, 0.78, 0.72, 0.0, 0.75, 0.30)
# 150 W for an A10, 300 W for an A10G: the A10 throttles in matrix products. Guesses from T4, L4 and RTX 3090.
_A10_SHARES = _shares(0.80, 0.74, 0.62, 0.50, 0.50, 0.60, 0.60, 0.75, 0.45)
_A10G_SHARES = _shares(0.80, 0.74, 0.62, 0.55, 0.55, 0.85, 0.85, 0.75, 0.60)
# Successive matrix products throttle an L4 (72 W) to 0.28 of the float32 peak (median). Between memory-bound kernels
# they throttle less: with 0.28, whole networks were predicted 28 % too slow on average, in a study whose single results
# are not used here.
_L4_SHARES = _shares(0.78, 0.78, 0.78, 0.38, 0.40, 0.50, 0.50, 0.75, 0.40)
_RTX_3090_SHARES = _shares(0.88, 0.78, 0.70, 0.65, 0.60, 0.85, 0.85, 0.75, 0.70)
_RTX_4090_SHARES = _shares(0.88, 0.78, 0.70, 0.65, 0.60, 0.88, 0.88, 0.75, 0.70)
_A100_40_SHARES = _shares(0.87, 0.72, 0.64, 0.78, 0.67, 0.75, 0.70, 0.75, 0.60)
_A100_80_SHARES = _shares(0.87, 0.68, 0.59, 0.86, 0.67, 0.80, 0.72, 0.75, 0.60)
_H100_PCIE_SHARES = _shares(0.87, 0.66, 0.58, 0.72, 0.60, 0.62, 0.62, 0.60, 0.40)
_H100_SHARES = _shares(0.87, 0.66, 0.58, 0.72, 0.60, 0.80, 0.74, 0.62, 0.40)
_H200_SHARES = _shares(0.85, 0.60, 0.55, 0.72, 0.60, 0.80, 0.74, 0.62, 0.40)
_B200_SHARES = _shares(0.80, 0.55, 0.50, 0.72, 0.60, 0.78, 0.70, 0.60, 0.40)

# fmt: off
SPECS: tuple[GpuSpec, ...] = (
    _gpu("T4", "Tesla T4", ("t4",), r"\bT4\b",
         capability="7.5", sms=40, mhz=1590, tflops=(8.1, None, 65, None), gb_per_s=320, gb=16, usable_gib=14.75,
         context_mib=350, l2_mib=4, pcie=3, watts=(25, 70), shares=_T4_SHARES, peaks=_SHEET, source=_T4),
    _gpu("V100 16 GB", "Tesla V100-SXM2-16GB", ("v100", "v100-sxm2"), r"V100(?!.*PCIE).*16GB",
         capability="7.0", sms=80, mhz=1530, tflops=(15.7, None, 125, None), gb_per_s=900, gb=16, usable_gib=15.77,
         context_mib=400, l2_mib=6, pcie=3, watts=(55, 300), nvlink=150, shares=_V100_SHARES, peaks=_SHEET,
         source=_V100),
    _gpu("V100 32 GB", "Tesla V100-SXM2-32GB", ("v100-32gb",), r"V100(?!.*PCIE)(?!.*16GB)",
         capability="7.0", sms=80, mhz=1530, tflops=(15.7, None, 125, None), gb_per_s=900, gb=32, usable_gib=31.73,
         context_mib=400, l2_mib=6, pcie=3, watts=(55, 300), nvlink=150, shares=_V100_SHARES, peaks=_SHEET,
         source=_V100),
    _gpu("V100 PCIe 16 GB", "Tesla V100-PCIE-16GB", ("v100-pcie",), r"V100.*PCIE-16GB",
         capability="7.0", sms=80, mhz=1380, tflops=(14, None, 112, None), gb_per_s=900, gb=16, usable_gib=15.77,
         context_mib=400, l2_mib=6, pcie=3, watts=(40, 250), shares=_V100_SHARES, peaks=_SHEET, source=_V100),
    _gpu("V100 PCIe 32 GB", "Tesla V100-PCIE-32GB", ("v100-pcie-32gb",), r"V100.*PCIE(?!-16GB)",
         capability="7.0", sms=80, mhz=1380, tflops=(14, None, 112, None), gb_per_s=900, gb=32, usable_gib=31.73,
         context_mib=400, l2_mib=6, pcie=3, watts=(40, 250), shares=_V100_SHARES, peaks=_SHEET, source=_V100),
    _gpu("A10", "NVIDIA A10", ("a10",), r"\bA10\b",
         capability="8.6", sms=72, mhz=1695, tflops=(31.2, 62.5, 125, 125), gb_per_s=600, gb=24, usable_gib=22.05,
         context_mib=400, l2_mib=6, pcie=4, watts=(55, 150), shares=_A10_SHARES, peaks=_SHEET,
         source=f"all beyond the peaks {_FROM_MEMORY}"),
    _gpu("A10G", "NVIDIA A10G", ("a10g",), r"\bA10G\b",
         capability="8.6", sms=80, mhz=1710, tflops=(35, 35, 70, 70), gb_per_s=600, gb=24, usable_gib=22.05,
         context_mib=400, l2_mib=6, pcie=4, watts=(60, 300), shares=_A10G_SHARES, peaks=_SHEET,
         source=f"all but the memory {_FROM_MEMORY}; {_QUOTED}"),
    _gpu("L4", "NVIDIA L4", ("l4",), r"\bL4\b",
         capability="8.9", sms=58, mhz=2040, tflops=(30.3, 60, 121, 121), gb_per_s=300, gb=24, usable_gib=22.03,
         context_mib=400, l2_mib=48, pcie=4, watts=(30, 72), shares=_L4_SHARES,
         peaks=f"{_SHEET}, its sparse figures halved", source=f"clock and L2 {_FROM_MEMORY}; {_QUOTED}"),
    _gpu("RTX 3090", "NVIDIA GeForce RTX 3090", ("rtx3090", "3090"), r"RTX 3090(?! Ti)",
         capability="8.6", sms=82, mhz=1695, tflops=(35.6, 35.6, 71, 71), gb_per_s=936, gb=24, usable_gib=23.68,
         context_mib=400, l2_mib=6, pcie=4, watts=(110, 350), shares=_RTX_3090_SHARES,
         peaks="NVIDIA's GA102 white paper", source=f"NVIDIA's GA102 white paper; {_QUOTED}"),
    _gpu("RTX 4090", "NVIDIA GeForce RTX 4090", ("rtx4090", "4090"), r"RTX 4090(?! D| Laptop)",
         capability="8.9", sms=128, mhz=2520, tflops=(82.6, 82.6, 165, 165), gb_per_s=1008, gb=24, usable_gib=23.64,
         context_mib=400, l2_mib=72, pcie=4, watts=(60, 450), shares=_RTX_4090_SHARES,
         peaks="NVIDIA's Ada white paper", source=f"NVIDIA's Ada white paper; {_QUOTED}"),
    _gpu("A100-40 PCIe", "NVIDIA A100-PCIE-40GB", ("a100-40gb-pcie",), r"A100(?!.*80GB).*PCI",
         capability="8.0", sms=108, mhz=1410, tflops=(19.5, 156, 312, 312), gb_per_s=1555, gb=40, usable_gib=39.39,
         context_mib=500, l2_mib=40, pcie=4, watts=(55, 250), shares=_A100_40_SHARES, peaks=_SHEET, source=_A100),
    _gpu("A100-40 SXM", "NVIDIA A100-SXM4-40GB", ("a100-40gb",), r"A100(?!.*80GB)(?!.*PCI)",
         capability="8.0", sms=108, mhz=1410, tflops=(19.5, 156, 312, 312), gb_per_s=1555, gb=40, usable_gib=39.49,
         context_mib=500, l2_mib=40, pcie=4, watts=(70, 400), nvlink=300, shares=_A100_40_SHARES, peaks=_ENGINEERING,
         source=_A100),
    _gpu("A100-80 PCIe", "NVIDIA A100 80GB PCIe", ("a100-pcie", "a100-80gb-pcie"), r"A100.*80GB PCI",
         capability="8.0", sms=108, mhz=1410, tflops=(19.5, 156, 312, 312), gb_per_s=1935, gb=80, usable_gib=79.15,
         context_mib=500, l2_mib=40, pcie=4, watts=(65, 300), shares=_A100_80_SHARES, peaks=_ENGINEERING,
         source=_A100),
    _gpu("A100-80 SXM", "NVIDIA A100-SXM4-80GB", ("a100", "a100-80gb", "a100-sxm"), r"A100.*80GB(?! PCI)",
         capability="8.0", sms=108, mhz=1410, tflops=(19.5, 156, 312, 312), gb_per_s=2039, gb=80, usable_gib=79.15,
         context_mib=500, l2_mib=40, pcie=4, watts=(80, 400), nvlink=300, shares=_A100_80_SHARES, peaks=_ENGINEERING,
         source=_A100),
    _gpu("H100 PCIe", "NVIDIA H100 PCIe", ("h100-pcie", "h100-80gb-pcie"), r"H100 PCIe",
         capability="9.0", sms=114, mhz=1755, tflops=(51, 378, 756, 756), gb_per_s=2000, gb=80, usable_gib=79.10,
         context_mib=600, l2_mib=50, pcie=5, watts=(80, 350), shares=_H100_PCIE_SHARES, peaks=_ENGINEERING,
         source=_H100),
    _gpu("H100 SXM", "NVIDIA H100 80GB HBM3", ("h100", "h100-80gb-sxm"), r"H100(?! (?:PCIe|NVL))",
         capability="9.0", sms=132, mhz=1980, tflops=(67, 494.5, 989, 989), gb_per_s=3350, gb=80, usable_gib=79.10,
         context_mib=600, l2_mib=50, pcie=5, watts=(115, 700), nvlink=450, shares=_H100_SHARES, peaks=_ENGINEERING,
         source=_H100),
    _gpu("H200", "NVIDIA H200", ("h200", "h200-sxm"), r"\bH200\b(?! NVL)",
         capability="9.0", sms=132, mhz=1980, tflops=(67, 494.5, 989, 989), gb_per_s=4800, gb=141, usable_gib=139.80,
         context_mib=600, l2_mib=50, pcie=5, watts=(120, 700), nvlink=450, shares=_H200_SHARES, peaks=_ENGINEERING,
         source=f"as H100 SXM; {_QUOTED}"),
    _gpu("B200", "NVIDIA B200", ("b200", "b200-sxm"), r"\bB200\b",
         capability="10.0", sms=148, mhz=1965, tflops=(75, 1125, 2250, 2250), gb_per_s=8000, gb=192,
         usable_gib=178.35, context_mib=700, l2_mib=126, pcie=5, watts=(190, 1000), nvlink=900, shares=_B200_SHARES,
         peaks=_ENGINEERING, source=f"clock and L2 {_FROM_MEMORY}; {_QUOTED}"),
)
# fmt: on
