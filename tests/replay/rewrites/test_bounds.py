"""Laws of every rewrite that a model of the hardware prices: bounds, order, and no time below zero."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gpulab
from gpulab.errors import RunError
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict, refusal_reason
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_networks import (
    ADD,
    BATCH_NORM,
    CONV,
    HALF,
    LAYER_NORM,
    RELU,
    SGEMM,
    SOFTMAX,
    TF32,
    TRANSPOSE,
    Kernel,
    network,
    replay_scene,
)
from tests.support.tiers import examples

CHANGES = (
    *("amp=bf16", "amp=fp16", "tf32", "channels_last", "compile", "cuda_graphs", "optimizer=fused"),
    *("optimizer=foreach", "batch=x2", "batch=x0.5", "gpu=v100", "gpu=h100", "gpu=t4"),
)
UNKNOWNS = (
    *("amp_matrix", "amp_stream", "amp_efficiency", "amp_casts", "amp_cast", "amp_cast_call", "amp_cast_traffic"),
    *("amp_check", "amp_scaler", "amp_unscale", "tf32_matrix", "layout_tensor", "layout_plain", "compile_kept"),
    *("compile_written", "compile_kernel", "compile_entered", "graph_launch", "graph_turn", "optimizer_host"),
    *("optimizer_tensor", "optimizer_launch", "optimizer_kernel", "optimizer_rate", "optimizer_share", "batch_grown"),
    *("batch_power", "batch_python", "gpu_reached", "gpu_bound", "gpu_linked"),
)
NAMES = (SGEMM, CONV, HALF, TF32, ADD, RELU, BATCH_NORM, LAYER_NORM, SOFTMAX, TRANSPOSE)
MEASURED_NS = 2_000  # two nanoseconds in a thousand stops are rounding

kernels = st.builds(
    Kernel,
    name=st.sampled_from(NAMES),
    us=st.floats(0.5, 900),
    host_us=st.floats(0.5, 200),
    python=st.booleans(),
    op=st.sampled_from([None, "aten::mm", "aten::conv2d"]),
    grid=st.sampled_from([-1, 10, 5000]),
)
copies = st.just(Kernel("Memcpy HtoD (Pageable -> Device)", 30, kind=EventKind.MEMCPY))
waits = st.just(Kernel("", 0, waits=True))
updates = st.builds(Kernel, name=st.just(ADD), us=st.floats(0.5, 90), host_us=st.floats(0.5, 60), updates=st.just(True))
loops = st.tuples(
    st.lists(st.one_of(kernels, kernels, kernels, kernels, copies, waits), min_size=1, max_size=14),
    st.lists(updates, max_size=6),
    st.sampled_from(["V100", "A100", "H100"]),
).map(lambda original: ([*original[0], *original[1], Kernel("", 0, waits=True)], original[2]))


def base(loop):
    return replay_scene(network(loop[0], gpu=loop[1], count=5))


def tellable(ready_, text):
    return [each for each in parse_changes(text) if each.rewrite.refusal_reason(ready_.graph, each.value) is None]


def after(ready_, some, draw):
    graph = ready_.graph
    for change in some:
        graph = change.rewrite.edit(graph, change.value, draw)
    return graph


def costs(graph):
    host, device = graph.host, graph.device
    return [
        host.call_ns,
        host.return_delay_ns,
        *(ns for part, ns in host.before_ns.items() if part != "overlap"),
        device.dur_ns,
    ]


@examples(25)
@given(loops, st.sampled_from(CHANGES), st.integers(0, 1000))
def test_no_cost_is_negative_or_not_a_number(loop, text, seed):
    original = base(loop)
    for draw in (Draw(), Draw(default_position=0.0), Draw(default_position=1.0), Draw(number=seed % 40, count=40)):
        for change in tellable(original, text):
            for graph in (
                change.rewrite.edit(original.graph, change.value, draw),
                change.rewrite.best_case(original.graph, change.value),
            ):
                assert all(np.isfinite(cost).all() and (cost >= 0).all() for cost in costs(graph))
                assert sweep(graph).step_ns >= 0


@examples(25)
@given(loops, st.sampled_from(CHANGES), st.integers(0, 1000))
def test_no_draw_beats_the_ceiling(loop, text, seed):
    original = base(loop)
    for change in tellable(original, text):
        floor_ns = sweep(change.rewrite.best_case(original.graph, change.value)).step_ns
        for draw in (Draw(default_position=0.0), Draw(), Draw(default_position=1.0), Draw(number=seed % 40, count=40)):
            assert sweep(change.rewrite.edit(original.graph, change.value, draw)).step_ns >= floor_ns - MEASURED_NS


@examples(25)
@given(loops, st.sampled_from(CHANGES), st.sampled_from(UNKNOWNS), st.integers(0, 1000))
def test_a_worse_draw_of_one_unknown_makes_no_step_shorter(loop, text, unknown, seed):
    original = base(loop)
    some = tellable(original, text)
    rest = Draw(number=seed % 40, count=40)
    steps_ns = [
        sweep(after(original, some, Draw(positions={unknown: place}, number=rest.number, count=40))).step_ns
        for place in (0.0, 0.5, 1.0)
    ]
    assert all(one <= other + MEASURED_NS for one, other in pairwise(steps_ns))


@examples(15)
@given(loops, st.lists(st.sampled_from(CHANGES), min_size=2, max_size=4, unique_by=lambda word: word.partition("=")[0]))
def test_the_order_in_which_changes_are_typed_does_not_matter(loop, names):
    original = base(loop)
    names = [word for word in names if tellable(original, word)]
    # What the GPU asked for has no units for cannot be told with it, in whichever order it is typed.
    assume(all(refusal_reason(original, parse_changes(" ".join(some))) is None for some in (names, names[::-1])))
    one, other = (predict(original, parse_changes(" ".join(some)), samples=3) for some in (names, names[::-1]))
    assert (one.likely_ns, one.best_ns, one.worst_ns, one.floor_ns) == (
        other.likely_ns,
        other.best_ns,
        other.worst_ns,
        other.floor_ns,
    )
    assert one.floor_ns <= one.best_ns <= one.likely_ns <= one.worst_ns


@examples(15)
@given(loops, st.sampled_from(["compile", "cuda_graphs", "optimizer=fused", "tf32"]), st.integers(0, 1000))
def test_what_only_takes_away_makes_a_step_hardly_longer(loop, text, seed):
    # Compiled code costs up to 80 us a graph, a CUDA graph up to 30 us, a fused kernel up to 10 % more.
    original = base(loop)
    now_ns = sweep(original.graph).step_ns
    changed = sweep(after(original, tellable(original, text), Draw(number=seed % 40, count=40))).step_ns
    graphs = 1 + sum(kernel.waits for kernel in loop[0])
    assert changed <= 1.1 * now_ns + 80_000 * graphs + MEASURED_NS


@pytest.fixture(scope="module", params=["v100_ns_resolution", "v100_resnet50_workers0", "h100_bert_small_inference"])
def trace(request, recorded):
    return replay_scene(gpulab.load(recorded(f"{request.param}.json.gz")))


@pytest.mark.parametrize("text", [*CHANGES, "amp=fp16 compile optimizer cuda_graphs", "gpu=h100 batch=x2 compile"])
def test_on_recorded_traces_bounds_hold_and_worse_draws_are_worse(trace, text):
    if len(tellable(trace, text)) < len(parse_changes(text)):
        with pytest.raises(RunError):
            predict(trace, parse_changes(text), samples=3)
        return
    some = parse_changes(text)
    floor = trace.graph
    for change in some:
        floor = change.rewrite.best_case(floor, change.value)
    steps_ns = [sweep(after(trace, some, Draw(default_position=place))).step_ns for place in (0.0, 0.5, 1.0)]
    # All that ends, ends later; a step is a difference, and work left over from the one before may move between them.
    allowed = MEASURED_NS + 0.001 * steps_ns[2]
    assert sweep(floor).step_ns <= steps_ns[0] + allowed
    assert all(one <= other + allowed for one, other in pairwise(steps_ns))


@pytest.mark.parametrize("text", [*CHANGES, "amp"])
def test_what_is_to_be_typed_is_python(text):
    graph = replay_scene(network([Kernel(CONV, 50), Kernel(ADD, 9, updates=True), Kernel("", 0, waits=True)])).graph
    for change in parse_changes(text):
        if change.rewrite.code is not None:
            compile(change.rewrite.code(graph, change.value), text, "exec")


def test_every_rewrite_has_a_page_and_says_what_it_costs():
    for name in ("amp", "tf32", "channels_last", "compile", "cuda_graphs", "optimizer", "batch", "gpu"):
        page = BY_NAME[name].edit.__doc__
        assert page is not None
        for word in ("Models:", "Priced from:", "Cannot know:"):
            assert word in page, f"{name} does not say {word}"
