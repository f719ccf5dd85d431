"""Larger batches and other GPUs: what grows, what stays, and measured steps of both."""

import csv
from operator import itemgetter

import numpy as np
import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.kernels.batch_size import batch, batch_factor
from gpulab.replay.rewrites.kernels.mixed_precision import amp
from gpulab.replay.rewrites.machine.other_gpu import move_to_gpu
from gpulab.run import Gpu, Loader
from gpulab.tables import EventKind
from tests.support.runs.made_networks import (
    ADD,
    HALF,
    SGEMM,
    Kernel,
    in_predicted_range,
    network,
    predict_rewrites,
    replay_scene,
)
from tests.support.runs.made_runs import GPUS, event, loader_call, run_of, stepped

END = Kernel("", 0, waits=True)
BUSY = [*[Kernel(SGEMM, 500), Kernel(ADD, 100)] * 20, END]
IDLE = [*[Kernel(ADD, 4, host_us=50)] * 40, END]


def test_twice_the_batch_takes_a_busy_gpu_twice_as_long_and_an_idle_one_no_longer():
    busy, idle = (predict_rewrites(network(kernels, gpu="A100"), "batch=x2") for kernels in (BUSY, IDLE))
    assert busy.likely_ns == pytest.approx(2 * busy.step_ns, rel=0.05)
    assert idle.likely_ns == pytest.approx(idle.step_ns, rel=0.05)
    assert busy.speedup == pytest.approx(1.0, abs=0.05)  # of the same number of samples
    assert idle.speedup == pytest.approx(2.0, abs=0.1)


def test_kernels_with_few_blocks_grow_less():
    few, many = (
        predict_rewrites(network([*[Kernel(SGEMM, 300, grid=blocks)] * 20, END], gpu="A100"), "batch=x4").likely_ns
        for blocks in (20, 4000)
    )
    assert few < 0.8 * many


def test_the_optimizer_does_not_grow():
    kernels = [Kernel(SGEMM, 300), *[Kernel(ADD, 200, updates=True)] * 5, END]
    graph = replay_scene(network(kernels, gpu="A100")).graph
    after = batch(graph, "x3", Draw())
    same = np.isclose(after.device.dur_ns, graph.device.dur_ns)
    assert same.reshape(6, 6).tolist() == [[False, True, True, True, True, True]] * 6


def test_loading_takes_as_many_times_as_long_and_calls_no_longer():
    def loading(at):
        return [loader_call(at, 40), event(EventKind.OP, "aten::mm", at + 41, 50), *small(at + 92)]

    def small(at):
        return [event(EventKind.OP, "aten::t", at + 0.01 * place, 0.009) for place in range(600)]

    graph = replay_scene(run_of(stepped(loading, count=4))).graph

    def grown(draw):
        after = batch(graph, "x2", draw)
        return {part: after.host.before_ns[part].sum() / max(1, ns.sum()) for part, ns in graph.host.before_ns.items()}

    best, middle = grown(Draw(default_position=0.0)), grown(Draw())
    assert best["loader"] == middle["loader"] == pytest.approx(2)
    assert best["compute"] == pytest.approx(1), "at best products are bound by their weights, whatever the batch"
    assert 1 < middle["compute"] < 2
    assert best["dispatch"] == pytest.approx(1)


def test_a_number_of_samples_is_told_by_the_loader():
    run = network(BUSY, gpu="A100", loaders=(Loader(workers=2, batch_size=32),))
    graph = replay_scene(run).graph
    assert batch_factor(graph, 128) == 4
    assert predict_rewrites(run, "batch=128").likely_ns == predict_rewrites(run, "batch=x4").likely_ns
    with pytest.raises(RunError, match="batch=x2"):
        predict_rewrites(network(BUSY, gpu="A100"), "batch=128")


@pytest.mark.parametrize("typed", ["batch=0", "batch=x0", "batch=two", "batch=-3", "batch=x"])
def test_what_is_no_batch_is_refused(typed):
    with pytest.raises(RunError):
        parse_changes(typed)


def test_the_same_gpu_changes_nothing():
    graph = replay_scene(network(BUSY, gpu="V100")).graph
    for place in (0.0, 1.0):
        assert (move_to_gpu(graph, "v100", Draw(default_position=place)).device.dur_ns == graph.device.dur_ns).all()


def test_a_faster_gpu_does_not_help_a_slow_host():
    prediction = predict_rewrites(network(IDLE, gpu="V100"), "gpu=h100")
    assert prediction.speedup == pytest.approx(1.0, abs=0.02)
    assert prediction.grade == "D"


