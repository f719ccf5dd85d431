"""When a replay refuses to predict, and when it only widens the range."""

import re
from dataclasses import replace

import numpy as np
import pytest

from gpulab import trace
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.prediction import build_replay_model
from gpulab.replay.quality import MAX_STEP_ERROR, Quality
from gpulab.replay.rewrites.catalogue import BY_NAME
from tests.support.runs.made_networks import SGEMM, Kernel, network, replay_scene

LOOP = [*[Kernel(SGEMM, 300, host_us=40)] * 10, Kernel("", 0, waits=True)]


def uneven(source):
    """A graph whose few steps vary as much as those of a short run on a busy machine."""
    graph = replay_scene(network(LOOP, count=5)).graph
    steps = graph.steps
    longer = np.where(np.arange(len(steps)) % 2, steps.dur_ns * 2, steps.dur_ns)
    run = replace(graph.run, source=replace(graph.run.source, how=source))
    return replace(graph, run=run, steps=replace(steps, end_ns=steps.start_ns + longer))


@pytest.mark.parametrize(("source", "refuses"), [("recorded", True), ("measured", True), ("virtual", False)])
def test_uneven_steps_are_refused_unless_they_are_virtual(source, refuses):
    result = Quality.of(uneven(source))
    assert result.step_error > MAX_STEP_ERROR
    assert (result.refusal_reason is not None) == refuses
    assert result.widening > 1 + result.step_error / 2 - 1e-9, "without a refusal, the range is wider"


def test_a_refusal_says_what_why_and_what_to_do_next():
    refusal = Quality.of(uneven("measured")).refusal
    assert refusal.problem.startswith("No change can be predicted from this run.")
    assert re.fullmatch(r"the steps differ so much that .* uncertain by \d+ %, more than 20 %", refusal.why)
    assert refusal.fix.startswith("record again, with more steps")
    assert "make the change, record it as another run, and compare" in refusal.fix


def test_a_replay_that_reproduces_the_recording_has_no_refusal():
    assert replay_scene(network(LOOP, count=5)).quality.refusal is None


def test_a_recording_without_the_waits_between_streams_is_refused_without_a_replay(recorded):
    run = trace.read(recorded("a100_ddp_8ranks_rank.json.gz"))
    steps = find_steps(run)
    model = build_replay_model(run, steps, build_ledger(run, steps))
    assert "streams" in model.quality.refusal_reason
    assert not {"graph", "replayed"} & set(vars(model.quality))
    assert model.quality.graph.waits_inferred, "the graph, if something asks for it, agrees"


def test_the_unchanged_run_is_replayed_once():
    model = replay_scene(network(LOOP, count=5))
    assert model.schedule is model.quality.replayed
    assert model.graph is model.quality.graph


def test_the_error_for_cuda_graphs_names_existing_rewrites():
    from pathlib import Path

    import gpulab.virtual.device.torch_api.unsupported as unsupported

    quotes = Path(unsupported.__file__).read_text().split("gpulab's what-if '")[1:]
    assert quotes
    assert all(quote.partition("'")[0] in BY_NAME for quote in quotes)
