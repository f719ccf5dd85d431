"""Lesson 17: timelines, the made weeks, the metrics page, the stand-in driver; each against a count of another kind."""

import json
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch

from gpulab.errors import RunError
from gpulab.files.datasets import dataset
from gpulab.lessons.course.machine.n17_monitoring_and_tools import LESSON, TOOL_MATCHES, check_tools
from gpulab.lessons.labs.machine.monitoring import (
    alert_weeks,
    history_week,
    host_sampler,
    metrics_page,
    recorded_gpus,
    slow_loop,
    standin_nvml,
    timelines,
)
from tests.support.runs.made_runs import MS, launched_kernel, on_gpu, run_of, stepped

# Timelines.


def covered_by_ns(rows, begin_ns, end_ns):
    """Mark every nanosecond that rows cover."""
    marked = np.zeros(end_ns - begin_ns, bool)
    for start, length in zip(rows["start_ns"], rows["dur_ns"], strict=True):
        marked[max(0, start - begin_ns) : max(0, start + length - begin_ns)] = True
    return marked


def random_timeline(seed):
    generator = np.random.default_rng(seed)
    rows = [
        (kind, int(generator.integers(0, 3000)), int(generator.integers(1, 300)))
        for kind in ("kernel", "loader", "op")
        for _ in range(8)
    ]
    events = pd.DataFrame(rows, columns=["kind", "start_ns", "dur_ns"])
    return timelines.StepTimeline(events, 500, 2500, 1)


@pytest.mark.parametrize("seed", range(5))
def test_busy_and_gap_shares_are_those_counted_one_by_one(seed):
    timeline = random_timeline(seed)
    kind = timeline.events["kind"]
    kernels = covered_by_ns(timeline.events[kind == "kernel"], 500, 2500)
    loader = covered_by_ns(timeline.events[kind == "loader"], 500, 2500)
    assert timeline.busy_frac == pytest.approx(kernels.mean())
    expected = (loader & ~kernels).sum() / (~kernels).sum()
    assert timeline.gap_frac(timeline.events[kind == "loader"]) == pytest.approx(expected)


def test_without_kernels_operators_are_the_busy_time():
    events = pd.DataFrame({"kind": ["op", "loader"], "start_ns": [0, 100], "dur_ns": [100, 100]})
    timeline = timelines.StepTimeline(events, 0, 400, 1)
    assert timeline.busy_frac == 0.25
    assert timeline.gap_frac(events[events["kind"] == "loader"]) == pytest.approx(1 / 3)
    assert np.isnan(timeline.median_kernel_us())


def test_a_timeline_covers_the_complete_steps_only():
    # Each step of 100 ms has one kernel of 40 ms.
    run = on_gpu(
        stepped(
            lambda start_ms: launched_kernel(
                "gemm", start_ms + 10, 40, number=int(start_ms) + 1, called_ms=start_ms + 5
            )
        )
    )
    timeline = timelines.recorded_timeline(run)
    assert timeline.steps >= 3
    assert timeline.end_ns - timeline.start_ns == timeline.steps * 100 * MS
    assert timeline.busy_frac == pytest.approx(0.4, abs=0.01)


def test_a_run_without_steps_has_no_timeline():
    with pytest.raises(RunError, match="no timeline"):
        timelines.recorded_timeline(run_of([]))


# The made weeks.


@pytest.fixture(scope="module")
def week():
    return alert_weeks.readings_week()


def test_a_week_has_seven_planted_times_in_which_memory_is_held_and_little_runs(week):
    assert len(week.planted) == 7
    for begin, end in week.planted:
        inside = (week.at_s >= begin) & (week.at_s < end)
        assert end - begin >= 40 * 60 - alert_weeks.PERIOD_S
        assert week.is_held[inside].all()
        assert week.util_frac[inside].mean() < 0.4


def test_outside_the_planted_times_no_pause_is_longer_than_eight_minutes(week):
    outside = week.is_held.copy()
    for begin, end in week.planted:
        outside &= ~((week.at_s >= begin) & (week.at_s < end))
    low = pd.Series((week.util_frac < 0.3) & outside)
    lengths = low.groupby((~low).cumsum()).sum()
    assert lengths.max() * alert_weeks.PERIOD_S <= 8 * 60