def test_half_precision_after_a_change_of_gpu_is_priced_on_that_gpu():
    graph = replay_scene(network([Kernel(SGEMM, 50_000, op="aten::mm"), END], gpu="V100")).graph
    on_target = move_to_gpu(graph, "a100", Draw())
    gain = {"V100": graph, "A100": on_target}
    left = {name: amp(each, "fp16", Draw()).device.dur_ns[0] / each.device.dur_ns[0] for name, each in gain.items()}
    assert left["A100"] < 0.8 * left["V100"]  # 16 times as fast in half precision, not 8


@pytest.mark.parametrize(
    ("kernels", "recorded_gpu", "change", "why"),
    [(BUSY, "MI300", "gpu=h100", "MI300X"), ([Kernel(HALF, 300), END], "A100", "gpu=v100", "bfloat16")],
)
def test_another_gpu_is_refused_where_it_cannot_be_told(kernels, recorded_gpu, change, why):
    with pytest.raises(RunError, match=why):
        predict_rewrites(network(kernels, gpu=recorded_gpu), change)


def test_the_rewrite_takes_the_names_that_everything_else_takes():
    assert parse_changes("gpu=v100")[0].value == "v100"
    assert parse_changes("gpu=A100-SXM4-40GB")[0].value == "a100-sxm4-40gb"
    rewrite = parse_changes("gpu=h100")[0].rewrite
    listed = rewrite.value_help.partition(": ")[2].split(", ")
    assert [resolve(name) for name in listed] == list(SPECS)
    with pytest.raises(RunError, match=r"voodoo2[\s\S]*A100-80 SXM"):
        parse_changes("gpu=voodoo2")


@pytest.mark.parametrize("change", ["v100", "v100-32gb"])
def test_a_gpu_that_differs_in_memory_alone_changes_nothing(change):
    graph = replay_scene(network([Kernel(SGEMM, 50_000, op="aten::mm"), END], gpu="V100")).graph
    assert move_to_gpu(graph, change, Draw()) is graph


CARDS = {
    "Tesla_V100-PCIE-32GB": ("v100pcie", Gpu(index=0, name="Tesla V100-PCIE-32GB", multiprocessors=80)),
    "NVIDIA_A100-PCIE-40GB": ("a10040gb", Gpu(index=0, name="NVIDIA A100-PCIE-40GB", multiprocessors=108)),
    "Tesla_T4": ("t4", Gpu(index=0, name="Tesla T4", multiprocessors=40)),
}


@pytest.fixture(scope="module")
def measured(shared):
    """Steps of transformers in float32, as NeuSight's authors measured them: model, batch, mode, card, ms."""
    path = shared / "measured" / "transformer_latency.csv"
    if not path.exists():
        pytest.skip("the measured latencies are not here")
    with path.open() as lines:
        told_rows = list(csv.DictReader(lines))
    rows = [row for row in told_rows if row["device"] in CARDS and row["model"] != "switchxl4"]
    return [(row["model"], int(row["batch"]), row["mode"], row["device"], float(row["measured_ms"])) for row in rows]


def transformer(step_ms, card, monkeypatch):
    """A step of this length: products for four fifths of it, passes over memory for the rest."""
    monkeypatch.setitem(GPUS, card, CARDS[card][1])
    us = step_ms * 1e3 / 24
    layers = [Kernel(SGEMM, 0.8 * us), Kernel(ADD, 0.1 * us), Kernel(ADD, 0.1 * us)] * 24
    return network([*layers, END], gpu=card, count=4)


def test_steps_measured_on_another_gpu_lie_inside_the_range(measured, monkeypatch):
    pairs = [(one, other) for one in measured for other in measured if one[:3] == other[:3] and one[3] != other[3]]
    misses, errors = [], []
    for one, other in pairs:
        prediction = predict_rewrites(transformer(one[4], one[3], monkeypatch), f"gpu={CARDS[other[3]][0]}", samples=20)
        errors.append(abs(prediction.likely_ns / 1e6 / other[4] - 1))
        if not in_predicted_range(prediction, other[4] * 1e6):
            misses.append((one, other))
    assert len(pairs) > 30
    assert len(misses) <= 2
    assert np.median(errors) < 0.10


def test_steps_measured_with_another_batch_lie_inside_the_range(measured, monkeypatch):
    setup = itemgetter(0, 2, 3)
    pairs = [(a, b) for a in measured for b in measured if setup(a) == setup(b) and a[1] != b[1]]
    misses = []
    for one, other in pairs:
        prediction = predict_rewrites(
            transformer(one[4], one[3], monkeypatch), f"batch=x{other[1] / one[1]:g}", samples=20
        )
        if not in_predicted_range(prediction, other[4] * 1e6):
            misses.append((one, other))
    assert len(pairs) > 20
    assert len(misses) <= 2


def test_on_a_launch_bound_trace_a_larger_batch_is_nearly_free(recorded):
    base = replay_scene(gpulab.load(recorded("h100_bert_small_inference.json.gz")))
    prediction = predict(base, parse_changes("batch=x4"), samples=20)
    assert 2.5 < prediction.speedup <= 4
