"""Facts by compute capability, for GPUs that are not in the table; precisions; links; vendors."""

import itertools

import pytest

from gpulab.hardware.architectures import (
    ARCHITECTURES,
    architecture_of,
    has_bfloat16,
    has_counters,
    has_float4,
    has_float8,
    parse_capability,
    threads_per_multiprocessor,
    usual_pcie_generation,
)
from gpulab.hardware.lookup import resolve
from gpulab.hardware.pcie import LANE_BYTES_PER_S, pinned_copy_bytes_per_s, standard_bytes_per_s
from gpulab.hardware.precision import Precision, peak_flops_per_s, precision_speedup
from gpulab.hardware.vendor import is_amd, is_amd_instinct
from gpulab.run import Gpu
from tests.support.runs.made_runs import GPUS


def of(capability):
    return Gpu(index=0, name="Something", compute_capability=capability)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("8.6", (8, 6)), ("12.1", (12, 1)), ("9", (9, 0)), (None, None), ("", None), ("gfx942", None), ("9.0a", None)],
)
def test_a_compute_capability_is_parsed_or_absent(text, numbers):
    assert parse_capability(text) == numbers


@pytest.mark.parametrize(("capability", "architecture"), ARCHITECTURES.items())
def test_an_architecture_is_complete(capability, architecture):
    assert parse_capability(capability) is not None
    assert architecture.threads_per_multiprocessor in (1024, 1536, 2048)
    assert architecture.cores_per_multiprocessor in (64, 128)
    assert architecture.pcie_generation in LANE_BYTES_PER_S
    if architecture.half_speedup is not None:
        assert 1 <= architecture.tf32_speedup <= architecture.half_speedup


@pytest.mark.parametrize(
    ("capability", "bfloat16", "float8", "float4", "counters", "pcie", "threads"),
    [
        ("6.1", False, False, False, False, 3, 2048),
        ("7.5", False, False, False, False, 3, 1024),
        ("8.0", True, False, False, False, 4, 2048),
        ("8.9", True, True, False, False, 4, 1536),
        ("9.0", True, True, False, True, 5, 2048),
        ("12.0", True, True, True, True, 5, 1536),
    ],
)
def test_features_of_an_architecture(capability, bfloat16, float8, float4, counters, pcie, threads):
    gpu = of(capability)
    assert (has_bfloat16(gpu), has_float8(capability), has_float4(capability)) == (bfloat16, float8, float4)
    assert (has_counters(gpu), usual_pcie_generation(gpu)) == (counters, pcie)
    assert threads_per_multiprocessor(capability) == threads


@pytest.mark.parametrize("gpu", [None, of(None), of("junk")])
def test_without_a_compute_capability_usual_values_apply(gpu):
    assert architecture_of(gpu) is None
    assert has_bfloat16(gpu)
    assert usual_pcie_generation(gpu) == 3
    assert precision_speedup(gpu, Precision.HALF, Precision.FLOAT32) is None


def test_an_unlisted_minor_version_has_the_pcie_generation_of_its_major():
    assert usual_pcie_generation(of("8.8")) == 4
    assert usual_pcie_generation(of("11.0")) == 3


def test_the_speedup_of_half_precision():
    assert precision_speedup(GPUS["V100"], Precision.HALF, Precision.FLOAT32) == pytest.approx(125 / 15.7)
    assert precision_speedup(GPUS["V100"], Precision.TF32, Precision.FLOAT32) is None
    assert precision_speedup(GPUS["3090"], Precision.TF32, Precision.FLOAT32) == 1
    assert precision_speedup(GPUS["MI300"], Precision.HALF, Precision.FLOAT32) is None
    assert precision_speedup(of("8.0"), Precision.HALF, Precision.TF32) == 2
    assert precision_speedup(of("8.0"), Precision.FLOAT64, Precision.FLOAT32) is None


def test_the_peak_of_an_unsupported_precision_is_none():
    assert peak_flops_per_s(resolve("t4"), Precision.TF32) is None
    assert peak_flops_per_s(resolve("h100"), Precision.HALF) == 989e12
    assert peak_flops_per_s(resolve("h100"), Precision.UNKNOWN) is None


def test_a_pinned_copy_reaches_three_quarters_to_four_fifths_of_a_link():
    rates = [LANE_BYTES_PER_S[generation] for generation in sorted(LANE_BYTES_PER_S)]
    assert all(1.9 < after / before < 2.1 for before, after in itertools.pairwise(rates))
    for generation in (3, 4, 5):
        reached = pinned_copy_bytes_per_s(generation, 16) / standard_bytes_per_s(generation, 16)
        assert 0.75 <= reached <= 0.80
    assert standard_bytes_per_s(4, 8) == standard_bytes_per_s(4, 16) / 2
    assert pinned_copy_bytes_per_s(99, 16) is None
    assert standard_bytes_per_s(99, 16) is None


@pytest.mark.parametrize(
    ("name", "amd", "instinct"),
    [
        ("AMD Instinct MI300X", True, True),
        ("AMD Radeon Graphics", True, False),
        ("gfx942", True, False),
        ("NVIDIA H100 PCIe", False, False),
    ],
)
def test_the_vendor_follows_from_the_name(name, amd, instinct):
    assert (is_amd(name), is_amd_instinct(name)) == (amd, instinct)
