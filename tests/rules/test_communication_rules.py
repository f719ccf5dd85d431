"""Communication: what nothing hides, by kind and size, on made runs and on real traces of A100, B200 and MI300."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.analysis.ranks.collectives import KINDS, buckets, collectives, exposed, kind_of
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.intervals import intersect, merged, subtract
from gpulab.rules import diagnose
from gpulab.tables import Kind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import MS, collective, event, moving, rank_of, stepped

EXPOSED, SMALL = case_module("exposed_communication"), case_module("small_buckets")
REDUCE = EXPOSED.REDUCE


def asked(analysis, run):
    found = steps(run)
    return analysis(run, found, ledger(run, found))


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
def test_what_kind_a_collective_is_is_read_from_its_name(name, kind):
    assert kind_of(name) == kind


def test_what_the_backend_calls_it_comes_before_the_kernel_s_name():
    run = EXPOSED.provoked_by_rccl()
    assert {KINDS[kind] for kind in asked(collectives, run).kind.tolist()} == {"all-reduce"}


def test_a_kernel_without_a_telling_name_is_taken_for_what_most_of_the_told_time_is():
    def step(at):
        told = moving(1000, dtype="BFloat16") if at >= 300 else None
        return [
            collective("ncclDevKernel_Generic(x)", at + 60, 30, moves=told),
            collective("ncclDevKernel_Generic(x)", at + 92, 1, moves=moving(9, collective="broadcast")),
        ]

    found = asked(collectives, rank_of(stepped(lambda at: [event(Kind.KERNEL, "gemm", at, 60), *step(at)])))
    assert [KINDS[kind] for kind in found.kind.tolist()] == ["all-reduce", "broadcast"] * 6


@pytest.mark.parametrize(
    ("dtype", "size"), [("Float", 4), ("BFloat16", 2), ("Half", 2), ("Long", 8), ("Byte", 1), ("Strange", None)]
)
def test_sizes_are_elements_times_the_size_of_their_type(dtype, size):
    run = EXPOSED.training(lambda at: [collective(REDUCE, at + 60, 30, moves=moving(1000, dtype=dtype))])
    assert set(asked(collectives, run).bytes.tolist()) == {-1 if size is None else 1000 * size}


@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=6),
)
def test_exposed_is_what_the_ledger_says_and_no_more_than_a_collective_lasts(talks, computes):
    def step(at):
        return [
            *(collective(REDUCE, at + start, dur, stream=21 + place) for place, (start, dur, _) in enumerate(talks)),
            *(event(Kind.KERNEL, "gemm", at + start, dur) for start, dur in computes),
        ]

    run = rank_of(stepped(step, step_ms=120))
    found = asked(collectives, run)
    book = ledger(run, steps(run))
    assert (found.exposed_ns <= found.dur_ns).all()
    assert (found.exposed_ns[~found.interior] == 0).all()
    kernels = merged(book.spans["matmul"], book.spans["kernels"])
    for start, dur, bare in zip(found.start_ns, found.dur_ns, found.exposed_ns, strict=True):
        mine = gpulab_spans(start, start + dur)
        within = intersect(mine, gpulab_spans(120 * MS, 600 * MS))
        assert bare == subtract(within, kernels).total_ns


def gpulab_spans(start, end):
    from gpulab.intervals import union

    return union([start], [end])


def test_the_parts_of_exposed_communication_are_those_of_the_ledger():
    def talks(at):
        gather = collective("ncclDevKernel_AllGather_RING_LL(x)", at + 80, 10)
        return [collective(REDUCE, at + 50, 25, moves=moving(90_000_000)), gather]

    told = asked(exposed, EXPOSED.training(talks))
    assert told.exposed_ns == 25 * MS
    assert dict(told.by_kind) == {"all-reduce": 15 * MS, "all-gather": 10 * MS}
    assert told.hidden_frac == pytest.approx(10 / 35)
    assert (told.tail_ns, told.tail_bytes) == (15 * MS, 360_000_000)
    assert told.rate_bytes_per_s == pytest.approx(360e6 * 2 * 7 / 8 / 25e-3)


def test_one_huge_bucket_is_split_and_one_of_the_usual_size_is_not():
    huge = EXPOSED.provoked_by_all_reduces_after_the_backward_pass()
    assert "bucket_cap_mb=25" in finding("exposed_communication", huge).fix
    usual = EXPOSED.training(lambda at: [collective(REDUCE, at + 60, 30, moves=moving(6_000_000))])
    assert "bucket_cap_mb" not in finding("exposed_communication", usual).fix


def test_gradients_of_16_bits_are_not_made_smaller_once_more():
    of_32 = finding("exposed_communication", EXPOSED.provoked_by_all_reduces_after_the_backward_pass())
    of_16 = finding("exposed_communication", EXPOSED.provoked_by_gradients_of_16_bits())
    assert "bf16_compress_hook" in of_32.fix
    assert "bf16_compress_hook" not in of_16.fix


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("provoked_by_an_exchange_of_all_with_all", "all_to_all_single"),
        ("provoked_by_sharded_parameters_that_are_gathered_late", "set_modules_to_forward_prefetch"),
        ("provoked_by_the_older_sharding", "forward_prefetch = True"),
        ("provoked_by_rccl", "DDP(model"),
    ],
)
def test_the_fix_is_for_what_spreads_the_work(made, says):
    assert says in finding("exposed_communication", getattr(EXPOSED, made)()).fix


def test_sharded_inference_is_told_in_words_as_no_line_mends_it():
    told = finding("exposed_communication", EXPOSED.provoked_by_sharded_inference())
    assert told.fix == ""
    assert "batch" in told.advice
    assert "gradients" not in told.claim


@pytest.mark.parametrize(("gpus", "says"), [(8, "links inside a machine"), (4, "between the machines")])
def test_slow_transfers_are_called_waiting_where_all_ranks_are_in_one_machine(gpus, says):
    run = EXPOSED.provoked_by_rccl()
    machine = replace(run.machine, gpus=tuple(gpulab_gpu(index) for index in range(gpus)))
    told = finding("exposed_communication", replace(run, machine=machine))
    assert any(says in sentence for sentence in told.evidence)


def gpulab_gpu(index):
    from gpulab.run import Gpu

    return Gpu(index=index, name="Made GPU")


def test_small_buckets_explain_the_exposed_communication_they_make():
    diagnosis = diagnose(SMALL.provoked_by_a_hundred_small_buckets())
    told = [each.rule for each in diagnosis.findings]
    assert "small_buckets" in told
    assert "exposed_communication" not in told
    assert ("exposed_communication", "small_buckets") in [(each.finding.rule, each.by) for each in diagnosis.masked]


def test_the_sizes_of_buckets_are_told_per_step():
    told = asked(buckets, SMALL.provoked_by_a_hundred_small_buckets())
    assert (told.per_step, told.small_per_step) == (100, 100)
    assert (told.median_bytes, told.total_bytes) == (120_000, 12_000_000)
    assert told.small_exposed_ns == 20 * MS


def test_where_sizes_are_not_told_small_buckets_are_not_judged_and_why_is_said():
    unjudged = {each.rule: each for each in diagnose(SMALL.spared_as_sizes_are_not_told()).unjudged}
    assert "does not tell their sizes" in unjudged["small_buckets"].why


def test_communication_of_another_gpu_in_the_trace_is_not_counted():
    def talks(at):
        return [{**collective(REDUCE, at + 60, 30), "device": 1}]

    assert finding("exposed_communication", EXPOSED.training(talks)) is None


# The fixes, applied to what they speak of: the real wrappers, on the CPU, in a group of one process.

REALLY = """
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
    command = [sys.executable, "-c", REALLY, (tmp_path / "store").as_uri()]
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