def test_window_means_are_those_of_pandas(week):
    held = pd.Series(np.where(week.is_held, week.util_frac, np.nan))
    expected = held.rolling(30).mean()
    assert alert_weeks.window_means(week, 300) == pytest.approx(expected.to_numpy(), nan_ok=True, abs=1e-9)


def test_window_fifths_are_the_highest_of_five_means(week):
    fifths = alert_weeks.window_fifths(week, 600)
    held = np.where(week.is_held, week.util_frac, np.nan)
    for index in np.random.default_rng(0).integers(60, len(held), 300):
        parts = held[index - 59 : index + 1].reshape(5, 12).mean(axis=1)
        expected = np.nan if np.isnan(parts).any() else parts.max()
        assert fifths[index] == pytest.approx(expected, nan_ok=True)


def test_alarms_are_counted_as_by_hand():
    tiny = alert_weeks.ReadingsWeek(
        at_s=np.arange(0.0, 1000, 10),
        util_frac=np.ones(100),
        is_held=np.ones(100, bool),
        planted=((100, 200), (500, 600), (700, 800)),
    )
    score = alert_weeks.score_alarms(tiny, [50, 130, 190, 560, 650])
    assert (score.alarms, score.false_alarms, score.repeated, score.missed) == (5, 2, 1, 1)
    assert score.delays_min == (0.5, 1.0)
    assert alert_weeks.alert_target(score) is None
    best = alert_weeks.score_alarms(tiny, [130, 560, 790])
    assert alert_weeks.alert_target(best) == 2
    assert alert_weeks.alert_target(None) is None


def test_gpulabs_alert_agrees_with_the_fifths_of_the_lesson(week):
    begins = alert_weeks.engine_alarms(week, "idle < 30 % for 10 min while memory is held")
    score = alert_weeks.score_alarms(week, begins)
    assert (score.false_alarms, score.missed) == (0, 0)
    below = alert_weeks.window_fifths(week, 600) < 0.3
    for at_s in begins:  # wherever it fires, every fifth is below the limit, give or take one reading
        index = round(at_s / alert_weeks.PERIOD_S)
        assert below[index - 1 : index + 2].any()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("week") / "week.sqlite"
    history_week.write_week(path)
    return path


def test_the_minutes_come_back_as_they_were_planted(database):
    minutes = history_week.week_minutes(database)
    assert len(minutes) == history_week.GPUS * 7 * 1440
    night = minutes[minutes["gpu"] == history_week.NIGHT_GPU]
    dark = (night["hour"] >= 21) | (night["hour"] < 8)
    assert (night[dark]["held_idle"] == 1).all()
    assert night[~dark]["held_idle"].mean() < 0.1
    assert datetime.fromtimestamp(history_week.BEGIN_S).weekday() == 0


def test_gpulab_finds_both_planted_patterns_and_no_other(database):
    patterns = history_week.week_patterns(database)
    assert sorted(pattern.kind for pattern in patterns) == ["abandoned", "idle_hours"]
    (nightly,) = (pattern for pattern in patterns if pattern.kind == "idle_hours")
    assert nightly.wasted_gpu_h == pytest.approx(7 * 11)
    assert "explore.ipynb" in " ".join(nightly.evidence)
    assert "Mon" in str(history_week.week_heat_map(database))


# Recordings.


def test_nvml_shows_more_than_pytorch_reserved_and_that_more_than_it_allocated():
    for name in recorded_gpus.RECORDINGS:
        view = recorded_gpus.memory_views(name)
        assert view["allocated"] <= view["reserved"] < view["used"]


def test_both_utilisations_are_fractions_and_agree_where_the_gpu_never_waits():
    by_nvml, by_trace = recorded_gpus.utilisation_views("h100_03")
    assert by_nvml == pytest.approx(by_trace, abs=0.01)
    assert recorded_gpus.utilisation_views("h100_07") is None  # too short


RULES = {
    "data": ("no_workers", "slow_storage"),
    "copies": ("pageable_copies", "host_syncs"),
    "host": ("cpu_tensor_creation", "allocator_thrash", "unfused_optimizer", "dispatch_bound"),
    "device": ("no_tf32", "layout_conversions", "unfused_elementwise", "device_bound"),
    "memory": ("memory_growth", "out_of_memory"),
}


