"""Calls that cost a fixed time: what a step spends in short calls of recurrent layers."""

import pytest

from gpulab.analysis.host.launches import short_recurrent_layers_ns
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rules import diagnose
from gpulab.run import Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

NODE = "autograd::engine::evaluate_function: "
LAYER, BACKWARD = "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"


@pytest.mark.parametrize(
    ("name", "dur_ms", "count", "expected_ms"),
    [
        (LAYER, 0.15, 20, 3.0),
        (BACKWARD, 0.3, 20, 6.0),
        (LAYER, 0.05, 20, 0.0),  # a small operator, counted as such
        (LAYER, 2.0, 20, 0.0),  # does enough work
        ("aten::addmm", 0.15, 20, 0.0),
    ],
)
def test_short_calls_of_recurrent_layers_are_counted(name, dur_ms, count, expected_ms):
    run = run_of(stepped(lambda at: [event(EventKind.OP, name, at + 3 * n, dur_ms) for n in range(count)]))
    steps = find_steps(run)
    assert short_recurrent_layers_ns(run, steps, build_ledger(run, steps)) == pytest.approx(expected_ms * 1e6)


def test_a_model_called_once_saves_at_least_half_of_them():
    def gain(layers):
        def step(at):
            calls = [event(EventKind.OP, "aten::linear", at + 0.2 * n, 0.01) for n in range(200)]
            calls += [event(EventKind.OP, LAYER, at + 81 + 0.15 * n, 0.15) for n in range(layers)]
            nodes = [event(EventKind.OP, f"{NODE}AddmmBackward0", at + 60 + 0.1 * n, 0.01) for n in range(200)]
            return [*calls, *nodes, event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 92, 5)]

        model = Model(kind="Net", name="net", tensors=2)
        optimizer = Optimizer(kind="Adam", name="optimizer", tensors=2)
        run = run_of(stepped(step), models=(model,), optimizers=(optimizer,))
        return next(each for each in diagnose(run).findings if each.rule == "unbatched_calls").gain

    without, with_layers = gain(0), gain(60)  # 9 ms
    assert without.worst_ns - with_layers.worst_ns == pytest.approx(0.5 * 9e6, rel=0.1)
    assert without.best_ns - with_layers.best_ns == pytest.approx(0.85 * 9e6, rel=0.1)
    assert without.floor_ns - with_layers.floor_ns == pytest.approx(9e6, rel=0.1)
