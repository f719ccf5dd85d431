"""Half precision and TF32: faster where the GPU multiplies, not where the host calls, refused where it cannot be."""

import numpy as np
import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.hardware.precision import Precision, precision_speedup
from gpulab.replay.graph.graph import NONE
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.kernels.mixed_precision import amp
from gpulab.replay.rewrites.kernels.tf32 import tf32
from tests.support.runs.made_networks import (
    ADD,
    BATCH_NORM,
    CONV,
    HALF,
    LAYER_NORM,
    SGEMM,
    SOFTMAX,
    TF32,
    TRANSPOSE,
    Kernel,
    network,
    predict_rewrites,
    replay_scene,
)
from tests.support.runs.made_runs import GPUS

END = Kernel("", 0, waits=True)
PRODUCTS = [*[Kernel(SGEMM, 900, op="aten::addmm"), Kernel(ADD, 120)] * 15, END]
SMALL = [*[Kernel(SGEMM, 6, host_us=40, op="aten::addmm"), Kernel(ADD, 2, host_us=40)] * 15, END]
STEP = [
    *[Kernel(CONV, 500, op="aten::cudnn_convolution"), Kernel(BATCH_NORM, 150), Kernel(SOFTMAX, 100)] * 10,
    *[Kernel(ADD, 50, updates=True)] * 8,
    END,
]


def edit(change, run, value=True, draw=None):
    graph = replay_scene(run).graph
    return graph, change(graph, value, draw or Draw())


def of_name(graph, name):
    names = graph.run.event_rows.text("name")
    return np.array([names[event] == name for event in graph.device.event.tolist()])


def test_products_in_float32_gain_on_tensor_cores():
    prediction = predict_rewrites(network(PRODUCTS, gpu="V100"), "amp")
    assert 1.8 < prediction.speedup < 8 < prediction.bound
    assert prediction.grade == "C"


def test_the_bound_is_what_sizes_say_and_no_ratio_of_peaks():
    # 11.3 GFLOP take 90 us at 125 TFLOP/s; 48.6 MB become 24.3, of which 6 MiB may lie in the cache: 20 us at 900 GB/s.
    sized = [
        *[
            Kernel(SGEMM, 900, op="aten::mm", shapes=[[2048, 1024], [1024, 2688]]),
            Kernel(ADD, 120, op="aten::add", shapes=[[4096, 2966]]),
        ]
        * 15,
        END,
    ]
    prediction = predict_rewrites(network(sized, gpu="V100"), "amp")
    arithmetic_us, memory_us = 2 * 2048 * 1024 * 2688 / 125e6, (4096 * 2966 * 2 - 6 * 2**20) / 900e3
    assert prediction.bound == pytest.approx((900 + 120 + 2) / (arithmetic_us + memory_us), rel=0.01)


def test_without_sizes_nothing_but_the_host_bounds_half_precision():
    run = network(PRODUCTS, gpu="V100")
    assert predict_rewrites(run, "amp").floor_ns == pytest.approx(
        predict_rewrites(run, "instant_gpu").floor_ns, rel=0.01
    )


def test_launch_bound_code_gains_nothing_and_may_lose():
    prediction = predict_rewrites(network(SMALL, gpu="V100"), "amp")
    assert 0.7 < prediction.speedup <= 1.0
    assert prediction.bound == pytest.approx(1.0, abs=0.02)


def test_the_more_a_gpu_computes_in_half_precision_the_more_it_gains():
    gains = {gpu: predict_rewrites(network(PRODUCTS, gpu=gpu), "amp").speedup for gpu in ("3090", "V100", "A100")}
    ratios = {gpu: precision_speedup(GPUS[gpu], Precision.HALF, Precision.FLOAT32) for gpu in gains}
    assert sorted(gains, key=gains.get) == sorted(ratios, key=ratios.get) == ["3090", "V100", "A100"]


