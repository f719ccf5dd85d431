"""Communication: exposed time by kind and size, on synthetic runs and on recorded traces of A100, B200 and MI300."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.analysis.ranks.collectives import (
    KINDS,
    all_reduce_buckets,
    collective_kind,
    collectives,
    exposed_collective_time,
)
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.intervals import intersect, subtract, union_of
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import MS, collective, collective_columns, event, rank_of, stepped

EXPOSED, SMALL = case_module("exposed_communication"), case_module("small_buckets")
REDUCE = EXPOSED.REDUCE


def analysed(analysis, run):
    detected_steps = find_steps(run)
    return analysis(run, detected_steps, build_ledger(run, detected_steps))


def finding(rule, run):
    return next((each for each in diagnose(run).findings if each.rule == rule), None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all-reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "all-reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "all-reduce"),
        ("two_shot_all_reduce_kernel", "all-reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-gather"),
        ("_allgather_base", "all-gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("_reduce_scatter_base", "reduce-scatter"),
        ("all_to_allv", "all-to-all"),
        ("alltoall_base", "all-to-all"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send-receive"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "collective"),
    ],
)
def test_the_kind_of_a_collective_is_read_from_its_name(name, kind):
    assert collective_kind(name) == kind


def test_the_name_from_the_backend_takes_precedence_over_the_kernel_name():
    run = EXPOSED.provoked_by_rccl()
    assert {KINDS[kind] for kind in analysed(collectives, run).kind.tolist()} == {"all-reduce"}


def test_a_generic_kernel_gets_the_kind_with_most_of_the_recorded_time():
    def step(at):
        recorded_move = collective_columns(1000, dtype="BFloat16") if at >= 300 else None
        return [
            collective("ncclDevKernel_Generic(x)", at + 60, 30, moves=recorded_move),
            collective("ncclDevKernel_Generic(x)", at + 92, 1, moves=collective_columns(9, collective="broadcast")),
        ]

    result = analysed(collectives, rank_of(stepped(lambda at: [event(EventKind.KERNEL, "gemm", at, 60), *step(at)])))
    assert [KINDS[kind] for kind in result.kind.tolist()] == ["all-reduce", "broadcast"] * 6


@pytest.mark.parametrize(
    ("dtype", "size"), [("Float", 4), ("BFloat16", 2), ("Half", 2), ("Long", 8), ("Byte", 1), ("Strange", None)]
)
def test_sizes_are_elements_times_the_size_of_their_type(dtype, size):
    run = EXPOSED.training(lambda at: [collective(REDUCE, at + 60, 30, moves=collective_columns(1000, dtype=dtype))])
    assert set(analysed(collectives, run).bytes.tolist()) == {-1 if size is None else 1000 * size}


@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=6),
)
def test_exposed_time_agrees_with_the_ledger_and_is_within_the_collective(talks, computes):
    def step(at):
        return [
            *(collective(REDUCE, at + start, dur, stream=21 + index) for index, (start, dur, _) in enumerate(talks)),
            *(event(EventKind.KERNEL, "gemm", at + start, dur) for start, dur in computes),
        ]

    run = rank_of(stepped(step, step_ms=120))
    result = analysed(collectives, run)
    book = build_ledger(run, find_steps(run))
    assert (result.exposed_ns <= result.dur_ns).all()
    assert (result.exposed_ns[~result.interior] == 0).all()
    kernels = union_of(book.spans["matmul"], book.spans["kernels"])
    interior = gpulab_spans(120 * MS, 600 * MS)
    spans = [gpulab_spans(start, start + dur) for start, dur in zip(result.start_ns, result.dur_ns, strict=True)]
    alone_ns = [subtract(intersect(span, interior), kernels).total_ns for span in spans]
    assert (result.exposed_ns <= alone_ns).all()
    # Collectives at the same time share it: all together are exposed as long as at least one of them is.
    assert result.exposed_ns.sum() == subtract(intersect(union_of(*spans), interior), kernels).total_ns


def gpulab_spans(start, end):
    from gpulab.intervals import union

    return union([start], [end])


def test_exposed_communication_is_split_by_kind():
    def talks(at):
        gather = collective("ncclDevKernel_AllGather_RING_LL(x)", at + 80, 10)
        return [collective(REDUCE, at + 50, 25, moves=collective_columns(90_000_000)), gather]

    result = analysed(exposed_collective_time, EXPOSED.training(talks))
    assert result.exposed_ns == 25 * MS
    assert dict(result.by_kind) == {"all-reduce": 15 * MS, "all-gather": 10 * MS}
    assert result.hidden_frac == pytest.approx(10 / 35)
    assert (result.tail_ns, result.tail_bytes) == (15 * MS, 360_000_000)
    assert result.rate_bytes_per_s == pytest.approx(360e6 * 2 * 7 / 8 / 25e-3)


def test_only_a_huge_bucket_is_split():
    huge = EXPOSED.provoked_by_all_reduces_after_the_backward_pass()
    assert "bucket_cap_mb=25" in finding("exposed_communication", huge).fix
    usual = EXPOSED.training(lambda at: [collective(REDUCE, at + 60, 30, moves=collective_columns(6_000_000))])
    assert "bucket_cap_mb" not in finding("exposed_communication", usual).fix


def test_16_bit_gradients_are_not_compressed():
    of_32 = finding("exposed_communication", EXPOSED.provoked_by_all_reduces_after_the_backward_pass())
    of_16 = finding("exposed_communication", EXPOSED.provoked_by_gradients_of_16_bits())
    assert "bf16_compress_hook" in of_32.fix
    assert "bf16_compress_hook" not in of_16.fix


@pytest.mark.parametrize(
    ("case_name", "expected"),
    [
        ("provoked_by_an_exchange_of_all_with_all", "all_to_all_single"),
        ("provoked_by_sharded_parameters_that_are_gathered_late", "set_modules_to_forward_prefetch"),
        ("provoked_by_the_older_sharding", "forward_prefetch = True"),
        ("provoked_by_rccl", "DDP(model"),
    ],
)
def test_the_fix_fits_the_kind_of_parallelism(case_name, expected):
    assert expected in finding("exposed_communication", getattr(EXPOSED, case_name)()).fix


def test_sharded_inference_gets_advice_and_no_code():
    result = finding("exposed_communication", EXPOSED.provoked_by_sharded_inference())
    assert result.fix == ""
    assert "batch" in result.advice
    assert "gradients" not in result.claim


@pytest.mark.parametrize(("gpus", "expected"), [(8, "inside a machine"), (4, "between the machines")])
def test_slow_transfers_on_one_machine_are_waiting(gpus, expected):
    run = EXPOSED.provoked_by_rccl()
    machine = replace(run.machine, gpus=tuple(gpulab_gpu(index) for index in range(gpus)))
    result = finding("exposed_communication", replace(run, machine=machine))
    assert any(expected in sentence for sentence in result.evidence)


def gpulab_gpu(index):
    from gpulab.run import Gpu

    return Gpu(index=index, name="Made GPU")


def test_small_buckets_mask_exposed_communication():
    diagnosis = diagnose(SMALL.provoked_by_a_hundred_small_buckets())
    rules = [each.rule for each in diagnosis.findings]
    assert "small_buckets" in rules
    assert "exposed_communication" not in rules
    assert ("exposed_communication", "small_buckets") in [
        (each.finding.rule, each.explained_by) for each in diagnosis.masked
    ]


def test_bucket_sizes_are_per_step():
    result = analysed(all_reduce_buckets, SMALL.provoked_by_a_hundred_small_buckets())
    assert (result.per_step, result.small_per_step) == (100, 100)
    assert (result.median_bytes, result.total_bytes) == (120_000, 12_000_000)
    assert result.small_exposed_ns == 20 * MS


def test_small_buckets_are_not_judged_without_sizes():
    unjudged = {each.rule: each for each in diagnose(SMALL.spared_as_sizes_are_not_told()).unjudged}
    assert "sizes" in unjudged["small_buckets"].reason


def test_communication_of_another_gpu_in_the_trace_is_not_counted():
    def talks(at):
        return [{**collective(REDUCE, at + 60, 30), "device": 1}]

    assert finding("exposed_communication", EXPOSED.training(talks)) is None


# The fixes, applied to the real wrappers, on the CPU, in a group of one process.

TRAINING_SCRIPT = """
import json, sys, traceback, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)

