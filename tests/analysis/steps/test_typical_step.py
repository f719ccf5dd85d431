"""The typical step: exact sums, robust against outliers, and without what the profiler adds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import CPU_PARTS, Ledger
from gpulab.analysis.steps.typical_step import mean_step, typical_step
from gpulab.intervals import Spans, no_spans

PARTS = tuple(part for part in CPU_PARTS if part.key != "communication")  # of a program without ranks
KEYS = [part.key for part in PARTS]


def ledger_of(*steps, burst=1):
    """A ledger of a CPU with these parts (compute, loader, dispatch, glue, python) in each step."""
    columns = {key: np.array(values, np.int64) for key, values in zip(KEYS, zip(*steps, strict=True), strict=True)}
    total = np.array([sum(step) for step in steps], np.int64)
    return Ledger("cpu", PARTS, total, columns, dict.fromkeys(KEYS, no_spans()), burst)


def steps_of(ledger, *, unprofiled_ns=None, burst=1):
    """The recorded steps of a ledger, followed by twelve un-profiled ones."""
    durations = [*ledger.step_ns.tolist(), *([unprofiled_ns] * 12 if unprofiled_ns else [])]
    end = np.cumsum(durations)
    recorded = np.arange(len(durations)) < len(ledger.step_ns)
    return Steps(end - np.array(durations), end, recorded, recorded, ~recorded, "optimizer", burst)


part = st.integers(0, 10**9)
recorded_steps = st.lists(st.tuples(part, part, part, part, st.integers(1, 10**9)), min_size=1, max_size=9)


@given(recorded_steps, st.one_of(st.none(), st.integers(1, 10**10)), st.one_of(st.none(), part))
def test_the_parts_of_a_typical_step_sum_exactly_to_it(recorded, unprofiled_ns, loader_ns):
    ledger = ledger_of(*recorded)
    steps = steps_of(ledger, unprofiled_ns=unprofiled_ns)
    step = typical_step(ledger, steps, loader_ns)
    assert sum(step.part_ns.values()) == step.step_ns == steps.step_ns
    assert min(step.part_ns.values()) >= 0


def test_an_outlier_does_not_change_the_typical_step():
    ledger = ledger_of(*[(60, 40, 0, 0, 0)] * 7, (60, 940, 0, 0, 0))
    assert typical_step(ledger, steps_of(ledger)).frac("loader") == 0.4


def test_what_the_profiler_adds_is_taken_from_calls_first():
    ledger = ledger_of(*[(600, 0, 200, 200, 1000)] * 4)
    step = typical_step(ledger, steps_of(ledger, unprofiled_ns=1700))
    assert step.part_ns == {"compute": 600, "loader": 0, "dispatch": 50, "glue": 50, "python": 1000}


def test_a_wait_for_data_that_was_measured_without_the_profiler_is_shown_as_measured():
    ledger = ledger_of(*[(600, 200, 0, 0, 200)] * 4)
    step = typical_step(ledger, steps_of(ledger, unprofiled_ns=1200), 400)
    assert step.part_ns == {"compute": 600, "loader": 400, "dispatch": 0, "glue": 0, "python": 200}


def test_a_mean_step_has_the_cause_as_measured_in_all_steps():
    ledger = ledger_of(*[(600, 0, 0, 0, 100)] * 3, (600, 0, 0, 0, 500))
    ledger.spans["python"] = Spans(np.array([0]), np.array([400]))
    step = mean_step(ledger, 1000, 300, ledger.spans["python"], "python")
    assert step.part_ns == {"compute": 600, "loader": 0, "dispatch": 0, "glue": 0, "python": 400}
    assert step.is_mean


def test_a_recorded_duration_is_scaled_like_the_part_that_it_lies_in():
    ledger = ledger_of(*[(600, 0, 400, 0, 1000)] * 4)
    step = typical_step(ledger, steps_of(ledger, unprofiled_ns=1800))
    assert step.scaled_ns(100, "dispatch") == 50
    assert step.scaled_ns(100, "python") == 100
    assert step.scaled_ns(100) == pytest.approx(90)


def test_a_part_in_relation_to_the_recorded_one_says_what_the_profiler_adds():
    ledger = ledger_of(*[(600, 0, 200, 200, 1000)] * 4)
    step = typical_step(ledger, steps_of(ledger, unprofiled_ns=1700))
    assert step.unprofiled_frac("dispatch", "glue") == 0.25
    assert step.unprofiled_frac("compute") == 1
    assert step.unprofiled_frac("loader") == 1, "unknown for a part that took no time"


def test_parts_that_vary_take_the_difference_to_the_step_time():
    ledger = ledger_of((600, 300, 0, 0, 0), (600, 100, 0, 0, 0), (600, 200, 0, 0, 0), (600, 250, 0, 0, 0))
    step = typical_step(ledger, steps_of(ledger, unprofiled_ns=850))
    assert step.part_ns == {"compute": 600, "loader": 250, "dispatch": 0, "glue": 0, "python": 0}
