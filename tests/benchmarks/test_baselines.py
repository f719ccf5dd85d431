"""The simple advisers that the benchmark compares with: each rule fires at its published threshold, and not below."""

import numpy as np
import pytest

import gpulab
from benchmarks.diagnosis.baselines import ADVISERS, always_batch_size, four_rules, tensorboard_plugin
from gpulab.rules import RULES
from gpulab.run import Gpu, Loader, Machine
from gpulab.tables import MEMORY, EventKind
from tests.support.runs.made_runs import (
    NO_WORKERS,
    event,
    gpu_samples,
    host_sample,
    loader_call,
    rank_of,
    run_of,
    stepped,
)

GIB = 1 << 30


def on(run, **gpu):
    from dataclasses import replace

    return replace(run, machine=Machine(gpus=(Gpu(index=0, name="Made GPU", **gpu),), memory_bytes=100 * GIB))


def working(*more, kernel_ms=80, name="ampere_h16816gemm", step=lambda at: [], **fields):
    return run_of(stepped(lambda at: [event(EventKind.KERNEL, name, at, kernel_ms), *step(at)]), **fields)


def test_every_adviser_speaks_of_our_rules_or_says_nothing():
    assert list(ADVISERS) == ["always batch size", "TensorBoard plug-in", "four rules"]
    for adviser in ADVISERS.values():
        assert isinstance(list(adviser(run_of())), list)


def test_one_adviser_says_a_larger_batch_whatever_is_seen():
    assert list(always_batch_size(run_of())) == ["small_batch"]


# The plug-in.


@pytest.mark.parametrize(("loader_ms", "said"), [(4, []), (6, ["no_workers"])])
def test_the_plug_in_speaks_of_the_loader_from_a_twentieth_of_the_step_on(loader_ms, said):
    run = working(step=lambda at: [loader_call(at + 80, loader_ms)], loaders=[NO_WORKERS])
    assert list(tensorboard_plugin(run)) == said


def test_the_plug_in_counts_no_loader_time_beside_kernels_or_runtime_calls():
    hidden = working(step=lambda at: [loader_call(at, 80)], loaders=[NO_WORKERS])
    assert list(tensorboard_plugin(hidden)) == []
    under_calls = working(
        step=lambda at: [loader_call(at + 80, 8), event(EventKind.RUNTIME, "cudaEventQuery", at + 80, 8)],
        loaders=[NO_WORKERS],
    )
    assert list(tensorboard_plugin(under_calls)) == []


def test_its_advice_to_set_workers_means_more_of_them_where_there_are_some():
    run = working(step=lambda at: [loader_call(at + 80, 8, workers=2)], loaders=[Loader(workers=2)])
    assert list(tensorboard_plugin(run)) == ["too_few_workers"]


def test_the_plug_in_averages_edge_steps_in():
    def step(at):
        return [event(EventKind.KERNEL, "h16816", at, 60), loader_call(at + 60, 39 if at == 0 else 0.1)]

    assert list(tensorboard_plugin(run_of(stepped(step), loaders=[NO_WORKERS]))) == ["no_workers"]


@pytest.mark.parametrize(("kernel_ms", "said"), [(49, ["small_batch"]), (51, [])])
def test_the_plug_in_says_a_larger_batch_below_half_utilisation(kernel_ms, said):
    assert list(tensorboard_plugin(working(kernel_ms=kernel_ms))) == said


def test_copies_are_no_utilisation_to_it():
    run = working(kernel_ms=40, step=lambda at: [event(EventKind.MEMCPY, "Memcpy HtoD", at + 40, 60)])
    assert list(tensorboard_plugin(run)) == ["small_batch"]


def test_without_a_gpu_it_says_nothing_of_utilisation():
    assert list(tensorboard_plugin(run_of(stepped(lambda at: [event(EventKind.OP, "aten::add", at, 10)])))) == []


@pytest.mark.parametrize(
    ("capability", "name", "op", "said"),
    [
        ("7.0", "volta_sgemm_128x64", "aten::addmm", ["no_mixed_precision"]),
        ("6.1", "sgemm", "aten::addmm", []),
        ("8.0", "ampere_h16816gemm", "aten::addmm", []),
        ("8.0", "elementwise", "aten::add", []),
        ("10.0", "nvjet_tst_128x256_64x4", "aten::mm", ["no_mixed_precision"]),  # its error: it does not know the name
    ],
)
def test_the_plug_in_says_mixed_precision_where_no_kernel_s_name_shows_a_tensor_core(capability, name, op, said):
    run = working(name=name, step=lambda at: [event(EventKind.OP, op, at, 1)])
    assert list(tensorboard_plugin(on(run, compute_capability=capability))) == said


@pytest.mark.parametrize(("frac", "said"), [(0.89, []), (0.91, ["out_of_memory"])])
def test_the_plug_in_warns_of_memory_from_nine_tenths_on(frac, said):
    held = MEMORY.rows(
        {
            **{column.name: [-1] for column in MEMORY.columns},
            "device": [0],
            "bytes": [1],
            "reserved_bytes": [round(frac * 10 * GIB)],
        }
    )
    assert list(tensorboard_plugin(on(working(memory_rows=held), memory_bytes=10 * GIB))) == said


