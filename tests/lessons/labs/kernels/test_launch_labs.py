"""Facts about what notebook 12 imports: exact counts, an oracle in plain numbers, laws of the grid."""

from __future__ import annotations

import numpy as np
import pytest

import gpulab
from gpulab.errors import GpulabError
from gpulab.lessons.course import lesson
from gpulab.lessons.labs.host import launches
from gpulab.lessons.labs.kernels import fusion
from tests.support.runs.made_runs import run_of

torch = pytest.importorskip("torch")


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3))))


def test_a_formula_of_eight_operators_moves_eighteen_times_its_input():
    x = torch.ones(1000)
    traffic = fusion.operator_traffic(lambda: gelu(x))
    # Six of the eight read one tensor and write one; the sum and the last product read two.
    assert (traffic.operators, traffic.bytes) == (8, 4 * 1000 * (6 * 2 + 2 * 3))
    fused = fusion.operator_traffic(lambda: torch.nn.functional.gelu(x, approximate="tanh"))
    assert (fused.operators, fused.bytes) == (1, 4 * 1000 * 2)
    assert fused.by_name == {"gelu": 1}


def test_views_and_allocations_are_no_traffic():
    x = torch.ones(4, 4)
    assert fusion.operator_traffic(lambda: (x.t(), x.view(16), torch.empty(3))).operators == 0


def test_an_adam_step_in_its_three_ways():
    counts = {}
    for way in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        optimizer = torch.optim.Adam(launches.square_parameters(100, 4, "cpu"), lr=1e-3, **way)
        optimizer.step()  # makes its states
        counts[next(iter(way.items()))] = (
            fusion.count_dispatches(optimizer.step),
            fusion.operator_traffic(optimizer.step),
        )
    loop, foreach, fused = counts["foreach", False], counts["foreach", True], counts["fused", True]
    assert 700 <= loop[0] <= 1400
    assert 700 <= loop[1].launches <= 1200
    assert 5 <= foreach[1].launches <= 40
    assert foreach[0] < loop[0] / 3
    assert 1 <= fused[1].launches <= 4
    assert fused[0] <= 10


def test_the_three_ways_give_the_same_parameters():
    results = []
    for way in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        parameters = launches.square_parameters(5, 4, "cpu")
        optimizer = torch.optim.Adam(parameters, lr=1e-2, **way)
        for _ in range(3):
            optimizer.step()
        results.append([each.detach() for each in parameters])
    for one, other, third in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)


def test_reading_a_value_or_printing_cuts_a_graph_in_two():
    def reading(x):
        y = torch.tanh(x)
        return y * y.sum().item()

    def printing(x):
        y = torch.tanh(x)
        print("here")  # noqa: T201
        return y * y.sum()

    def quiet(x):
        y = torch.tanh(x)
        return y * y.sum()

    x = torch.ones(8)
    for noisy in (reading, printing):
        result = fusion.count_graphs(noisy, x)
        assert (result.graphs, result.breaks) == (2, 1)
        assert result.reason
    result = fusion.count_graphs(quiet, x)
    assert (result.graphs, result.breaks, result.reason) == (1, 0, "")


def test_break_even_is_compile_time_divided_by_gain_per_call():
    assert fusion.break_even(1.0, 3.0, 1.0) == 500
    assert fusion.break_even(1.0, 1.3, 1.0) == 3334
    assert 5000 < fusion.STORED_TIMING.break_even < 5500
    with pytest.raises(GpulabError, match="Compiling"):
        fusion.break_even(1.0, 1.0, 1.0)


@pytest.mark.parametrize("programs", [1, 5, 132, 200])
def test_a_persistent_loop_does_every_tile_once(programs):
    tiles = 150
    done = np.zeros(tiles, int)

    def loop(program, done):
        program.load()
        for tile in range(program.index, tiles, program.programs):
            done[tile] += 1

    grid = launches.KernelGrid(np.ones(3))
    grid.launch(loop, programs, done)
    assert (done == 1).all()
    assert (grid.launches, grid.programs, grid.loads) == (1, programs, programs)


def test_a_program_loads_its_own_copy_of_the_table():
    table = np.ones(3)

    def greedy(program):
        program.load()[:] = 0

    launches.KernelGrid(table).launch(greedy, 2)
    assert (table == 1).all()


def test_a_refused_prediction_gives_the_reason():
    assert launches.predicted_step(run_of(), "cuda_graphs").startswith("no prediction: ")


def test_a_preallocated_cache_gives_the_same_tokens_as_a_growing_one():
    texts = []
    for growing in (False, True):
        model, token = (
            launches.token_decoder("cpu", width=32, depth=2, capacity=32, growing_cache=growing),
            torch.tensor([7]),
        )
        text = []
        with torch.inference_mode():
            for _ in range(16):
                token = model(token)
                text.append(token.item())
        texts.append(text)
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_keywords_that_adam_rejects_give_no_options():
    for wrong in (None, "fused", {"compile": True}, {"foreach": True, "fused": True}):
        assert launches.valid_adam_options(wrong) == {}
    assert launches.valid_adam_options({"foreach": True}) == {"foreach": True}


def test_the_keyword_of_adam_is_distinguished_from_similar_ones():
    question = lesson("12_launch_fusion_graphs").find_question("keyword")
    assert question.find_problem({"fused": True}) is None
    assert "lists" in question.find_problem({"foreach": True})
    assert "True" in question.find_problem({"fused": False})
    assert "no such keyword" in question.find_problem({"compile": True})
    assert "one keyword" in question.find_problem("fused")


def test_batches_come_late():
    late = launches.SlowTokenBatches(pause_s=0.0, count=3)
    assert len(late) == 3
    assert late[2].tolist()[:2] == [2, 2]


def test_launch_signatures_are_compared_in_rows():
    with gpulab.virtual_gpu("h100", "full tower"):
        launches.run_wide_layers(pause_s=0)
    signature = launches.launch_signature(gpulab.runs["full tower"])
    text = " ".join(repr(launches.signature_table({"full": signature}, below="Computed.")).split())
    assert f"full {signature.kernels}" in text
    assert "Computed." in text
    assert signature.loader_frac == 0