def test_what_is_in_tf32_already_gains_less_than_what_is_in_float32():
    faster = [Kernel(TF32, each.us, op=each.op) if each.name == SGEMM else each for each in PRODUCTS]
    assert (
        predict_rewrites(network(faster, gpu="A100"), "amp").speedup
        < predict_rewrites(network(PRODUCTS, gpu="A100"), "amp").speedup
    )


def test_autocast_leaves_softmax_norms_and_the_optimizer_alone():
    kernels = [*STEP[:-1], Kernel(LAYER_NORM, 80), END]
    before, after = edit(amp, network(kernels, gpu="A100"))
    unchanged = of_name(before, SOFTMAX) | of_name(before, LAYER_NORM)
    unchanged |= of_name(before, ADD)  # here only the optimizer adds
    assert (after.device.dur_ns[unchanged] == before.device.dur_ns[unchanged]).all()
    changed = of_name(before, CONV) | of_name(before, BATCH_NORM)
    assert (after.device.dur_ns[changed] < before.device.dur_ns[changed]).all()


def test_casts_cost_the_host_something_for_each_product():
    before, after = edit(amp, network(PRODUCTS, gpu="A100"))
    added = after.host.before_ns["dispatch"] - before.host.before_ns["dispatch"]
    assert (added >= 0).all()
    assert np.count_nonzero(added) == of_name(before, SGEMM).sum()


def test_float16_waits_once_a_step_for_its_scaler_and_bfloat16_does_not():
    run = network(STEP, gpu="A100", count=6)
    before, half = edit(amp, run, "fp16")
    _, brain = edit(amp, run, "bf16")
    waits = [int((graph.host.awaited_op != NONE).sum()) for graph in (before, half, brain)]
    assert waits == [6, 12, 6]


def test_without_an_optimizer_there_is_no_scaler():
    before, half = edit(amp, network(PRODUCTS, gpu="V100"), "fp16")
    assert (half.host.awaited_op == before.host.awaited_op).all()


def test_by_default_it_is_bfloat16_where_the_gpu_has_it():
    old, new = network(STEP, gpu="V100"), network(STEP, gpu="A100")
    assert (edit(amp, old)[1].host.awaited_op == edit(amp, old, "fp16")[1].host.awaited_op).all()
    assert (edit(amp, new)[1].host.awaited_op == edit(amp, new, "bf16")[1].host.awaited_op).all()


def test_a_product_of_known_size_takes_what_its_arithmetic_takes():
    # 8192 x 8192 x 8192: 1.1 TFLOP, 3.5 ms at the peak of an A100's tensor cores and 56 ms at that of its plain ones.
    sized = Kernel(SGEMM, 66_000, op="aten::mm", shapes=[[8192, 8192], [8192, 8192]])
    graph = replay_scene(network([sized, END], gpu="A100")).graph
    for place, share in ((0.0, 0.65), (1.0, 0.25)):
        after = amp(graph, "bf16", Draw(default_position=place))
        least = 2 * 8192**3 / (312e12 * share) * 1e9
        assert least <= after.device.dur_ns[0] <= 1.1 * max(least, 66e6 / 16) + 20_000


@pytest.mark.parametrize(
    ("kernels", "gpu", "change", "why"),
    [
        ([Kernel(HALF, 900), Kernel(ADD, 100), END], "A100", "amp", "already"),
        ([Kernel(ADD, 100), END], "A100", "amp", "no matrix products"),
        (PRODUCTS, "V100", "amp=bf16", "amp=fp16"),
        (PRODUCTS, "MI300", "amp", "AMD"),
        (PRODUCTS, "V100", "tf32", "float32"),
        (PRODUCTS, "3090", "tf32", "float32"),  # a GeForce's are as fast as its plain ones
        ([Kernel(CONV, 500), END], "A100", "tf32", "apart from convolutions"),
        ([Kernel(TF32, 500), END], "A100", "tf32", "apart from convolutions"),
        ([Kernel(SGEMM, 500), END], "A100", "channels_last", "no convolutions"),
    ],
)
def test_it_is_refused_where_it_cannot_be_told(kernels, gpu, change, why):
    with pytest.raises(RunError, match=why):
        predict_rewrites(network(kernels, gpu=gpu), change)


