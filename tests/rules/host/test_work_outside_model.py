"""Where a loop spends its time besides training: a library function in samples, if it fits the measured time."""

from __future__ import annotations

import pytest

from gpulab.rules import diagnose
from gpulab.tables import EventKind
from gpulab.user_objects import Model
from tests.cases.host.work_outside_model.case import passes, small, update
from tests.support.runs.made_runs import event, host_sample, run_of, stepped

METRIC = ("train.py line 9", "torchmetrics.metric.Metric.forward")
BACKWARD = ("train.py line 8", "torch._tensor.Tensor.backward")


def evidence_text(*places):
    """Work outside the model for 40 % of each step; one sample per step, at no moment of that work."""
    steps = stepped(lambda at: [*passes(at), *update(at + 50, 10), *small(at + 60, 40)], count=len(places))
    samples = [
        host_sample(100 * number + 5, frame=frame, called=called) for number, (frame, called) in enumerate(places)
    ]
    run = run_of(steps, samples=samples, models=(Model(kind="ResNet"),))
    (finding,) = (each for each in diagnose(run).findings if each.rule == "work_outside_model")
    return " ".join(finding.evidence)


def test_the_function_of_a_library_that_takes_about_this_share_is_named():
    text = evidence_text(*[METRIC] * 6, *[BACKWARD] * 8)
    assert "torchmetrics.metric.Metric.forward, at train.py line 9, in 6 of 14 samples" in text


@pytest.mark.parametrize(
    "places",
    [
        [METRIC] * 4 + [BACKWARD] * 6,
        [METRIC] * 9 + [BACKWARD] * 5,
        [("train.py line 7", "timm.models.resnet.ResNet.forward")] * 6 + [BACKWARD] * 8,
        [("forward (net.py:3)", "einops.einops.rearrange")] * 6 + [BACKWARD] * 8,
        [BACKWARD] * 6 + [("train.py line 5", None)] * 8,
    ],
    ids=["few samples", "more than the work", "the model", "within a model", "PyTorch"],
)
def test_no_other_function_is_named(places):
    assert "main thread" not in evidence_text(*places)


@pytest.mark.parametrize(
    ("make_step", "rule"),
    [
        (lambda at: [*passes(at), *update(at + 50, 10), *small(at + 60, 40)], "work_outside_model"),
        (
            lambda at: [event(EventKind.OP, "aten::add", at + each / 50, 0.004) for each in range(4900)],
            "dispatch_bound",
        ),
    ],
    ids=["work_outside_model", "dispatch_bound"],
)
def test_for_a_loop_that_a_library_runs_its_functions_are_named(make_step, rule):
    called = {"frame": "train.py line 9", "called": "lib.trainer.Trainer.fit"}
    paths = ["Trainer.fit > Metric.update"] * 24 + ["Trainer.fit > SGD.step > sgd.sgd"] * 12 + [None] * 12
    samples = [host_sample(20 * number, **called, library_path=path) for number, path in enumerate(paths)]
    findings = diagnose(run_of(stepped(make_step, count=10), samples=samples)).findings
    (finding,) = (each for each in findings if each.rule == rule)
    text = " ".join(finding.evidence)
    assert "that line spends its time in Metric.update (50 %), SGD.step -> sgd.sgd (25 %)." in text