@pytest.mark.parametrize(("talk_ms", "said"), [(9, []), (11, ["exposed_communication"])])
def test_the_plug_in_speaks_of_communication_from_a_tenth_on(talk_ms, said):
    run = working(step=lambda at: [event(EventKind.ANNOTATION, "nccl:all_reduce", at + 80, talk_ms)])
    assert list(tensorboard_plugin(run)) == said


def test_communication_of_any_other_name_is_not_seen_by_it():
    run = working(step=lambda at: [event(EventKind.COLLECTIVE, "ncclDevKernel_AllReduce", at + 80, 19)])
    assert list(tensorboard_plugin(run)) == []


def test_the_plug_in_says_ddp_for_data_parallel_on_several_gpus():
    run = working(step=lambda at: [event(EventKind.ANNOTATION, "DataParallel.forward", at, 50)])
    assert list(tensorboard_plugin(on(run))) == []
    two = Machine(gpus=(Gpu(index=0, name="a"), Gpu(index=1, name="b")))
    from dataclasses import replace

    assert list(tensorboard_plugin(replace(run, machine=two))) == ["data_parallel"]


def test_the_plug_in_says_nccl_for_ddp_with_another_backend():
    from dataclasses import replace

    run = on(
        rank_of(stepped(lambda at: [event(EventKind.KERNEL, "h16816", at, 80), ddp(at)])), compute_capability="8.0"
    )
    assert list(tensorboard_plugin(replace(run, facts={"distributed_backend": "gloo"}))) == ["exposed_communication"]
    assert list(tensorboard_plugin(replace(run, facts={"distributed_backend": "nccl"}))) == []
    assert list(tensorboard_plugin(run)) == []


def ddp(at):
    return event(EventKind.ANNOTATION, "DistributedDataParallel.forward", at, 50)


def test_the_plug_in_lists_the_loader_before_precision_and_does_not_rank():
    run = working(name="sgemm", step=lambda at: [loader_call(at + 80, 19), event(EventKind.OP, "aten::mm", at, 1)])
    assert list(tensorboard_plugin(on(run, compute_capability="7.0"))) == ["no_workers", "no_mixed_precision"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("v100_resnet50_workers0", "no_workers"),
        ("v100_resnet50_workers4", "no_mixed_precision"),
        ("h100_timesformer_inference", "small_batch"),
        ("h100_bert_small_inference", "small_batch"),
        ("mi300_resnet_checkpoint", "no_mixed_precision"),
        ("a100_ddp_8ranks_rank", None),
    ],
)
def test_on_real_traces_it_says_what_the_plug_in_was_seen_to_say(recorded, name, first):
    said = list(tensorboard_plugin(gpulab.load(recorded(f"{name}.json.gz"))))
    assert (said[0] if said else None) == first


# The article's four rules.


def sensed(*, gpu=None, cpu=None, free_frac=None, moved=None, workers=0):
    told = {key: value for key, value in (("util_frac", gpu), ("memory_util_frac", moved)) if value is not None}
    samples = [
        host_sample(
            at,
            cpu_frac=np.nan if cpu is None else cpu,
            memory_available_bytes=np.nan if free_frac is None else free_frac * 100 * GIB,
        )
        for at in range(0, 500, 50)
    ]
    return on(run_of(samples=samples, gpu_rows=gpu_samples(told), loaders=[Loader(workers=workers)]))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (sensed(gpu=0.4, cpu=0.9), ["no_workers"]),
        (sensed(gpu=0.4, cpu=0.9, workers=2), ["too_few_workers"]),
        (sensed(gpu=0.6, cpu=0.9), []),
        (sensed(gpu=0.4, cpu=0.7), []),
        (sensed(gpu=0.4, cpu=0.3), ["host_python"]),
        (sensed(gpu=0.6, cpu=0.3), []),
        (sensed(free_frac=0.6, workers=4), ["too_few_workers"]),
        (sensed(free_frac=0.4), []),
        (sensed(moved=0.4), ["small_batch"]),
        (sensed(moved=0.6), []),
        (sensed(gpu=0.4, cpu=0.3, free_frac=0.9, moved=0.1), ["no_workers", "host_python", "small_batch"]),
        (sensed(), []),
    ],
)
def test_each_of_the_four_rules_speaks_at_its_threshold_in_the_article_s_order(run, said):
    assert list(four_rules(run)) == said


def test_without_a_gpu_the_time_in_operators_stands_for_its_use():
    samples = [host_sample(at, cpu_frac=0.9) for at in range(0, 600, 50)]
    idle = run_of(
        stepped(lambda at: [loader_call(at, 70), event(EventKind.OP, "aten::mm", at + 70, 30)]), samples=samples
    )
    assert list(four_rules(idle)) == ["no_workers"]
    busy = run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 90)]), samples=samples)
    assert list(four_rules(busy)) == []


def test_the_advisers_use_names_of_our_rules():
    said = {"small_batch", "no_workers", "too_few_workers", "no_mixed_precision", "out_of_memory", "host_python"}
    said |= {"data_parallel", "exposed_communication"}
    assert said <= {rule.name for rule in RULES}
