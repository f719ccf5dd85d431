"""What calls cost the host of a virtual GPU: a price list held against recorded hosts, and a CPU measured."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gpulab import trace
from gpulab.tables import EventKind
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.op_classes import has_no_kernel, op_class
from gpulab.virtual.host import calibration
from gpulab.virtual.host.calibration import DISPATCH_LOOPS, REFERENCE_NS, measure_loops, measure_slowdown
from gpulab.virtual.host.costs import DISPATCH_NS, HOST_COST_FACTORS, HostCosts, calibrated_host
from gpulab.virtual.op_log.ops import Op, Phase

CALLS = ("launch_ns", "copy_dispatch_ns", "copy_call_ns", "sync_call_ns", "event_ns", "alloc_ns")
NAMES = ("add", "addmm", "bmm", "convolution", "native_batch_norm", "native_layer_norm", "sum", "_softmax", "t")


def op(name, phase=Phase.FORWARD, **more):
    return Op(name=f"aten::{name}", inputs=(), outputs=(), phase=phase, **more)


# Held against recorded hosts.

HOSTS = ("h100_bert_small_inference", "h100_timesformer_inference", "a100_ddp_8ranks_rank", "v100_ns_resolution")
COMPOSITE = (  # call others, which are what a virtual GPU is told of
    "linear", "matmul", "conv2d", "batch_norm", "_batch_norm_impl_index", "layer_norm", "softmax", "log_softmax",
    "dropout", "dropout_", "reshape", "contiguous", "scaled_dot_product_attention", "to", "flatten", "item", "pad",
    "repeat", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "einsum", "type_as", "expand_as", "max_pool2d",
    "adaptive_avg_pool2d", "narrow", "chunk", "split", "is_nonzero",
)  # fmt: skip
RECORDING_NS = 1_000  # what recording adds to an operator for each one inside it; for itself half of that
RUNTIME = (EventKind.LAUNCH, EventKind.SYNC, EventKind.COPY_CALL, EventKind.ALLOC, EventKind.RUNTIME)


def own_costs(run):
    """Of each operator that launched something: its name, whether autograd's thread ran it, its time without calls."""
    rows = run.event_rows
    names, kinds = rows.text("name").to_list(), rows["kind"]
    starts, durs, threads = rows["start_ns"].tolist(), rows["dur_ns"].tolist(), rows["thread"]
    told = []
    for thread in np.unique(threads[kinds == EventKind.OP]):
        mine = np.flatnonzero((threads == thread) & np.isin(kinds, (EventKind.OP, *RUNTIME))).tolist()
        mine.sort(key=lambda row: (starts[row], -durs[row]))
        stack, added, launches = [], defaultdict(int), set()
        for row in mine:
            while stack and starts[row] >= starts[stack[-1]] + durs[stack[-1]]:
                stack.pop()
            for outer in stack:
                added[outer] += durs[row] if kinds[row] != EventKind.OP else RECORDING_NS
                if kinds[row] in (EventKind.LAUNCH, EventKind.COPY_CALL):
                    launches.add(outer)
            if kinds[row] == EventKind.OP:
                stack.append(row)
        told += outermost(mine, names, kinds, starts, durs, added, launches)
    return told


