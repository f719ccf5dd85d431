"""Rules about copies and synchronisation: numbers in recorded traces, what is counted, and fixes that run."""

import contextlib
import types

import pytest

import gpulab
from gpulab.analysis.copies.host_to_device import transfers
from gpulab.analysis.host.syncs import containing_operators, host_waits
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rules import diagnose
from gpulab.run import Gpu, Machine
from gpulab.tables import EventKind
from tests.support.runs.cases import case_module, functions
from tests.support.runs.made_runs import MS, event, launched_kernel, on_gpu, run_of, stepped

RESNET = "v100_resnet50_workers{}.json.gz"


def analysed(analysis, run):
    detected_steps = find_steps(run)
    return analysis(run, detected_steps, build_ledger(run, detected_steps))


def finding(run, rule):
    return next(each for each in diagnose(run).findings if each.rule == rule)


def case(rule, name):
    return dict(functions(case_module(rule)))[name]()


# What is known of real traces.


def test_resnet_with_workers_copies_from_pageable_memory_with_a_small_bound(recorded):
    run = gpulab.load(recorded(RESNET.format(4)))
    finding_of_run = finding(run, "pageable_copies")
    copies = analysed(transfers, run).pageable
    assert copies.count == 2, "images and labels"
    assert copies.bytes == pytest.approx(32 * 3 * 224 * 224 * 4 + 32 * 8, rel=1e-3)
    assert copies.rate_bytes_per_s == pytest.approx(6.2e9, rel=0.05)
    assert 1.02 < finding_of_run.gain.bound < 1.15, "no step was timed without the profiler"
    assert analysed(transfers, run).pinned is None


def test_copies_of_one_percent_of_a_step_are_not_reported(recorded):
    run = gpulab.load(recorded(RESNET.format(0)))
    assert analysed(transfers, run).pageable.exposed_ns < 0.02 * find_steps(run).traced_ns
    assert "pageable_copies" not in [each.rule for each in diagnose(run).findings]


@pytest.mark.parametrize("workers", [0, 4])
def test_the_synchronisation_of_a_copy_to_the_gpu_is_not_a_host_sync(recorded, workers):
    assert analysed(host_waits, gpulab.load(recorded(RESNET.format(workers)))) is None


def test_a_long_wait_for_800_bytes_costs_nothing_while_the_gpu_works(recorded):
    waits = analysed(host_waits, gpulab.load(recorded("h100_timesformer_inference.json.gz")))
    assert waits.longest_ns == pytest.approx(126e6, rel=0.01)
    assert waits.idle_ns < 1e6
    rules = [each.rule for each in diagnose(gpulab.load(recorded("h100_timesformer_inference.json.gz"))).findings]
    assert "host_syncs" not in rules


def test_a_loop_with_batches_on_the_gpu_has_no_transfers(recorded):
    assert analysed(transfers, gpulab.load(recorded("v100_ns_resolution.json.gz"))) is None


@pytest.mark.full
def test_the_profilers_own_synchronisation_is_not_reported(shared):
    for path in sorted((shared / "traces").glob("*.json.gz")):
        assert "host_syncs" not in [each.rule for each in diagnose(gpulab.load(path)).findings], path.name


# What is counted.


def test_a_call_belongs_to_the_operator_of_its_thread_that_is_open_at_its_start():
    ops = [event(EventKind.OP, "aten::item", 20, 10), event(EventKind.OP, "aten::item", 0, 10)]
    ops.append(event(EventKind.OP, "aten::item", 5, 20, thread=1))
    calls = [event(EventKind.SYNC, "cudaStreamSynchronize", at, 1, thread=thread) for at, thread in ((5, 0), (15, 0))]
    calls += [
        event(EventKind.SYNC, "cudaStreamSynchronize", at, 1, thread=thread) for at, thread in ((25, 0), (8, 1), (4, 1))
    ]
    rows = run_of([*ops, *calls]).event_rows
    assert containing_operators(rows.of_kind(EventKind.OP), rows.of_kind(EventKind.SYNC)).tolist() == [1, -1, 0, 2, -1]


def test_two_calls_of_one_operator_are_one_wait():
    waits = analysed(host_waits, case("host_syncs", "provoked_by_a_tensor_that_is_fetched"))
    assert waits.count == 1, "the copy and the synchronisation that ends it"
    assert waits.by_op == (("aten::to", 1),)
    assert waits.idle_ns == 15 * MS


def test_overlap_of_a_copy_with_kernels_is_a_fraction():
    def step(at):
        copy = event(EventKind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", at, 40, correlation=round(at), stream=14)
        return [copy, event(EventKind.KERNEL, "ampere_sgemm", at + 30, 70)]

    copies = analysed(transfers, run_of(stepped(step))).pinned
    assert copies.hidden_frac == pytest.approx(0.25)
    assert copies.exposed_ns == 30 * MS


def test_the_gain_of_pinning_depends_on_the_link():
    pageable = "Memcpy HtoD (Pageable -> Device)"

    def step(at):
        number = round(at)
        return [
            event(EventKind.OP, "aten::copy_", at, 19),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at, 18.5, correlation=number + 1),
            event(EventKind.MEMCPY, pageable, at + 0.5, 18, correlation=number + 1, size=64_000_000),
            *launched_kernel("ampere_sgemm", at + 20, 79, number=number + 2),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 20.1, 78.92),
        ]

    def gain(generation):
        gpu = Gpu(index=0, name="Made", link_generation_max=generation, link_width_max=16)
        run = on_gpu(stepped(step), machine=Machine(gpus=(gpu,), cores_allowed=8.0))
        return finding(run, "pageable_copies").gain

    assert gain(3).best_speedup < gain(5).best_speedup < gain(5).bound == gain(3).bound


