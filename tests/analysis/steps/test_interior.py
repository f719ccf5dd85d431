"""Kernels at the edges of the steps that are evidence: each is counted in one of them, and no time is lost."""

import pytest

from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.roofline import operator_work
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.intervals import clip
from tests.support.runs.made_runs import MS, launched_kernel, on_gpu, stepped

SIZES = {"shapes": [[1024, 1024], [1024, 1024]], "dtypes": ["float"] * 2}


def reaching(late_ms):
    """Steps of 100 ms, each with two kernels of 40 ms, the second of which may end in the step after."""

    def step(at):
        first = launched_kernel("sgemm", at + late_ms, 40, number=round(at) + 1, op="aten::mm", **SIZES)
        second = launched_kernel(
            "sgemm", at + late_ms + 45, 40, number=round(at) + 2, op="aten::mm", called_ms=at + 10, **SIZES
        )
        return [*first, *second]

    run = on_gpu(stepped(step), "A100")
    run_steps = find_steps(run)
    return interior_kernels(run, run_steps, build_ledger(run, run_steps)), build_ledger(run, run_steps)


@pytest.mark.parametrize("late_ms", [0, 12, 30])
def test_each_kernel_is_counted_in_the_step_in_which_it_starts(late_ms):
    kernels, _ = reaching(late_ms)
    assert kernels.per_step(kernels.mask_names(lambda name: True)) == 2
    (work,) = operator_work(kernels)
    assert work.count == 2 * kernels.step_count
    assert work.total_ns == 80 * MS * kernels.step_count
    assert work.flops_per_s == pytest.approx(2 * 1024**3 / 40e-3)
    assert kernels.longest_name(kernels.started_inside) == ("sgemm", 80 * MS)


@pytest.mark.parametrize("late_ms", [0, 12, 30])
def test_the_total_kernel_time_equals_the_ledger(late_ms):
    kernels, accounts = reaching(late_ms)
    everything = kernels.mask_names(lambda name: True)
    assert kernels.spans(everything).total_ns == 80 * MS * kernels.step_count
    busy = [part.key for part in accounts.parts if part.busy]
    assert kernels.spans(everything).total_ns == sum(accounts.spans[key].total_ns for key in busy)
    first, last = kernels.window.start_ns[0], kernels.window.end_ns[-1]
    assert clip(kernels.spans(everything), int(first), int(last)).total_ns == kernels.spans(everything).total_ns