def test_tf32_that_is_on_already_is_refused():
    run = network(PRODUCTS, gpu="A100", facts={"float32_matmul_precision": "high"})
    with pytest.raises(RunError, match="enabled already"):
        predict_rewrites(run, "tf32")


def test_tf32_makes_products_faster_and_convolutions_not():
    kernels = [*[Kernel(SGEMM, 500, op="aten::mm"), Kernel(CONV, 500, op="aten::conv2d")] * 10, END]
    before, after = edit(tf32, network(kernels, gpu="A100"))
    convolves = of_name(before, CONV)
    assert (after.device.dur_ns[convolves] == before.device.dur_ns[convolves]).all()
    assert (after.device.dur_ns[~convolves] < before.device.dur_ns[~convolves] / 2).all()


def test_after_half_precision_tf32_has_nothing_left_to_gain():
    run = network(PRODUCTS, gpu="A100")
    both, one = (predict_rewrites(run, change).likely_ns for change in ("tf32 amp", "amp"))
    assert both == one


def test_channels_last_takes_conversions_away():
    kernels = [*[Kernel(TRANSPOSE, 200), Kernel(CONV, 500, op="aten::conv2d")] * 10, END]
    prediction = predict_rewrites(network(kernels, gpu="A100"), "channels_last")
    assert prediction.likely_ns == pytest.approx(prediction.step_ns * 5 / 7, rel=0.1)


@pytest.fixture
def trace(recorded):
    """A recorded run made ready for what-ifs, by its name."""
    return lambda name: replay_scene(gpulab.load(recorded(f"{name}.json.gz")))


def test_a_v100_98_percent_busy_becomes_about_twice_as_fast(trace):
    prediction = predict(trace("v100_ns_resolution"), parse_changes("amp"), samples=40)
    assert 1.9 < prediction.speedup < 2.5


@pytest.mark.parametrize("name", ["v100_resnet50_workers0", "v100_resnet50_workers4"])
def test_a_v100_that_waits_for_its_host_gains_nothing(trace, name):
    prediction = predict(trace(name), parse_changes("amp"), samples=20)
    assert 0.85 < prediction.speedup < 1.05


@pytest.mark.parametrize("name", ["v100_ns_resolution", "v100_resnet50_workers0", "v100_resnet50_workers4"])
def test_where_the_gpu_limits_the_range_holds_what_was_published_for_resnet_50_on_v100(trace, name):
    # NVIDIA's DeepLearningExamples: 3.26 times as fast, with a host and a loader that keep up, channels last.
    base = trace(name)
    fast = predict(base, parse_changes("instant_host"), samples=20).likely_ns
    prediction = predict(base, parse_changes("instant_host amp"), samples=60)
    assert fast / prediction.worst_ns < 3.26 < fast / prediction.best_ns


@pytest.mark.parametrize("name", ["h100_bert_small_inference", "h100_timesformer_inference", "b200_eager"])
def test_what_runs_in_half_precision_is_refused(trace, name):
    with pytest.raises(RunError, match="in half precision already"):
        predict(trace(name), parse_changes("amp"))


def test_products_in_float64_are_refused():
    with pytest.raises(RunError, match="none of its matrix products is in float32"):
        predict_rewrites(network([Kernel("volta_dgemm_128x64_nn", 500), END], gpu="V100"), "amp")


def test_fused_attention_of_cudnn_is_no_convolution():
    attention = Kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", 500)
    with pytest.raises(RunError, match="no convolutions"):
        predict_rewrites(network([attention, END], gpu="H100"), "channels_last")