def test_tensor_creation_on_the_cpu_masks_dispatch_bound():
    def step(at):
        number = round(at)
        events = [
            event(EventKind.OP, "aten::normal_", at + 1, 50),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 51.1, 5, correlation=number),
            event(
                EventKind.MEMCPY,
                "Memcpy HtoD (Pageable -> Device)",
                at + 51.2,
                4.8,
                correlation=number,
                size=16_000_000,
            ),
        ]
        small = [(at + 57 + 2 * index, index) for index in range(20)]
        events += [event(EventKind.OP, "aten::add", start, 1.9) for start, _ in small]
        events += [event(EventKind.LAUNCH, "cudaLaunchKernel", start, 0.01) for start, _ in small]
        return [
            *events,
            *(event(EventKind.KERNEL, "vectorized_elementwise_kernel", start + 1, 0.01) for start, _ in small),
        ]

    diagnosis = diagnose(run_of(stepped(step)))
    assert diagnosis.first.rule == "cpu_tensor_creation"
    assert ("dispatch_bound", "cpu_tensor_creation") in [
        (each.finding.rule, each.explained_by) for each in diagnosis.masked
    ]


# The fixes, run.


def without_gpu(fix):
    return fix.replace('"cuda"', '"cpu"')


def test_the_prefetcher_gives_every_batch_once_and_in_order():
    torch = pytest.importorskip("torch")
    stream = types.SimpleNamespace(wait_stream=lambda _: None)
    cuda = types.SimpleNamespace(
        Stream=lambda: None, stream=lambda _: contextlib.nullcontext(), current_stream=lambda: stream
    )
    batches = [(torch.full((2,), float(n)), torch.tensor([n])) for n in range(4)]
    parts = [[_Part(part) for part in batch] for batch in batches]
    names = {"torch": types.SimpleNamespace(cuda=cuda), "batches": parts}
    exec(
        finding(case("unoverlapped_copies", "provoked_by_pinned_copies_before_the_kernels"), "unoverlapped_copies").fix,
        names,
    )
    assert [int(targets.tensor) for _, targets in names["prefetched"]] == [0, 1, 2, 3]


class _Part:
    """A tensor that says it was copied to the GPU."""

    def __init__(self, tensor, device="cpu"):
        self.tensor, self.device = tensor, device

    def to(self, device, non_blocking):
        assert non_blocking
        return _Part(self.tensor, device)

    def record_stream(self, _):
        assert self.device == "cuda", "only what is on the GPU has streams"


@pytest.mark.parametrize("name", ["by_noise_that_the_cpu_draws", "by_zeros_whose_shape_was_not_recorded"])
def test_the_fix_creates_a_tensor_of_the_copied_shape(name):
    torch = pytest.importorskip("torch")
    finding_of_run = finding(case("cpu_tensor_creation", f"provoked_{name}"), "cpu_tensor_creation")
    names = {"torch": torch}
    exec(without_gpu(finding_of_run.fix), names)
    assert names["tensor"].ndim == 2
    if "noise" in name:
        assert tuple(names["tensor"].shape) == (4096, 1024)
        assert "pageable_copies" not in [
            each.rule for each in diagnose(case("cpu_tensor_creation", f"provoked_{name}")).findings
        ]


def test_the_fix_for_item_prints_the_mean_loss(capsys):
    torch = pytest.importorskip("torch")
    before, loop = without_gpu(finding(case("host_syncs", "provoked_by_item"), "host_syncs").fix).split("\n\n")
    names = {"torch": torch}
    exec(before, names)
    for step in range(1, 51):
        names |= {"step": step, "loss": torch.tensor(2.0, requires_grad=True)}
        exec(loop, names)
    assert capsys.readouterr().out.strip() == "2.0"


def test_the_fix_for_a_mask_computes_the_masked_mean():
    torch = pytest.importorskip("torch")
    values = torch.arange(10.0)
    names = {"torch": torch}
    exec(finding(case("host_syncs", "provoked_by_a_boolean_mask"), "host_syncs").fix, names)
    assert names["masked_mean"](values, values > 6) == values[values > 6].mean()


def test_the_fix_for_fetched_tensors_keeps_all_results():
    torch = pytest.importorskip("torch")
    fix = finding(case("host_syncs", "provoked_by_a_tensor_that_is_fetched"), "host_syncs").fix
    before, loop, after = fix.split("\n\n")
    names = {"torch": torch}
    exec(before, names)
    for number in range(3):
        names["outputs"] = torch.full((2, 1), float(number))
        exec(loop, names)
    exec(after, names)
    assert names["results"].flatten().tolist() == [0, 0, 1, 1, 2, 2]
