"""Copies and waits: what real traces say of them, what is counted, and that the printed fixes do what they say."""

import contextlib
import types

import pytest

import gpulab
from gpulab.analysis.copies.host_to_device import transfers
from gpulab.analysis.host.syncs import holders, host_waits
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.rules import diagnose
from gpulab.run import Gpu, Machine
from gpulab.tables import Kind
from tests.support.runs.cases import case_module, functions
from tests.support.runs.made_runs import MS, event, launched, on_gpu, run_of, stepped

RESNET = "v100_resnet50_workers{}.json.gz"


def asked(analysis, run):
    found = steps(run)
    return analysis(run, found, ledger(run, found))


def finding(run, rule):
    return next(each for each in diagnose(run).findings if each.rule == rule)


def case(rule, name):
    return dict(functions(case_module(rule)))[name]()


# What is known of real traces.


def test_resnet_with_workers_copies_its_batches_from_pageable_memory_and_little_is_to_be_had(recorded):
    run = gpulab.load(recorded(RESNET.format(4)))
    told = finding(run, "pageable_copies")
    copies = asked(transfers, run).pageable
    assert copies.count == 2, "images and labels"
    assert copies.bytes == pytest.approx(32 * 3 * 224 * 224 * 4 + 32 * 8, rel=1e-3)
    assert copies.rate_bytes_per_s == pytest.approx(6.2e9, rel=0.05)
    assert 1.02 < told.gain.bound < 1.03
    assert asked(transfers, run).pinned is None


def test_copies_of_a_hundredth_of_a_step_are_not_told_as_a_cause(recorded):
    run = gpulab.load(recorded(RESNET.format(0)))
    assert asked(transfers, run).pageable.exposed_ns < 0.02 * steps(run).traced_ns
    assert "pageable_copies" not in [each.rule for each in diagnose(run).findings]


@pytest.mark.parametrize("workers", [0, 4])
def test_the_synchronisation_that_ends_a_copy_to_the_gpu_is_no_wait_for_a_value(recorded, workers):
    assert asked(host_waits, gpulab.load(recorded(RESNET.format(workers)))) is None


def test_a_host_held_for_an_eighth_of_a_second_by_800_bytes_costs_nothing_as_the_gpu_works(recorded):
    waits = asked(host_waits, gpulab.load(recorded("h100_timesformer_inference.json.gz")))
    assert waits.longest_ns == pytest.approx(126e6, rel=0.01)
    assert waits.idle_ns < 1e6
    rules = [each.rule for each in diagnose(gpulab.load(recorded("h100_timesformer_inference.json.gz"))).findings]
    assert "host_syncs" not in rules


def test_a_training_whose_batches_are_on_the_gpu_already_copies_nothing_to_it(recorded):
    assert asked(transfers, gpulab.load(recorded("v100_ns_resolution.json.gz"))) is None


def test_the_profiler_s_own_synchronisation_is_not_the_users_whatever_else_a_trace_holds(shared):
    for path in sorted((shared / "traces").glob("*.json.gz")):
        assert "host_syncs" not in [each.rule for each in diagnose(gpulab.load(path)).findings], path.name


# What is counted.


def test_each_call_lies_in_the_operator_of_its_own_thread_that_is_open_when_it_begins():
    ops = [event(Kind.OP, "aten::item", 20, 10), event(Kind.OP, "aten::item", 0, 10)]
    ops.append(event(Kind.OP, "aten::item", 5, 20, thread=1))
    calls = [event(Kind.SYNC, "cudaStreamSynchronize", at, 1, thread=thread) for at, thread in ((5, 0), (15, 0))]
    calls += [
        event(Kind.SYNC, "cudaStreamSynchronize", at, 1, thread=thread) for at, thread in ((25, 0), (8, 1), (4, 1))
    ]
    rows = run_of([*ops, *calls]).event_rows
    assert holders(rows.of_kind(Kind.OP), rows.of_kind(Kind.SYNC)).tolist() == [1, -1, 0, 2, -1]


def test_two_calls_of_one_operator_are_one_wait():
    waits = asked(host_waits, case("host_syncs", "provoked_by_a_tensor_that_is_fetched"))
    assert waits.count == 1, "the copy and the synchronisation that ends it"
    assert waits.by_op == (("aten::to", 1),)
    assert waits.idle_ns == 15 * MS