def pasted(kind, fix):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if kind == "sharded":
        mesh = init_device_mesh("cpu", (1,))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
    if kind == "wrapped":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    space = {"model": model}
    exec(fix, space)
    if kind == "exchanged":
        sent = torch.arange(4.0)
        assert torch.equal(space["exchange"](sent)(), sent)
    model = space["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return type(model).__name__

told = {kind: pasted(kind, fix) for kind, fix in json.load(sys.stdin).items()}
torch.distributed.destroy_process_group()
print(json.dumps(told))
"""
ON_GPU = (
    "device_ids=[torch.cuda.current_device()], ",
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
)


@pytest.mark.full
def test_the_fixes_train_with_the_real_wrappers(tmp_path):
    fixes = {
        "ddp": finding("exposed_communication", EXPOSED.provoked_by_all_reduces_after_the_backward_pass()).fix,
        "buckets": finding("small_buckets", SMALL.provoked_by_a_hundred_small_buckets()).fix,
        "sharded": finding(
            "exposed_communication", EXPOSED.provoked_by_sharded_parameters_that_are_gathered_late()
        ).fix,
        "wrapped": finding("exposed_communication", EXPOSED.provoked_by_the_older_sharding()).fix,
        "exchanged": finding("exposed_communication", EXPOSED.provoked_by_an_exchange_of_all_with_all()).fix,
    }
    for kind, fix in fixes.items():
        for only_there in ON_GPU:
            fixes[kind] = fix = fix.replace(only_there, "")
    command = [sys.executable, "-c", TRAINING_SCRIPT, (tmp_path / "store").as_uri()]
    done = subprocess.run(
        command, input=json.dumps(fixes), capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "ddp": "DistributedDataParallel",
        "buckets": "DistributedDataParallel",
        "sharded": "FSDPSequential",
        "wrapped": "FullyShardedDataParallel",
        "exchanged": "Sequential",
    }


# Real traces.


@pytest.fixture
def read(recorded):
    return lambda name: gpulab.load(recorded(f"{name}.json.gz"))


def test_the_a100_trace_has_exposed_all_to_all_communication(read):
    diagnosis = diagnose(read("a100_ddp_8ranks_rank"))
    first = diagnosis.first
    assert first.rule == "exposed_communication"
    assert first.confidence == "certain"
    assert diagnosis.ledger.typical_frac("communication") == pytest.approx(0.19, abs=0.01)
    assert "all-to-all" in diagnosis.verdict
    assert "all_to_all_single" in first.fix


def test_nccl_takes_more_than_a_third_of_kernel_time_on_the_a100(read):
    run = read("a100_ddp_8ranks_rank")
    rows = run.event_rows
    kernels = rows["dur_ns"][np.isin(rows["kind"], (EventKind.KERNEL, EventKind.COLLECTIVE))].sum()
    assert analysed(collectives, run).dur_ns.sum() / kernels == pytest.approx(0.366, abs=0.01)


def test_multimem_all_reduces_are_recognised_on_the_b200(read):
    run = read("b200_eager")
    result = analysed(collectives, run)
    rows = run.event_rows
    work = rows["dur_ns"][rows["kind"] >= EventKind.KERNEL].sum()
    assert result.dur_ns.sum() / work == pytest.approx(0.195, abs=0.02)
    assert {KINDS[kind] for kind in result.kind.tolist()} == {"all-reduce", "all-gather"}
    assert finding("exposed_communication", run) is None  # 2.5 % of the time: the GPU is idle for most of it


def test_the_mi300_trace_mostly_waits_for_other_gpus(read):
    diagnosis = diagnose(read("mi300_resnet_checkpoint"))
    first = diagnosis.first
    assert first.rule == "exposed_communication"
    assert diagnosis.ledger.busy_frac > 0.95  # busy, but with what
    assert first.numbers["exposed_frac"] == pytest.approx(0.70, abs=0.01)
    assert "gradients" in diagnosis.verdict
    assert any("3.45 GB/s" in sentence and "waiting" in sentence for sentence in first.evidence)
    assert "bf16_compress_hook" not in first.fix  # they are of 16 bits already


@pytest.mark.parametrize("name", ["v100_ns_resolution", "v100_resnet50_workers0", "h100_bert_small_inference"])
def test_a_single_gpu_has_no_collectives(read, name):
    assert analysed(collectives, read(name)) is None
