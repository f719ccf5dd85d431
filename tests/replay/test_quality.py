"""Where a replay refuses to be asked, and where it answers with a wider range."""

from dataclasses import replace

import numpy as np
import pytest

from gpulab.replay.quality import UNSURE_FRAC, quality
from gpulab.replay.rewrites.catalogue import BY_NAME
from tests.support.runs.made_networks import SGEMM, Kernel, network, ready

LOOP = [*[Kernel(SGEMM, 300, host_us=40)] * 10, Kernel("", 0, waits=True)]


def uneven(how):
    """A graph whose few steps differ by as much as those of a short run on a busy machine do."""
    graph = ready(network(LOOP, count=5)).graph
    told = graph.steps
    longer = np.where(np.arange(len(told)) % 2, told.dur_ns * 2, told.dur_ns)
    run = replace(graph.run, source=replace(graph.run.source, how=how))
    return replace(graph, run=run, steps=replace(told, end_ns=told.start_ns + longer))


@pytest.mark.parametrize(("how", "refuses"), [("recorded", True), ("measured", True), ("virtual", False)])
def test_uneven_steps_are_refused_but_where_they_are_estimates_of_one_program(how, refuses):
    found = quality(uneven(how))
    assert found.step_error > UNSURE_FRAC
    assert (found.refusal is not None) == refuses
    assert found.widening > 1 + found.step_error / 2 - 1e-9, "the range says what the refusal would have"


def test_a_refused_cuda_graph_names_a_what_if_that_there_is():
    from pathlib import Path

    import gpulab.virtual.device.torch_api.unsupported as refused

    words = Path(refused.__file__).read_text().split("gpulab's what-if '")[1:]
    assert words
    assert all(each.partition("'")[0] in BY_NAME for each in words)