def test_what_a_copy_hides_behind_kernels_is_told_as_a_share():
    def step(at):
        copy = event(Kind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", at, 40, correlation=round(at), stream=14)
        return [copy, event(Kind.KERNEL, "ampere_sgemm", at + 30, 70)]

    copies = asked(transfers, run_of(stepped(step))).pinned
    assert copies.hidden_frac == pytest.approx(0.25)
    assert copies.exposed_ns == 30 * MS


def test_pinning_gains_by_the_pace_of_the_link_where_that_is_known():
    pageable = "Memcpy HtoD (Pageable -> Device)"

    def step(at):
        number = round(at)
        return [
            event(Kind.OP, "aten::copy_", at, 19),
            event(Kind.COPY_CALL, "cudaMemcpyAsync", at, 18.5, correlation=number + 1),
            event(Kind.MEMCPY, pageable, at + 0.5, 18, correlation=number + 1, size=64_000_000),
            *launched("ampere_sgemm", at + 20, 79, number=number + 2),
            event(Kind.SYNC, "cudaStreamSynchronize", at + 20.1, 78.92),
        ]

    def gain(generation):
        gpu = Gpu(index=0, name="Made", link_generation_max=generation, link_width_max=16)
        run = on_gpu(stepped(step), machine=Machine(gpus=(gpu,), cores_allowed=8.0))
        return finding(run, "pageable_copies").gain

    assert gain(3).best_speedup < gain(5).best_speedup < gain(5).bound == gain(3).bound


def test_the_time_in_which_the_cpu_fills_a_tensor_is_not_told_again_as_the_cost_of_small_kernels():
    def step(at):
        number = round(at)
        made = [
            event(Kind.OP, "aten::normal_", at + 1, 50),
            event(Kind.COPY_CALL, "cudaMemcpyAsync", at + 51.1, 5, correlation=number),
            event(Kind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 51.2, 4.8, correlation=number, size=16_000_000),
        ]
        small = [(at + 57 + 2 * index, index) for index in range(20)]
        made += [event(Kind.OP, "aten::add", start, 1.9) for start, _ in small]
        made += [event(Kind.LAUNCH, "cudaLaunchKernel", start, 0.01) for start, _ in small]
        return [*made, *(event(Kind.KERNEL, "vectorized_elementwise_kernel", start + 1, 0.01) for start, _ in small)]

    diagnosis = diagnose(run_of(stepped(step)))
    assert diagnosis.first.rule == "cpu_tensor_creation"
    assert ("dispatch_bound", "cpu_tensor_creation") in [(each.finding.rule, each.by) for each in diagnosis.masked]


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
    given = [[_Part(part) for part in batch] for batch in batches]
    names = {"torch": types.SimpleNamespace(cuda=cuda), "batches": given}
    exec(
        finding(case("unoverlapped_copies", "provoked_by_pinned_copies_before_the_kernels"), "unoverlapped_copies").fix,
        names,
    )
    assert [int(targets.tensor) for _, targets in names["ahead"]] == [0, 1, 2, 3]


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
def test_a_tensor_made_by_the_fix_is_as_large_as_the_one_copied(name):
    torch = pytest.importorskip("torch")
    told = finding(case("cpu_tensor_creation", f"provoked_{name}"), "cpu_tensor_creation")
    names = {"torch": torch}
    exec(without_gpu(told.fix), names)
    assert names["made"].ndim == 2
    if "noise" in name:
        assert tuple(names["made"].shape) == (4096, 1024)
        assert "pageable_copies" not in [
            each.rule for each in diagnose(case("cpu_tensor_creation", f"provoked_{name}")).findings
        ]


def test_the_sum_of_losses_is_printed_as_their_mean(capsys):
    torch = pytest.importorskip("torch")
    before, loop = without_gpu(finding(case("host_syncs", "provoked_by_item"), "host_syncs").fix).split("\n\n")
    names = {"torch": torch}
    exec(before, names)
    for step in range(1, 51):
        names |= {"step": step, "loss": torch.tensor(2.0, requires_grad=True)}
        exec(loop, names)
    assert capsys.readouterr().out.strip() == "2.0"


def test_a_masked_mean_without_waiting_is_the_masked_mean():
    torch = pytest.importorskip("torch")
    values = torch.arange(10.0)
    names = {"torch": torch}
    exec(finding(case("host_syncs", "provoked_by_a_boolean_mask"), "host_syncs").fix, names)
    assert names["masked_mean"](values, values > 6) == values[values > 6].mean()


def test_results_that_are_kept_are_all_there_at_the_end():
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
