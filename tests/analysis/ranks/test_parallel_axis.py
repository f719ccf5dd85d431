"""What a process group is for, and which advice follows from it."""

from __future__ import annotations

import pytest

from gpulab.analysis.ranks.parallel_axis import axis_of, micro_batches
from gpulab.rules import diagnose
from gpulab.rules.ranks.pipeline import bubble_frac
from gpulab.tables import EventKind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of, run_of, stepped

PIPELINE = case_module("pipeline_bubble")
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_dp", "data"),
        ("mesh_dp_shard", "data"),
        ("mesh_dp_shard_cp", "data"),  # torchtitan shards parameters over both
        ("mesh_fsdp", "data"),
        ("DATA_PARALLEL_GROUP", "data"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("mesh_tp", "tensor"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("mesh_pp", "pipeline"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("mesh_cp", "context"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("mesh_ep", "expert"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("default_pg", ""),
        ("undefined", ""),
        ("", ""),
        ("grpc_step", ""),  # contains "cp" and "ep", not as words
    ],
)
def test_a_description_tells_what_a_group_is_for(description, axis):
    assert axis_of(description) == axis


def named(*names):
    return run_of([event(EventKind.ANNOTATION, name, index, 1) for index, name in enumerate(names)])


def test_schedules_of_pytorch_tell_the_number_of_micro_batches():
    assert micro_batches(named("Forward 0", "Forward 1", "Backward 0", "Forward 7")) == 8
    assert micro_batches(named("PP:0F0", "PP:1F3", "PP:0B3", "PP:0SEND_F3")) == 4
    assert micro_batches(named("Forward", "Forward pass 3", "Forward 0")) is None


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("batches", [1, 4, 32])
def test_the_share_of_the_bubble_is_that_of_a_simulated_schedule(stages, batches):
    """The oracle: equal forward passes through all stages in order, then backward passes in reverse order."""
    end = [0.0] * stages
    for order, cost in ((range(stages), 1.0), (range(stages - 1, -1, -1), 2.0)):
        begins = max(end)
        end = [begins] * stages if order[0] else end
        for _ in range(batches):
            ready = 0.0
            for stage in order:
                end[stage] = max(end[stage], ready) + cost
                ready = end[stage]
    assert 1 - 3 * batches / max(end) == pytest.approx(bubble_frac(stages, batches))


def test_more_micro_batches_are_predicted_to_remove_what_the_formula_says():
    finding = diagnose(PIPELINE.provoked_by_a_schedule_of_pytorch_on_the_default_group()).first
    assert finding.rule == "pipeline_bubble"
    assert (finding.numbers["stages"], finding.numbers["micro_batches"]) == (4, 3)
    left = bubble_frac(4, 12) / bubble_frac(4, 3)
    assert finding.gain.best_ns == pytest.approx(100e6 - 30e6 * (1 - left), rel=0.02)


def trained(description):
    def step(at):
        moves = collective_columns(90_000_000, description=description)
        return [
            event(EventKind.KERNEL, "ampere_sgemm", at, 60),
            collective(REDUCE, at + 60, 30, moves=moves),
            event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 92, 1),
            event(EventKind.KERNEL, "multi_tensor_apply_kernel", at + 92, 8),
        ]

    return rank_of(stepped(step), 0)


def test_all_reduces_of_tensor_parallel_layers_are_not_told_to_use_ddp():
    tensor, data = (diagnose(trained(description)).first for description in ("mesh_tp", "mesh_dp"))
    assert tensor.rule == data.rule == "exposed_communication"
    assert "DDP" in data.fix
    assert not tensor.fix
    assert "tensor-parallel" in tensor.claim
    assert "tensor-parallel" in tensor.advice
