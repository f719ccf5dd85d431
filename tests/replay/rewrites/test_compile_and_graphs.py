"""torch.compile and CUDA graphs: fewer passes over memory, fewer calls, one call for all."""

from dataclasses import replace

import numpy as np
import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.host.cuda_graphs import capturable_regions, cuda_graphs
from gpulab.replay.rewrites.kernels.compile import compile_, fusable_chains
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_networks import (
    ADD,
    HALF,
    LAYER_NORM,
    RELU,
    SGEMM,
    SOFTMAX,
    Kernel,
    in_predicted_range,
    network,
    predict_rewrites,
    replay_scene,
)
from tests.support.runs.made_runs import event, run_of, stepped

END = Kernel("", 0, waits=True)
TRITON = "triton_poi_fused_add_mul_0"
DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float>"
TINY = [*[Kernel(ADD, 3, host_us=40)] * 60, END]


def chain_lengths(kernels):
    graph = replay_scene(network(kernels, count=4, gpu="A100")).graph
    fusable = fusable_chains(graph)
    lengths = np.diff(np.append(fusable.first, len(fusable.ops)))
    return lengths[: len(lengths) // 4].tolist()


def test_passes_in_a_row_are_one_chain_and_a_product_ends_it():
    assert chain_lengths([*[Kernel(ADD, 9)] * 4, Kernel(SGEMM, 9), *[Kernel(RELU, 9)] * 2, END]) == [4, 2]


def test_a_wait_of_the_host_ends_a_chain():
    assert chain_lengths([*[Kernel(ADD, 9)] * 3, END, *[Kernel(ADD, 9)] * 2, END]) == [3, 2]


def test_the_optimizer_is_in_no_chain():
    assert chain_lengths([*[Kernel(ADD, 9)] * 3, *[Kernel(ADD, 9, updates=True)] * 5, END]) == [3]


def test_a_chain_takes_at_least_its_longest_pass_and_at_most_all_of_them():
    graph = replay_scene(network([Kernel(ADD, 50), Kernel(RELU, 100), Kernel(ADD, 50), END], gpu="A100")).graph
    for place in (0.0, 0.5, 1.0):
        after = compile_(graph, True, Draw(default_position=place)).device.dur_ns
        assert 0.85 * 100_000 <= after[:3].sum() <= 1.1 * 200_000
        assert (after[1:3] == 0).all()


def test_code_that_waits_for_its_host_gains_most():
    prediction = predict_rewrites(network(TINY, gpu="A100"), "compile")
    assert prediction.speedup > 4
    products = [*[Kernel(SGEMM, 500)] * 20, END]
    assert predict_rewrites(network(products, gpu="A100"), "compile").speedup == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    ("kernels", "why"),
    [([Kernel(TRITON, 100), END], "compiled already"), ([Kernel(ADD, 50, updates=True), END], "forward or backward")],
)
def test_compiling_is_refused_where_it_cannot_be_told(kernels, why):
    with pytest.raises(RunError, match=why):
        predict_rewrites(network(kernels, gpu="A100"), "compile")


def nano_gpt():
    """A step of nanoGPT (GPT-2 small, 12 x 1024 tokens, bfloat16, attention written out) on an A100, by its sizes."""
    flops, rate = 312e12 * 0.55, 1555e9 * 0.82  # what products and passes reach there: whatif.md, 3g
    tokens, width, vocabulary = 12 * 1024, 768, 50304
    scores, wide = 12 * 12 * 1024 * 1024, tokens * width

    def product(operations):
        return Kernel(HALF, operations / flops * 1e6, host_us=10, op="aten::mm")

    def passes(name, moved_bytes):
        return Kernel(name, moved_bytes / rate * 1e6, host_us=6)

    attention = [
        product(2 * scores * 64), passes(ADD, 4 * scores), passes(ADD, 4 * scores), passes(SOFTMAX, 6 * scores),
        passes(DROPOUT, 9 * scores), passes(ADD, 6 * scores), product(2 * scores * 64),
    ]  # fmt: skip
    norm = [passes(LAYER_NORM, 8 * wide), passes(ADD, 6 * wide)]
    rest = [passes(DROPOUT, 5 * wide), passes(ADD, 10 * wide)]
    layer = [
        *norm, product(6 * wide * width), *[passes(ADD, 4 * wide)] * 3, *attention, passes(ADD, 4 * wide),
        product(2 * wide * width), *rest, *norm, product(8 * wide * width),
        *[passes(ADD, 20 * wide)] * 8,  # GELU, written out
        product(8 * wide * width), *rest,
    ]  # fmt: skip
    once = (DROPOUT, LAYER_NORM)  # the others have two gradients
    backward = [Kernel(k.name, k.us * (1.5 if k.name in once else 2), 6 if k.us < 1e3 else 10) for k in layer[::-1]]
    logits = [passes(ADD, 6 * tokens * vocabulary), *[passes(SOFTMAX, 8 * tokens * vocabulary)] * 2]
    head = [product(2 * wide * vocabulary), *logits, *[product(2 * wide * vocabulary)] * 2]
    updates = [Kernel("void at::native::multi_tensor_apply_kernel<FusedAdam>", 465, updates=True)] * 6
    return [*layer * 12, *head, *backward * 12, *updates]


def test_nano_gpt_by_its_sizes_is_compiled_to_within_the_range_that_was_measured():
    # Its README: 250 ms a step, 135 ms compiled.
    prediction = predict_rewrites(network(nano_gpt(), gpu="A100", count=5), "compile")
    assert prediction.step_ns == pytest.approx(250e6, rel=0.1)
    assert in_predicted_range(prediction, prediction.step_ns * 135 / 250)


def operator(name, start_ms, dur_ms):
    return event(EventKind.OP, name, start_ms, dur_ms)


