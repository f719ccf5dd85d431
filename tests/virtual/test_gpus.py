"""The GPUs that can be played: found by the names people type, and by the names drivers print; figures that agree."""

import pytest

from gpulab.analysis.peaks import peaks_of
from gpulab.errors import RunError
from gpulab.run import Gpu
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.operators import SPREAD
from gpulab.virtual.cost_model.rates import rates
from gpulab.virtual.specs import SPECS, spec

GIB = 2**30


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100 SXM"),
        ("H100 SXM", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("a100", "A100-80 SXM"),
        ("a100-80", "A100-80 SXM"),
        ("a100 40gb pcie", "A100-40 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40 SXM"),
        ("A100 80 GB PCIe", "A100-80 PCIe"),
        ("v100", "V100 16 GB"),
        ("V100 32GB", "V100 32 GB"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe 32 GB"),
        ("rtx4090", "RTX 4090"),
        ("RTX 3090", "RTX 3090"),
        ("4090", "RTX 4090"),
        ("t4", "T4"),
        ("A10G", "A10G"),
        ("a10", "A10"),
        ("h200", "H200"),
        ("B200", "B200"),
        ("l4", "L4"),
    ],
)
def test_a_gpu_is_found_by_the_names_people_type(typed, name):
    assert spec(typed).name == name


@pytest.mark.parametrize("each", SPECS, ids=lambda each: each.name)
def test_a_gpu_answers_to_its_own_names_and_its_driver_s(each):
    assert spec(each.name) is each
    assert spec(each.driver_name) is each


def test_no_two_gpus_bear_one_name():
    assert len({each.name for each in SPECS}) == len(SPECS)
    assert len({each.driver_name for each in SPECS}) == len(SPECS)


def test_an_unknown_gpu_is_refused_with_what_was_perhaps_meant_and_the_list():
    with pytest.raises(RunError, match=r"did you mean 'H100 SXM'.*\n.*\n.*A100-80 PCIe"):
        spec("h10")
    with pytest.raises(RunError) as refused:
        spec("voodoo2")
    assert "did you mean" not in str(refused.value)
    assert "H200" in refused.value.fix


@pytest.mark.parametrize("each", SPECS, ids=lambda each: each.name)
def test_the_figures_of_a_gpu_agree_with_one_another(each):
    assert each.multiprocessors == each.peaks.multiprocessors
    assert 0.85 * each.peaks.memory_bytes < each.usable_bytes < 1.08 * each.peaks.memory_bytes
    assert 0.2 * GIB <= each.context_bytes <= GIB
    assert each.context_bytes < each.usable_bytes / 20
    assert 2**22 <= each.l2_bytes <= 2**27
    assert 1000 <= each.sm_clock_mhz <= 2600
    assert 0.05 * each.full_w <= each.idle_w <= 0.45 * each.full_w
    assert each.source
    # A multiply-add of each of 64 or 128 lanes a clock is what the float32 peak says.
    lanes = each.peaks.float32 / (2 * each.multiprocessors * each.sm_clock_mhz * 1e6)
    assert 55 <= lanes <= 135


@pytest.mark.parametrize("each", SPECS, ids=lambda each: each.name)
def test_a_recording_that_names_this_gpu_has_its_peaks(each):
    found = peaks_of(Gpu(index=0, name=each.driver_name, multiprocessors=each.multiprocessors))
    assert found is not None
    mine = each.peaks
    assert (found.float32, found.tf32, found.half, found.memory) == (mine.float32, mine.tf32, mine.half, mine.memory)


def test_a_process_sees_what_people_s_errors_quote():
    seen = {each.name: round(each.usable_bytes / GIB, 1) for each in SPECS}
    assert seen["H100 SXM"] == 79.1
    assert seen["H200"] == 139.8
    assert seen["A100-40 SXM"] == 39.5
    assert seen["V100 32 GB"] == 31.7


@pytest.mark.parametrize("each", SPECS, ids=lambda each: each.name)
def test_no_kernel_reaches_more_than_a_peak_but_winograd_s_which_multiply_less(each):
    found = rates(each)
    for share in (found.stream, found.softmax, found.norm, found.plain, found.half, found.tf32, found.attention):
        assert 0 <= share <= 1
    assert 0.3 <= found.winograd <= 36 / 16  # what Winograd saves at most with tiles of 4 x 4
    assert found.winograd > found.direct
    assert 1500 <= found.fixed_ns <= 3000


def test_every_class_of_work_has_a_spread_around_its_price():
    assert set(SPREAD) == set(OpClass)
    for best, worst in SPREAD.values():
        assert 0 < best < 1 < worst
