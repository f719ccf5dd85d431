"""Code between the epochs: garbage collection is named where it takes most of that time."""

from __future__ import annotations

import pytest

from gpulab.rules import diagnose
from tests.cases.steps.work_between_epochs import case


def finding(run):
    return next(each for each in diagnose(run).findings if each.rule == "work_between_epochs")


def test_garbage_collection_after_each_epoch_is_named_with_what_avoids_it():
    collecting = finding(case.provoked_by_garbage_collection_after_each_epoch())
    assert "In 95 % of this time, Python collects garbage." in collecting.evidence
    assert "gc.freeze()" in collecting.advice


@pytest.mark.parametrize("run", [case.provoked_by_samples_that_are_drawn_after_each_epoch()], ids=["other code"])
def test_other_code_is_not_called_garbage_collection(run):
    drawing = finding(run)
    assert "garbage" not in " ".join(drawing.evidence)
    assert "gc.freeze()" not in drawing.advice
