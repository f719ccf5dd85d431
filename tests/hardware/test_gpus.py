"""The table of GPUs: every entry is complete, and its figures agree with one another and with what they follow from."""

import dataclasses
import types
import typing

import pytest

from gpulab.hardware.architectures import ARCHITECTURES, has_bfloat16
from gpulab.hardware.gpu_spec import GpuSpec, Shares
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.run import Gpu

GIB = 2**30
EVERY_SPEC = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


@EVERY_SPEC
def test_every_figure_is_present_and_positive(spec):
    hints = typing.get_type_hints(GpuSpec)
    for field in dataclasses.fields(GpuSpec):
        value, kind = getattr(spec, field.name), hints[field.name]
        if value is None:
            assert isinstance(kind, types.UnionType), field.name
        elif isinstance(value, int | float):
            assert value > 0, field.name
        else:
            assert value, field.name


@EVERY_SPEC
def test_shares_are_between_zero_and_one(spec):
    for field in dataclasses.fields(Shares):
        share = getattr(spec.shares, field.name)
        if field.name == "tf32_gemm":
            assert (share > 0) == (spec.tf32_flops_per_s is not None)
        else:
            assert 0 < share <= 1, field.name


@EVERY_SPEC
def test_the_float32_peak_is_a_multiply_add_of_every_core_in_every_cycle(spec):
    cores = ARCHITECTURES[spec.compute_capability].cores_per_multiprocessor * spec.multiprocessors
    assert spec.float32_flops_per_s == pytest.approx(2 * cores * spec.sm_clock_mhz * 1e6, rel=0.02)


@EVERY_SPEC
def test_peaks_of_a_gpu_are_ordered_by_precision(spec):
    assert 1e12 <= spec.float32_flops_per_s <= spec.fastest_float32_flops_per_s <= spec.half_flops_per_s <= 3e15
    assert 1e11 <= spec.memory_bytes_per_s <= 1e13
    assert spec.bfloat16_flops_per_s in (None, spec.half_flops_per_s)
    newer = has_bfloat16(Gpu(index=0, name="any", compute_capability=spec.compute_capability))
    assert newer == (spec.bfloat16_flops_per_s is not None) == (spec.tf32_flops_per_s is not None)


@EVERY_SPEC
def test_a_gpu_reaches_the_minimum_speedups_of_its_architecture(spec):
    architecture = ARCHITECTURES[spec.compute_capability]
    assert spec.half_flops_per_s / spec.float32_flops_per_s >= 0.99 * architecture.half_speedup
    assert spec.fastest_float32_flops_per_s / spec.float32_flops_per_s >= 0.99 * architecture.tf32_speedup
    assert spec.pcie_generation == architecture.pcie_generation


@EVERY_SPEC
def test_memory_and_power_have_the_right_order_of_magnitude(spec):
    assert 0.85 * spec.memory_bytes < spec.usable_bytes < 1.08 * spec.memory_bytes
    assert 0.2 * GIB <= spec.context_bytes <= min(GIB, spec.usable_bytes / 20)
    assert 2**22 <= spec.l2_bytes <= 2**27
    assert 0.05 * spec.power_limit_w <= spec.idle_w <= 0.45 * spec.power_limit_w
    assert {3: 15e9, 4: 31e9, 5: 62e9}[spec.pcie_generation] < spec.link_bytes_per_s < 64e9


def test_a_process_sees_the_memory_that_out_of_memory_errors_quote():
    usable = {spec.name: round(spec.usable_bytes / GIB, 1) for spec in SPECS}
    assert usable["H100 SXM"] == 79.1
    assert usable["H200"] == 139.8
    assert usable["A100-40 SXM"] == 39.5
    assert usable["V100 32 GB"] == 31.7


def test_gpus_that_differ_only_in_memory_compute_equally_fast():
    assert resolve("v100").computes_like(resolve("v100-32gb"))
    assert not resolve("v100").computes_like(resolve("v100-pcie"))
    assert not resolve("h100").computes_like(resolve("h200"))


@pytest.mark.parametrize(
    ("name", "generation", "float64"),
    [("v100", 70, 1 / 2), ("t4", 75, 1 / 32), ("a100", 80, 1 / 2), ("rtx4090", 89, 1 / 32), ("b200", 100, 1 / 2)],
)
def test_properties_derived_from_the_compute_capability(name, generation, float64):
    assert (resolve(name).generation, resolve(name).float64_share) == (generation, float64)
