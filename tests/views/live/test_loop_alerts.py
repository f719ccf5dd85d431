"""Alerts of a monitor: what the loop waits for, how long its steps are, and what its GPUs do."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

import gpulab
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.errors import RunError
from gpulab.run import Gpu
from gpulab.sensors import GpuReading
from gpulab.views.live.loop_alerts import LoopAlerts, activity
from gpulab.views.live.panel_content import PanelContentBuilder
from gpulab.watch.alerts import Alert, parse_alert
from gpulab.watch.alerts.measures import Measure

CARD = Gpu(index=0, name="H100", memory_bytes=80 * 2**30)
CALM = LiveSnapshot(
    phase="sensors only", elapsed_s=0.0, steps=50, steps_per_s=10.0, waiting_frac=0.1, gpus=(), core_fracs=(0.5,),
    rss_bytes=None, workers=2, frame="train (train.py:40)", running=True, recent_waiting_frac=0.1,
)  # fmt: skip


class Sent:
    def __init__(self):
        self.notices = []

    def send(self, notice):
        self.notices.append(notice)

    def tick(self, at_s):
        pass

    def close(self):
        pass


def fire(text, snapshots, **options):
    """The notices of a monitor that reads every half second, and the last text for the panel."""
    sent, clock = Sent(), iter(range(10**6))
    alert = parse_alert(text) if isinstance(text, str) else text
    alerts = LoopAlerts([alert], sent, period_s=0.5, clock_s=lambda: 1000 + 0.5 * next(clock), **options)
    panel = [alerts.update(snapshot) for snapshot in snapshots]
    return [notice for notice in sent.notices if not notice.ended], panel[-1]


def gpu(**values):
    return GpuReading(gpu=CARD, values=values)


def test_waiting_for_data_is_told_with_the_line_and_what_to_do():
    waiting = replace(CALM, recent_waiting_frac=0.7)
    (notice,), panel = fire("waiting for data > 40 % for 10 s", [CALM] * 20 + [waiting] * 60)
    assert "the training loop: waiting for data" in panel
    assert "First: " in panel
    assert "train.py:40" in notice.text()


def test_a_loop_that_rests_is_not_waiting():
    resting = replace(CALM, running=False, recent_waiting_frac=0.9)
    assert fire("waiting for data > 40 % for 10 s", [resting] * 100) == ([], "")


def test_steps_are_compared_with_the_earlier_runs():
    slow = replace(CALM, steps_per_s=7.0)
    notices, _ = fire("step time +20 % against history", [slow] * 5, earlier_step_s=0.1)
    assert len(notices) == 1
    assert fire("step time +20 % against history", [CALM] * 5, earlier_step_s=0.1)[0] == []


def test_without_earlier_runs_there_is_nothing_to_compare_with():
    assert fire("step time +20 % against history", [replace(CALM, steps_per_s=0.1)] * 5)[0] == []


def test_a_gpu_that_is_idle_while_this_process_holds_memory():
    held = replace(CALM, gpus=(gpu(util_frac=0.02, memory_used_bytes=20e9, others_memory_bytes=0.0),))
    notices, _ = fire("idle < 30 % for 1 min while memory is held", [held] * 140)
    assert [notice.subject for notice in notices] == ["GPU 0 (H100)"]
    others = replace(CALM, gpus=(gpu(util_frac=0.02, memory_used_bytes=20e9, others_memory_bytes=20e9),))
    assert fire("idle < 30 % for 1 min while memory is held", [others] * 140)[0] == []


def test_an_alert_in_python_is_the_alert_in_words():
    alert = Alert(measure=Measure.DATA_WAIT, limit=0.4, for_s=10)
    waiting = replace(CALM, recent_waiting_frac=0.7)
    assert len(fire(alert, [waiting] * 60)[0]) == 1


def test_the_panel_shows_it_beside_its_own_alert():
    builder = PanelContentBuilder("run1")
    content = builder.build(CALM, "the training loop: waiting for data 70 %, limit 40 %")
    assert content.alert.startswith("the training loop: waiting")
    assert content.alert_announcement == content.alert


def test_what_the_loop_does_is_said_in_words():
    assert activity(CALM) == "the loop waits for data 10 % of the time; the main thread is at train (train.py:40)"


def test_a_monitor_calls_back_and_logs(caplog):
    texts = []
    with caplog.at_level(logging.WARNING, "gpulab.alerts"):
        monitor = gpulab.monitor("watched", every=0.1, alerts=["memory will run out in 1 min"], on_alert=texts.append)
        alerts = monitor._alerts
        waiting = replace(CALM, recent_waiting_frac=0.7)
        alerts._engine.alerts = (parse_alert("waiting for data > 40 % for 0 s"),)
        alerts.update(waiting)
        run = monitor.stop(quietly=True)
    assert len(texts) == 1
    assert "waiting for data" in caplog.text
    assert "Alerts: 1" in repr(gpulab.report(run))


def test_an_alert_that_cannot_be_read_starts_no_monitor():
    with pytest.raises(RunError):
        gpulab.monitor(alerts=["bogus"])
    assert gpulab.monitor("next").stop(quietly=True).name == "next"


def test_a_monitor_keeps_a_history(tmp_path, monkeypatch):
    import time

    from gpulab.watch.history import GpuHistory

    monkeypatch.setenv("GPULAB_WATCH", str(tmp_path / "watch.sqlite"))
    monitor = gpulab.monitor("watched", keep=True)
    deadline_s = time.monotonic() + 60
    while monitor._watch._watcher.readings < 1 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    monitor.stop(quietly=True)
    with GpuHistory(tmp_path / "watch.sqlite") as history:
        assert history.span() is not None