def test_communication_is_seen_on_the_a100_trace_and_is_an_exchange_of_all_with_all(read):
    diagnosis = diagnose(read("a100_ddp_8ranks_rank"))
    first = diagnosis.first
    assert first.rule == "exposed_communication"
    assert first.confidence == "certain"
    assert diagnosis.ledger.share("communication") == pytest.approx(0.19, abs=0.01)
    assert "exchanges data" in diagnosis.verdict
    assert "all_to_all_single" in first.fix


def test_of_the_a100_s_kernel_time_nccl_takes_more_than_a_third(read):
    run = read("a100_ddp_8ranks_rank")
    rows = run.event_rows
    kernels = rows["dur_ns"][np.isin(rows["kind"], (Kind.KERNEL, Kind.COLLECTIVE))].sum()
    assert asked(collectives, run).dur_ns.sum() / kernels == pytest.approx(0.366, abs=0.01)


def test_multimem_all_reduces_are_seen_on_the_b200_though_dispatch_is_its_limit(read):
    run = read("b200_eager")
    found = asked(collectives, run)
    rows = run.event_rows
    work = rows["dur_ns"][rows["kind"] >= Kind.KERNEL].sum()
    assert found.dur_ns.sum() / work == pytest.approx(0.195, abs=0.02)
    assert {KINDS[kind] for kind in found.kind.tolist()} == {"all-reduce", "all-gather"}
    assert finding("exposed_communication", run) is None  # 2.5 % of the time: the GPU is idle for most of it


def test_the_mi300_waits_for_other_gpus_rather_than_computing(read):
    diagnosis = diagnose(read("mi300_resnet_checkpoint"))
    first = diagnosis.first
    assert first.rule == "exposed_communication"
    assert diagnosis.ledger.busy_frac > 0.95  # busy, but with what
    assert first.numbers["exposed_frac"] == pytest.approx(0.70, abs=0.01)
    assert "adds up gradients" in diagnosis.verdict
    assert any("3.45 GB/s" in sentence and "waiting" in sentence for sentence in first.evidence)
    assert "bf16_compress_hook" not in first.fix  # they are of 16 bits already


@pytest.mark.parametrize("name", ["v100_ns_resolution", "v100_resnet50_workers0", "h100_bert_small_inference"])
def test_a_gpu_that_works_alone_communicates_nothing(read, name):
    assert asked(collectives, read(name)) is None