def test_on_a_cpu_calls_become_few_and_products_stay():
    def calling(at):
        return [operator("aten::add", at + 0.01 * place, 0.008) for place in range(9900)]

    def computing(at):
        return [operator("aten::mm", at + place, 0.99) for place in range(100)]

    few, many = (predict_rewrites(run_of(stepped(step, count=4)), "compile") for step in (computing, calling))
    assert many.speedup > 1.5
    assert few.speedup == pytest.approx(1.0, abs=0.05)


def test_a_graph_of_a_step_that_waits_for_its_host_takes_what_the_gpu_takes():
    prediction = predict_rewrites(network(TINY, gpu="A100"), "cuda_graphs")
    gpu_us = 60 * (3 + 1) + 7
    assert gpu_us - 10 < prediction.likely_ns / 1e3 < gpu_us + 100
    assert prediction.speedup > 5


def test_on_a_gpu_that_is_always_busy_a_graph_gains_nothing():
    prediction = predict_rewrites(network([*[Kernel(SGEMM, 200)] * 30, END], gpu="A100"), "cuda_graphs")
    assert prediction.speedup == pytest.approx(1.0, abs=0.03)


def test_a_wait_at_the_end_of_a_step_is_outside_its_graph():
    graph = replay_scene(network(TINY, gpu="A100")).graph
    region = capturable_regions(graph)
    assert (region.captured == 60).all()
    assert len(region.first_nodes) == 6
    after = cuda_graphs(graph, True, Draw())
    assert (after.host.awaited_op == graph.host.awaited_op).all()


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (Kernel("", 0, waits=True), "cudaStreamSynchronize"),
        (Kernel("Memcpy HtoD (Pageable -> Device)", 5, kind=EventKind.MEMCPY), "cudaMemcpyAsync"),
        (Kernel(ADD, 3, host_us=6000, python=True), "cudaLaunchKernel"),  # 6 ms of Python before a call
    ],
)
def test_a_graph_is_refused_where_something_stands_in_the_middle_of_the_step(between, why):
    half = [Kernel(ADD, 3, host_us=40)] * 30
    with pytest.raises(RunError, match=why):
        predict_rewrites(network([*half, between, *half, END], gpu="A100"), "cuda_graphs")


def without(run, mask):
    """The run without some events."""
    keep = np.flatnonzero(~mask)
    place = np.cumsum(~mask) - 1
    grids = run.grid_rows
    remaining_grids = type(grids)(grids.table, {**grids.columns, "event": place[grids["event"]].astype(np.int32)})
    return replace(run, event_rows=run.event_rows.select(keep), grid_rows=remaining_grids)


def test_a_graph_is_refused_where_the_work_differs_from_step_to_step():
    run = network([*[Kernel(ADD, 3)] * 30, END], gpu="A100", count=5)
    kernels = np.flatnonzero(run.event_rows["kind"] == EventKind.KERNEL)
    calls = np.flatnonzero(run.event_rows["kind"] == EventKind.LAUNCH)
    removed = np.zeros(len(run.event_rows), bool)
    removed[[kernels[70], calls[70]]] = True
    with pytest.raises(RunError, match="differs from step to step"):
        predict_rewrites(without(run, removed), "cuda_graphs")


def test_compiled_and_in_a_graph_a_step_is_no_longer_than_either():
    base = replay_scene(network([*[Kernel(ADD, 10, host_us=30)] * 30, END], gpu="A100"))
    both, fused, graphed = (
        predict(base, parse_changes(changes), samples=20).likely_ns
        for changes in ("cuda_graphs compile", "compile", "cuda_graphs")
    )
    assert both <= min(fused, graphed) * 1.01


def test_the_graphs_of_a_compiled_model_do_not_contain_the_optimizer():
    updates = [Kernel(ADD, 3, host_us=40, updates=True)] * 40
    base = replay_scene(network([*[Kernel(SGEMM, 3, host_us=40)] * 40, *updates, END], gpu="A100"))
    compiled, graphed = (
        predict(base, parse_changes(changes), samples=20) for changes in ("compile cuda_graphs", "cuda_graphs")
    )
    updates_ns = sum(kernel.host_us for kernel in updates) * 1e3
    assert compiled.best_ns > 0.7 * updates_ns > 2 * graphed.likely_ns


@pytest.mark.parametrize("changes", ["compile", "cuda_graphs"])
@pytest.mark.parametrize(("name", "least"), [("h100_bert_small_inference", 2.5), ("b200_eager", 3.5)])
def test_launch_bound_inference_gains_several_times(recorded, changes, name, least):
    prediction = predict(replay_scene(gpulab.load(recorded(f"{name}.json.gz"))), parse_changes(changes), samples=20)
    assert least < prediction.speedup <= prediction.bound


def test_a_gpu_bound_v100_gains_nothing_by_graphs_and_something_by_fusion(recorded):
    base = replay_scene(gpulab.load(recorded("v100_ns_resolution.json.gz")))
    assert predict(base, parse_changes("cuda_graphs"), samples=20).speedup == pytest.approx(1.0, abs=0.02)
    assert 1.05 < predict(base, parse_changes("compile"), samples=20).speedup < 1.3


def test_what_is_compiled_is_refused(recorded):
    with pytest.raises(RunError, match="compiled already"):
        predict(replay_scene(gpulab.load(recorded("mi300_compiled_triton.json.gz"))), parse_changes("compile"))


def test_python_between_steps_is_not_compiled_away():
    run = network(TINY, gpu="A100")
    graph = replay_scene(run).graph
    python = sweep(compile_(graph, True, Draw())).graph.host.before_ns["python"]
    assert (python == graph.host.before_ns["python"]).all()
