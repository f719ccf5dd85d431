"""Two runs side by side: the ratio with its interval, the noise, the prediction kept or missed."""

import numpy as np
import pytest
from made import MS, NO_WORKERS, event, loader_call, mark, run_of, stepped

from gpulab.comparison import bootstrap_ratio, compare
from gpulab.errors import RunError
from gpulab.run import Loader
from gpulab.tables import Kind


def recorded(wait_ms, loader=NO_WORKERS, jitter=0.0, work_ms=60, **more):
    random = np.random.default_rng(3)
    events, marks, at = [], [], 0.0
    for _ in range(60):
        step_ms = wait_ms + work_ms + float(random.uniform(-jitter, jitter))
        events.append(loader_call(at, wait_ms, workers=loader.workers))
        events.append(event(Kind.KERNEL, "ampere_sgemm", at + wait_ms, step_ms - wait_ms))
        marks.append(mark(at, wait_ms))
        at += step_ms
    return run_of(events, marks=marks, loaders=[loader], windows=[(at * 0.4, at * 0.9)], **more)


def test_a_mended_loader_is_resolved_faster_and_inside_the_prediction():
    seen = compare(recorded(40, jitter=2), recorded(4, loader=Loader(workers=3), jitter=2))
    assert [finding.rule for finding in seen.resolved] == ["starving"]
    assert [finding.rule for finding in seen.new] == ["device_bound"]
    assert seen.remaining == ()
    assert seen.above_noise
    assert seen.ratio == pytest.approx(100 / 64, rel=0.05)
    assert seen.ratio_low < seen.ratio < seen.ratio_high
    assert seen.inside is True
    assert seen.why == ""


def test_the_parts_differ_by_as_much_as_the_steps():
    seen = compare(recorded(40), recorded(4))
    difference = sum(after - before for _, _, before, after in seen.parts)
    assert difference == pytest.approx(-36 * MS, abs=20)


def test_a_run_compared_with_itself_has_no_difference_above_the_noise():
    seen = compare(recorded(40, jitter=5), recorded(40, jitter=5))
    assert seen.ratio == 1
    assert not seen.above_noise
    assert "noise" in seen.why


def test_a_missed_prediction_says_what_else_happened():
    seen = compare(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3)))
    assert seen.inside is False
    assert "matrix kernels grew by 30 ms" in seen.why
    other_batch = compare(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3, batch_size=64)))
    assert "batch size changed" in other_batch.why


def test_recorded_steps_are_compared_where_unprofiled_ones_are_missing():
    one = run_of(stepped(lambda at: [event(Kind.KERNEL, "k", at, 90)]))
    assert compare(one, one).profiled


def test_a_run_without_steps_cannot_be_compared_and_says_what_to_do():
    with pytest.raises(RunError, match="let it run for at least six steps"):
        compare(recorded(40), run_of(windows=[]))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_the_true_ratio_of_noisy_steps(seed):
    random = np.random.default_rng(seed)
    before = (random.normal(100, 10, 60) * MS).astype(np.int64)
    after = (random.normal(80, 8, 60) * MS).astype(np.int64)
    ratio, low, high = bootstrap_ratio(before, after)
    assert low < 1.25 < high
    assert low < ratio < high


def test_the_interval_is_the_same_every_time():
    steps = np.array([10, 12, 11, 15]) * MS
    assert bootstrap_ratio(steps, steps // 2) == bootstrap_ratio(steps, steps // 2)
