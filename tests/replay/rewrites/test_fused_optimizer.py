"""A fused optimizer: few kernels for all parameters, by their bytes where their number is known."""

import numpy as np
import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.kernels.fused_optimizer import fuse_optimizer, optimizer_work
from gpulab.run import Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_networks import ADD, SGEMM, Kernel, network, predict_rewrites, replay_scene
from tests.support.runs.made_runs import event, run_of, stepped

END = Kernel("", 0, waits=True)
MULTI = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor<float>>"
FUSED = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
MODEL = [Kernel(SGEMM, 300)] * 10
LOOP = [*MODEL, *[Kernel(ADD, 3, host_us=30, updates=True)] * 240, END]  # 20 tensors, 12 operations each
ADAM = Optimizer(kind="AdamW", tensors=20, elements=50_000_000)


def test_many_small_kernels_become_few():
    run = network(LOOP, gpu="A100")
    prediction = predict_rewrites(run, "optimizer")
    assert prediction.speedup > 2
    assert 10 * 300e3 < prediction.likely_ns < 10 * 300e3 + 1_000_000
    assert optimizer_work(replay_scene(run).graph).tensors == 20


def test_only_the_optimizer_changes():
    graph = replay_scene(network(LOOP, gpu="A100")).graph
    after = fuse_optimizer(graph, "fused", Draw())
    products = graph.device.dur_ns > 100_000
    assert (after.device.dur_ns[products] == graph.device.dur_ns[products]).all()
    assert after.device.dur_ns[~products].sum() < graph.device.dur_ns[~products].sum() / 5


def test_where_the_parameters_are_counted_their_bytes_are_the_time():
    slow = [*MODEL, *[Kernel(ADD, 300, updates=True)] * 60, END]
    graph = replay_scene(network(slow, gpu="A100", optimizers=(ADAM,))).graph
    after = fuse_optimizer(graph, "fused", Draw())
    updated_ns = after.device.dur_ns[optimizer_work(graph).ops].sum() / 6
    moved_ns = 28 * ADAM.elements / 2039e9 * 1e9
    assert moved_ns < updated_ns < 1.8 * moved_ns


def test_foreach_takes_longer_than_fused():
    run = network([*MODEL, *[Kernel(ADD, 100, updates=True)] * 240, END], gpu="A100")
    fused, foreach = (
        predict_rewrites(run, f"optimizer={implementation}").likely_ns for implementation in ("fused", "foreach")
    )
    assert fused < foreach < predict_rewrites(run, "").likely_ns


@pytest.mark.parametrize(("way", "least_us"), [("foreach", 6.0), ("fused", 1.6)])
def test_each_tensor_costs_the_host_what_its_python_costs(way, least_us):
    # Timed on one CPU with the operators left out: 3.3 to 4.9 us a tensor for Adam's foreach, 1.4 to 2 for the fused
    # one, and a quarter of a microsecond for each of the 12 lists, or the one, that a tensor is in.
    many = [Kernel(SGEMM, 20), *[Kernel(ADD, 2, host_us=15, updates=True)] * (12 * 100), END]
    run = network(many, gpu="A100", optimizers=(Optimizer(kind="AdamW", tensors=100, elements=6_400),), count=4)
    graph = replay_scene(run).graph
    dearer = [fuse_optimizer(graph, way, Draw(default_position=place)).host for place in (0.0, 0.5, 1.0)]
    cost_us = [(sum(host.before_ns.values()) + host.call_ns).sum() / 4 / 1e3 for host in dearer]
    assert least_us * 100 < cost_us[0] < cost_us[1] < cost_us[2] < 5 * least_us * 100 + 700


def test_never_is_it_slower_than_now():
    fast = [*MODEL, *[Kernel(ADD, 2, host_us=1, updates=True)] * 3, END]
    prediction = predict_rewrites(network(fast, gpu="A100"), "optimizer")
    assert prediction.likely_ns <= prediction.step_ns * 1.01


@pytest.mark.parametrize(
    ("kernels", "change", "why"),
    [
        ([*MODEL, END], "optimizer", "no optimizer step"),
        ([*MODEL, *[Kernel(FUSED, 50, updates=True)] * 3, END], "optimizer", "fused already"),
        ([*MODEL, *[Kernel(MULTI, 50, updates=True)] * 9, END], "optimizer=foreach", "foreach already"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_gain(kernels, change, why):
    with pytest.raises(RunError, match=why):
        predict_rewrites(network(kernels, gpu="A100"), change)


def test_an_optimizer_without_a_fused_form_is_sent_to_foreach():
    run = network(LOOP, gpu="A100", optimizers=(Optimizer(kind="RMSprop", tensors=20),))
    with pytest.raises(RunError, match="optimizer=foreach"):
        predict_rewrites(run, "optimizer=fused")
    assert predict_rewrites(run, "optimizer=foreach").speedup > 1


def test_from_foreach_to_fused_less_is_gained_than_from_a_loop():
    loop = network([*MODEL, *[Kernel(ADD, 20, host_us=2, updates=True)] * 240, END], gpu="A100")
    many = network([*MODEL, *[Kernel(MULTI, 400, host_us=2, updates=True)] * 12, END], gpu="A100")
    assert 1 < predict_rewrites(many, "optimizer").speedup < predict_rewrites(loop, "optimizer").speedup + 0.2


def updating_on_a_cpu(at):
    ops = [event(EventKind.OP, "aten::add_", at + 10 + 0.2 * place, 0.19) for place in range(200)]
    return [
        event(EventKind.OP, "aten::mm", at, 9.9),
        event(EventKind.ANNOTATION, "Optimizer.step#AdamW.step", at + 9.95, 40.1),
        *ops,
    ]


def test_on_a_cpu_foreach_is_refused_and_fused_is_told():
    run = run_of(stepped(updating_on_a_cpu, count=4, step_ms=51.0))
    prediction = predict_rewrites(run, "optimizer=fused")
    assert 1.1 < prediction.speedup < prediction.bound
    with pytest.raises(RunError, match="one by one"):
        predict_rewrites(run, "optimizer=foreach")


def test_a_v100_that_waits_for_its_host_gains_a_tenth(recorded):
    base = replay_scene(gpulab.load(recorded("v100_resnet50_workers0.json.gz")))
    prediction = predict(base, parse_changes("optimizer"), samples=20)
    assert 1.05 < prediction.speedup < 1.2
    update = optimizer_work(base.graph)
    assert update.kind == "SGD"
    assert update.implementation == "loop"
    assert 100 < update.tensors < 300  # a ResNet-50 has 161
    assert np.isfinite(update.tensors)