@pytest.mark.parametrize("name", recorded_gpus.RECORDINGS)
def test_a_planted_signature_fits_the_answer_of_its_dataset(name):
    answer = json.loads((Path(dataset(name).folder) / "answer.json").read_text())
    assert answer["finding"] in RULES[recorded_gpus.PLANTED_SIGNATURES[name]]


def test_a_confusion_table_counts_every_answer_once():
    table = recorded_gpus.confusion_table(["data", "host", "host"], ["data", "data", "nonsense"])
    assert table.to_numpy().sum() == 3
    assert table.loc["planted: host", "data"] == 1
    assert table.loc["planted: host", "nonsense"] == 1


# Tools.


def test_the_loop_is_the_same_every_time_and_waits():
    first, second = slow_loop.SlowRows(2, 4, 0.0), slow_loop.SlowRows(2, 4, 0.0)
    assert torch.equal(first[0][0], second[1][0])
    with pytest.raises(IndexError):
        first[2]
    networks = (slow_loop.make_network().parameters(), slow_loop.make_network().parameters())
    assert all(torch.equal(*pair) for pair in zip(*networks, strict=True))


def test_what_tensorboard_stored_comes_back(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path) as writer:
        for step, value in enumerate((0.5, 0.25, 4.0)):
            writer.add_scalar("loss", value, step)
    assert slow_loop.stored_scalars(tmp_path) == {"loss": [0.5, 0.25, 4.0]}


def test_the_memory_column_adds_up_allocations():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(5):
            torch.empty(1 << 20)
    assert slow_loop.memory_column_bytes(profiler) == pytest.approx(5 * (1 << 22), rel=0.01)


def test_the_mean_step_of_the_profiler_includes_its_waiting():
    plan = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=plan) as profiler:
        for _ in range(4):
            time.sleep(0.02)
            torch.ones(3)
            profiler.step()
    assert 19 < slow_loop.profiled_step_ms(profiler) < 200


def test_the_sampler_reads_before_and_during_the_block():
    with host_sampler.HostSampler(0.005) as sampler:
        first = len(sampler.readings)
        while len(sampler.readings) < 3:
            pass
    readings = sampler.readings
    assert first >= 1
    assert readings["time_s"].is_monotonic_increasing
    assert readings["rss_mib"].iloc[-1] == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.5)


def test_the_exporter_gets_the_host_of_this_machine_and_the_recorded_gpu():
    host, gpu = metrics_page.exporter_observation().readings
    assert 0 <= host.values["cpu_frac"] <= 1
    assert gpu.device.memory_bytes == recorded_gpus.recording("h100_03").machine.gpus[0].memory_bytes
    assert gpu.values["util_frac"] == 1
    assert 600 < gpu.values["power_w"] <= 700  # the limit of the board
    assert metrics_page.sample_lines("# HELP a x\na 1\nb 2\n", "a") == "# HELP a x\na 1"


def test_a_cgroup_is_read_from_its_files(tmp_path):
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nnr_throttled 3\nthrottled_usec 1000\n")
    (tmp_path / "memory.current").write_text("4096\n")
    assert metrics_page.cgroup_readings(tmp_path) == {"cpu_s": 2.5, "throttled_s": 0.001, "memory_bytes": 4096}
    assert np.isnan(list(metrics_page.cgroup_readings(tmp_path / "none").values())).all()


def test_the_stand_in_has_the_functions_of_pynvml():
    import pynvml

    driver = standin_nvml.standin_nvml()
    for name in vars(driver):
        assert hasattr(pynvml, name), name
    assert driver.NVML_TEMPERATURE_GPU == pynvml.NVML_TEMPERATURE_GPU
    driver.nvmlInit()
    with pytest.raises(driver.NVMLError):
        driver.nvmlDeviceGetPowerUsage(driver.nvmlDeviceGetHandleByIndex(1))
    with pytest.raises(driver.NVMLError):
        standin_nvml.standin_nvml(gpus=()).nvmlInit()


# Questions.


def test_the_tools_are_matched():
    right = {question: letter for question, (letter, _) in TOOL_MATCHES.items()}
    letters = {choice.key for choice in LESSON.find_question("tools").choices}
    assert check_tools(right) is None
    assert set(right.values()) == letters
    assert "5 of 6" in (check_tools({**right, "Why is this one kernel slow?": "a"}) or "")
    assert check_tools(None)
    assert check_tools({})
