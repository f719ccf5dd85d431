"""A part of a long run that stands for it: the same answers, from typical steps."""

from __future__ import annotations

import numpy as np
import pytest

import gpulab
from benchmarks.loading.scaled_trace import scaled
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.graph import representative_part as module
from gpulab.replay.graph.representative_part import representative_part
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import build_replay_model, predict, refusal_reason
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped
from tests.support.tiers import every_nth

TRACES = (
    "v100_resnet50_workers0",
    "v100_resnet50_workers4",
    "v100_ns_resolution",
    "h100_bert_small_inference",
    "h100_timesformer_inference",
    "b200_eager",
    "mi300_resnet_checkpoint",
)
# Without cuda_graphs: it is refused below a threshold of kernels that a graph can capture, and v100_resnet50_workers4
# exceeds that in some steps only.
CHANGES = ("workers=4", "amp=bf16", "no_syncs", "instant_host", "optimizer=fused", "tf32", "pin_memory")


def long_run(odd=()):
    """Four hundred steps of 10 ms with fifty kernels each, which take longer in `odd` steps."""
    count = 400

    def step(at):
        index = round(at / 10)
        kernel_ms = 0.08 if index in odd else 0.05
        events = []
        for k in range(50):
            start = at + k * 0.1
            number = index * 100 + k
            events += [
                event(EventKind.OP, "aten::mm", start, 0.08),
                event(EventKind.LAUNCH, "cudaLaunchKernel", start + 0.02, 0.01, correlation=number),
                event(EventKind.KERNEL, "ampere_sgemm", start + 0.04, kernel_ms, correlation=number),
            ]
        return events

    return run_of(stepped(step, count=count, step_ms=10.0))


def parts(run):
    steps = find_steps(run)
    ledger = build_ledger(run, steps)
    return steps, ledger, representative_part(run, steps, ledger)


def test_a_short_run_is_replayed_as_it_is():
    run = run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 50)]))
    steps, ledger, part = parts(run)
    assert part == (run, steps, ledger)


def test_a_long_run_is_replayed_in_part():
    run = long_run()
    steps, _, (part, part_steps, _) = parts(run)
    assert len(part.event_rows) < 0.5 * len(run.event_rows)
    chosen = np.flatnonzero(part_steps.interior)
    assert len(chosen) >= 5
    assert np.all(np.diff(chosen) == 1)
    assert set(chosen) <= set(np.flatnonzero(steps.interior))
    kernels, launches = (part.event_rows.of_kind(kind) for kind in (EventKind.KERNEL, EventKind.LAUNCH))
    assert set(kernels["correlation"]) == set(launches["correlation"])


def test_the_steps_are_typical_ones():
    """The kernels of the first 150 steps take longer; a part from the beginning would say so of the whole run."""
    _, ledger, (_, _, part_ledger) = parts(long_run(odd=range(150)))
    for key, part_ns in ledger.part_ns.items():
        assert np.median(part_ledger.part_ns[key]) == pytest.approx(np.median(part_ns), rel=0.01), key


def predictions(run, monkeypatch, most_events):
    monkeypatch.setattr(module, "MAX_EVENTS", most_events)
    steps = find_steps(run)
    model = build_replay_model(run, steps, build_ledger(run, steps))
    answers = {}
    for text in CHANGES:
        changes = parse_changes(text)
        reason = refusal_reason(model, changes)
        answers[text] = reason if reason is not None else predict(model, changes)
    return model, answers


def assert_same_answers(run, monkeypatch):
    whole, expected = predictions(run, monkeypatch, 10**9)
    part, answers = predictions(run, monkeypatch, 20_000)
    assert part.step_ns == whole.step_ns
    for text, answer in expected.items():
        if isinstance(answer, str):
            assert isinstance(answers[text], str), (text, answer)
            continue
        assert answers[text].likely_ns == pytest.approx(answer.likely_ns, rel=0.01), text
        assert answers[text].floor_ns == pytest.approx(answer.floor_ns, rel=0.01), text
    return len(part.graph.host) / len(whole.graph.host)


def test_the_part_gives_the_same_answers(monkeypatch):
    assert assert_same_answers(long_run(), monkeypatch) < 0.5


@pytest.mark.full
@pytest.mark.parametrize("name", every_nth(TRACES, 8, pytest.mark.night))
def test_the_part_gives_the_same_answers_on_real_traces(name, recorded, tmp_path, monkeypatch):
    trace = scaled(recorded(f"{name}.json.gz"), 250_000, tmp_path)
    assert_same_answers(gpulab.load(trace), monkeypatch)
