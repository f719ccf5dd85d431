"""Checkpoints written beside the loop: where samples show them in most steps they go, but for the copy of the state."""

import pytest

from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.replay.graph.build import graph_of
from gpulab.replay.rewrite import MIDDLE, Draw
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.sweep import swept
from gpulab.tables import Kind
from tests.support.runs.made_runs import NO_WORKERS, event, host_sample, loader_call, mark, run_of

SAVE = "torch.serialization.save"


def saving(every, *, called=SAVE, count=40, save_ms=400.0, sampled=True, sample_ms=10):
    """Steps of 100 ms; every so many of them save for a while, and samples are taken every 10 ms."""
    events, marks, samples, at = [], [], [], 0.0
    for number in range(count):
        begin = at
        events += [loader_call(at, 10.0), event(Kind.OP, "aten::mm", at + 10.0, 90.0)]
        marks.append(mark(at, 10.0))
        at += 100.0
        saves = save_ms if every and number % every == 0 else 0.0
        for moment in range(int(begin), int(at + saves)):
            if moment % sample_ms:
                continue
            inside = moment >= at
            frame = {"frame": "train (cell line 3)", "called": called if inside else None}
            samples.append(host_sample(moment + 5, **frame))
        at += saves
    windows = [(at * 0.3, at * 0.7)]
    run = run_of(events, marks=marks, samples=samples if sampled else (), loaders=[NO_WORKERS], windows=windows)
    found = steps(run)
    return graph_of(run, found, ledger(run, found))


def step_ms(made):
    return swept(made).step_ns / 1e6


CHECKPOINT = BY_NAME["async_checkpoint"]


def test_saving_in_every_step_goes_but_for_the_copy_of_the_state():
    made = saving(1)
    assert CHECKPOINT.lacking(made, True) is None
    assert step_ms(made) == pytest.approx(500.0, rel=0.01)
    assert step_ms(CHECKPOINT.ceiling(made, True)) == pytest.approx(100.0, abs=11)
    best, middle, worst = (
        step_ms(CHECKPOINT.edit(made, True, draw)) for draw in (Draw(otherwise=0.0), MIDDLE, Draw(otherwise=1.0))
    )
    assert best == pytest.approx(100 + 0.03 * 400, abs=11)
    # The writer needs a core: on a CPU a fifth of what is left over is sure, and a copy takes up to 30 %.
    assert worst == pytest.approx(500 - 0.2 * 0.70 * 400, abs=11)
    assert best < middle < worst


def test_saving_too_short_for_samples_is_told_by_their_share():
    made = saving(1, save_ms=23.0, count=300, sample_ms=97)
    assert CHECKPOINT.lacking(made, True) is None
    assert step_ms(made) == pytest.approx(123.0, rel=0.01)
    gone = [step_ms(made) - step_ms(CHECKPOINT.edit(made, True, Draw(otherwise=at))) for at in (0.0, 0.5, 1.0)]
    assert gone[0] > gone[1] > gone[2] > 0
    assert gone[1] == pytest.approx(23.0 * 0.9 * 0.6, rel=0.25)
    assert step_ms(CHECKPOINT.ceiling(made, True)) <= step_ms(made) - gone[0]


def test_saving_now_and_then_does_not_change_the_typical_step_and_the_average_is_told():
    why = CHECKPOINT.lacking(saving(8), True)
    assert "the typical step does not change" in why
    assert "400 ms each" in why


def test_what_is_no_saving_or_was_not_sampled_is_not_taken_away():
    assert "no sample" in CHECKPOINT.lacking(saving(1, called="numpy.linalg.svd"), True)
    assert "not sampled" in CHECKPOINT.lacking(saving(1, sampled=False), True)