def outermost(mine, names, kinds, starts, durs, added, launches):
    """Operators that are no part of another one of those the virtual GPU is told of."""
    over, backward = 0, any(names[row].startswith("autograd::engine") for row in mine)
    for row in mine:
        short = names[row].removeprefix("aten::")
        if kinds[row] == EventKind.OP and short != names[row] and short not in COMPOSITE and starts[row] >= over:
            over = starts[row] + durs[row]
            if row in launches and not has_no_kernel(short):
                yield names[row], backward, max(0, durs[row] - added[row] - RECORDING_NS // 2)


@pytest.fixture(scope="module", params=HOSTS)
def costs(request, recorded):
    """What classes of operators cost a recorded host, in and out of backward, beside what the price list says."""
    found = defaultdict(list)
    for name, backward, own_ns in own_costs(trace.read(recorded(f"{request.param}.json.gz"))):
        phase = Phase.OPTIMIZER if backward else Phase.FORWARD  # as engine and graph are outside the operator there
        price = HostCosts.reference().dispatch_ns(Op(name=name, inputs=(), outputs=(), phase=phase))
        found[op_class(name), backward].append((own_ns, price))
    return {which: np.array(told) for which, told in found.items() if len(told) >= 20 and which[0] != OpClass.OPTIMIZER}


@pytest.mark.night
def test_in_all_a_recorded_host_costs_what_the_usual_one_does_give_or_take_the_spread(costs):
    told, price = np.concatenate(list(costs.values())).sum(axis=0)
    assert HOST_COST_FACTORS[0] < told / price < HOST_COST_FACTORS[1]


@pytest.mark.night
def test_three_classes_in_four_cost_a_recorded_host_no_more_than_twice_as_much_or_as_little(costs):
    ratios = {which: float(np.median(told[:, 0]) / np.median(told[:, 1])) for which, told in costs.items()}
    off = {which: ratio for which, ratio in ratios.items() if not 0.5 <= ratio <= 2}
    assert len(off) <= max(1, len(ratios) / 4), off


@pytest.mark.parametrize("name", HOSTS)
def test_a_recorded_launch_takes_what_the_usual_one_does(name, recorded):
    calls = trace.read(recorded(f"{name}.json.gz")).event_rows.of_kind(EventKind.LAUNCH)
    took = calls["dur_ns"][
        calls.text("name").matching(word == "cudaLaunchKernel" for word in calls.text("name").vocabulary)
    ]
    assert HOST_COST_FACTORS[0] < np.median(took) / HostCosts.reference().launch_ns < HOST_COST_FACTORS[1]


# The price list.


def test_every_class_of_operators_has_a_price():
    no_matter_of_the_host = {OpClass.TENSOR_PRODUCT}  # which units multiply
    # PyTorch wraps torch.cuda._sleep in none; copies have their own price.
    no_operator = {OpClass.SPIN, OpClass.PAGEABLE_TO_DEVICE, OpClass.PAGEABLE_TO_HOST}
    assert set(DISPATCH_NS) | no_matter_of_the_host | no_operator == set(OpClass)
    assert op_class("aten::mm") is OpClass.PRODUCT
    assert all(price > 0 for prices in DISPATCH_NS.values() for price in prices)


def test_what_autograd_writes_down_costs_more_than_what_it_does_not():
    host = HostCosts.reference()
    for name in ("add", "addmm", "bmm", "native_layer_norm", "sum", "native_batch_norm"):
        assert host.dispatch_ns(op(name)) > host.dispatch_ns(op(name, Phase.OPTIMIZER))
        assert host.dispatch_ns(op(name, Phase.SETUP)) == host.dispatch_ns(op(name, Phase.OPTIMIZER))


def test_each_operator_of_backward_pays_for_its_node_and_a_view_does_not():
    host = HostCosts.reference()
    node = host.dispatch_ns(op("mul", Phase.BACKWARD)) - host.dispatch_ns(op("mul", Phase.OPTIMIZER))
    assert node > 0
    view, kept = op("t", Phase.BACKWARD, is_view=True), op("detach", Phase.BACKWARD, is_view=True)
    assert host.dispatch_ns(view) == host.dispatch_ns(replace(view, phase=Phase.OPTIMIZER))
    assert host.dispatch_ns(kept) - host.dispatch_ns(view) == node, "a gradient that is kept has a node of its own"
    dearer = replace(host, autograd_factor=3.0)
    assert dearer.dispatch_ns(view) == host.dispatch_ns(view)
    assert dearer.dispatch_ns(kept) - host.dispatch_ns(kept) == 2 * node


def test_views_cost_least_then_what_only_makes_room_then_work():
    host = HostCosts.reference()
    costs = [host.dispatch_ns(each) for each in (op("view", is_view=True), op("empty"), op("add"), op("addmm"))]
    assert all(a < b for a, b in pairwise(costs))


def test_a_foreach_operator_costs_by_the_tensors_in_its_list_and_less_than_as_many_calls():
    host = HostCosts.reference()
    few, many = (host.dispatch_ns(op("_foreach_add_", Phase.OPTIMIZER, list_length=count)) for count in (10, 170))
    assert few < many < 170 * host.dispatch_ns(op("add_", Phase.OPTIMIZER)) / 4


@pytest.mark.parametrize("factor", [0.5, 2, 3])
def test_a_host_so_many_times_slower_takes_so_many_times_as_long_for_everything(factor):
    usual, slower = HostCosts.reference(), HostCosts.reference().scaled(factor)
    for name in CALLS:
        assert getattr(slower, name) == pytest.approx(factor * getattr(usual, name), abs=1)
    for name in NAMES:
        for phase in Phase:
            assert slower.dispatch_ns(op(name, phase)) == pytest.approx(
                factor * usual.dispatch_ns(op(name, phase)), abs=1
            )
    assert slower.scaled(1 / factor).dispatch_ns(op("add")) == usual.dispatch_ns(op("add"))


def test_the_usual_host_is_always_the_same_and_says_that_it_was_not_measured():
    assert HostCosts.reference() == HostCosts.reference()
    assert "not used" in str(HostCosts.reference())


# This CPU, measured.


def test_this_cpu_is_measured_once_and_says_which_and_when():
    torch = pytest.importorskip("torch")
    seed, grad = torch.get_rng_state(), torch.is_grad_enabled()
    with torch.inference_mode():
        host = calibrated_host()
    assert calibrated_host() is host
    assert torch.equal(torch.get_rng_state(), seed)
    assert torch.is_grad_enabled() is grad
    assert 0 < host.dispatch_factor < 100
    assert 0 < host.autograd_factor < 100
    assert host.cpu
    assert host.measured_at in str(host)


def test_every_loop_is_measured_and_has_its_usual_figure():
    pytest.importorskip("torch")
    took = measure_loops(rounds=1)
    assert set(took) == set(REFERENCE_NS) == {*DISPATCH_LOOPS, "backward"}
    assert all(ns > 0 for ns in took.values())


def test_a_disturbed_measurement_lies_between_its_times(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(calibration, "_run_chunks", lambda chunk: [10.0, 1000.0])
    assert all(10 <= ns <= 1000 for ns in measure_loops(rounds=1).values())


def test_a_cpu_on_which_every_loop_takes_twice_as_long_is_twice_as_slow(monkeypatch):
    monkeypatch.setattr(calibration, "measure_loops", lambda: {name: 2.0 * ns for name, ns in REFERENCE_NS.items()})
    assert measure_slowdown() == calibration.CpuSlowdown(dispatch=2.0, autograd=2.0)


def test_one_loop_that_is_out_of_line_changes_nothing(monkeypatch):
    odd = {**REFERENCE_NS, "linear": 50.0 * REFERENCE_NS["linear"]}
    monkeypatch.setattr(calibration, "measure_loops", lambda: odd)
    assert measure_slowdown().dispatch == 1.0


def test_a_turn_counts_what_calls_take_by_the_clock_and_not_the_first_chunk(monkeypatch):
    now = {"ns": 0}
    costs = iter([90_000, *[1_000] * 1_000])

    def call():
        now["ns"] += next(costs)

    monkeypatch.setattr(calibration, "perf_counter_ns", lambda: now["ns"])
    monkeypatch.setattr(calibration, "LOOP_NS", 150_000)
    assert set(calibration._run_chunks(calibration._chunk(call))) == {1_000.0}
