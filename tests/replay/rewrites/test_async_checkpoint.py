"""Asynchronous checkpoints: saving in most steps is removed, except for the copy of the state."""

import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.graph.build import build_graph
from gpulab.replay.rewrite import MIDDLE, Draw
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, host_sample, loader_call, mark, run_of

SAVE = "torch.serialization.save"


def saving(every, *, called=SAVE, count=40, save_ms=400.0, sampled=True, sample_ms=10):
    """Steps of 100 ms; every n-th step also saves; the main thread is sampled every 10 ms."""
    events, marks, samples, at = [], [], [], 0.0
    for index in range(count):
        start = at
        events += [loader_call(at, 10.0), event(EventKind.OP, "aten::mm", at + 10.0, 90.0)]
        marks.append(mark(at, 10.0))
        at += 100.0
        saves = save_ms if every and index % every == 0 else 0.0
        for at_ms in range(int(start), int(at + saves)):
            if at_ms % sample_ms:
                continue
            inside = at_ms >= at
            frame = {"frame": "train (cell line 3)", "called": called if inside else None}
            samples.append(host_sample(at_ms + 5, **frame))
        at += saves
    windows = [(at * 0.3, at * 0.7)]
    run = run_of(events, marks=marks, samples=samples if sampled else (), loaders=[NO_WORKERS], windows=windows)
    run_steps = find_steps(run)
    return build_graph(run, run_steps, build_ledger(run, run_steps))


def step_ms(graph):
    return sweep(graph).step_ns / 1e6


CHECKPOINT = BY_NAME["async_checkpoint"]


def test_saving_in_every_step_is_removed_except_for_the_copy_of_the_state():
    graph = saving(1)
    assert CHECKPOINT.refusal_reason(graph, True) is None
    assert step_ms(graph) == pytest.approx(500.0, rel=0.01)
    assert step_ms(CHECKPOINT.best_case(graph, True)) == pytest.approx(100.0, abs=11)
    best, middle, worst = (
        step_ms(CHECKPOINT.edit(graph, True, draw))
        for draw in (Draw(default_position=0.0), MIDDLE, Draw(default_position=1.0))
    )
    assert best == pytest.approx(100 + 0.03 * 400, abs=11)
    # The writer needs a core: on a CPU at least a fifth of the saving remains, and a copy takes up to 30 %.
    assert worst == pytest.approx(500 - 0.2 * 0.70 * 400, abs=11)
    assert best < middle < worst


def test_short_saves_are_estimated_from_the_share_of_samples():
    graph = saving(1, save_ms=23.0, count=300, sample_ms=97)
    assert CHECKPOINT.refusal_reason(graph, True) is None
    assert step_ms(graph) == pytest.approx(123.0, rel=0.01)
    saved_ms = [
        step_ms(graph) - step_ms(CHECKPOINT.edit(graph, True, Draw(default_position=at))) for at in (0.0, 0.5, 1.0)
    ]
    assert saved_ms[0] > saved_ms[1] > saved_ms[2] > 0
    assert saved_ms[1] == pytest.approx(23.0 * 0.9 * 0.6, rel=0.25)
    assert step_ms(CHECKPOINT.best_case(graph, True)) <= step_ms(graph) - saved_ms[0]


def test_occasional_saves_are_refused_with_their_count_and_length():
    reason = CHECKPOINT.refusal_reason(saving(8), True)
    assert "4 of 35" in reason
    assert "400 ms" in reason


def test_runs_without_saves_or_without_samples_are_refused():
    without_saves = CHECKPOINT.refusal_reason(saving(1, called="numpy.linalg.svd"), True)
    without_samples = CHECKPOINT.refusal_reason(saving(1, sampled=False), True)
    assert without_saves
    assert "sampled" in without_samples
    assert without_saves != without_samples
