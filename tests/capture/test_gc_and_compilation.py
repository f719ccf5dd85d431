"""Garbage collections and compilations are recorded as they happen, and nothing of the recording stays behind."""

from __future__ import annotations

import gc
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab.capture.hooks import gc_and_compilation
from gpulab.capture.hooks.gc_and_compilation import StallRecorder
from gpulab.tables import StallKind


@pytest.fixture
def hearing():
    """Stalls that are installed, and taken away whatever the test does."""
    recorder = StallRecorder()
    recorder.install()
    yield recorder
    recorder.remove()


@pytest.fixture
def many_objects():
    """Enough of them that a collection takes milliseconds."""
    return [[number] for number in range(300_000)]


def rows_since(recorder, began_ns):
    return recorder.rows(began_ns, time.time_ns())


def test_a_collection_that_is_asked_for_is_told_with_the_line_that_asks(hearing, many_objects):
    began_ns = time.time_ns()
    gc.collect()
    rows = rows_since(hearing, began_ns)
    descriptions = rows.text("what").to_list()
    explicit = [text for text in descriptions if text.startswith("gc.collect() in test_a_collection_that_is_asked_for")]
    assert len(explicit) == 1
    assert "(test_gc_and_compilation.py:" in explicit[0]
    assert rows["dur_ns"][descriptions.index(explicit[0])] >= gc_and_compilation.MIN_STALL_NS
    assert (rows["kind"] == StallKind.GC).all()


def test_an_automatic_collection_is_recorded_with_its_generation(hearing):
    began_ns = time.time_ns()
    garbage = [[number] for number in range(1_000_000)]
    descriptions = set(rows_since(hearing, began_ns).text("what").to_list())
    assert len(garbage) == 1_000_000
    assert "generation 2" in descriptions
    assert not [text for text in descriptions if text.startswith("gc.collect")]


def test_with_gc_disabled_only_explicit_collections_are_recorded(hearing, many_objects):
    began_ns = time.time_ns()
    gc.disable()
    try:
        garbage = [[number] for number in range(50_000)]
        gc.collect()
    finally:
        gc.enable()
    descriptions = rows_since(hearing, began_ns).text("what").to_list()
    assert len(garbage) == 50_000
    assert [text for text in descriptions if not text.startswith("gc.collect()")] == []


def test_stalls_are_in_order_and_within_the_run(hearing, many_objects):
    gc.collect()
    began_ns = time.time_ns()
    gc.collect()
    gc.collect()
    ended_ns = time.time_ns()
    gc.collect()
    rows = hearing.rows(began_ns, ended_ns)
    is_explicit = rows.text("what").matching(word.startswith("gc.collect") for word in rows.text("what").vocabulary)
    assert is_explicit.sum() == 2
    assert (np.diff(rows["start_ns"]) >= 0).all()
    assert rows["start_ns"].min() >= 0
    assert (rows["start_ns"] + rows["dur_ns"]).max() <= ended_ns - began_ns


def test_remove_unregisters_the_gc_callback():
    before = list(gc.callbacks)
    recorder = StallRecorder()
    recorder.install()
    assert gc.callbacks != before
    recorder.remove()
    recorder.remove()
    assert gc.callbacks == before


def test_a_collection_that_began_before_installation_is_not_recorded():
    recorder = StallRecorder()
    recorder._on_gc("stop", {"generation": 2})
    now_ns = time.time_ns()  # what other tests compiled was before
    assert len(recorder.rows(now_ns, now_ns)) == 0


def test_collections_beyond_the_limit_are_reported_as_a_gap(hearing, monkeypatch, many_objects):
    monkeypatch.setattr(gc_and_compilation, "MAX_COLLECTIONS", 1)
    before = len(rows_since(hearing, 0))
    gc.collect()
    gc.collect()
    assert len(rows_since(hearing, 0)) == max(1, before)
    assert hearing.gaps[0].what.endswith("garbage collections")


def compiler(monkeypatch, *metrics, **more):
    """Replace PyTorch's compilation metrics."""
    module = SimpleNamespace(get_compilation_metrics=lambda: list(metrics), **more)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", module)


def compilation(**changes):
    return SimpleNamespace(
        **{
            "co_name": "train_step",
            "co_filename": "/home/me/model.py",
            "co_firstlineno": 12,
            "is_forward": True,
            **changes,
        }
    )


def test_a_compilation_has_its_function_and_the_reason_for_recompilation(monkeypatch):
    again = "0/0: tensor 'x' size mismatch at index 0. expected 3, actual 4\n  and more"
    compiler(
        monkeypatch,
        compilation(start_time_us=1000, duration_us=50),
        compilation(start_time_us=2000, duration_us=60, recompile_reason=again),
        compilation(start_time_us=3000, duration_us=70, is_forward=False),
        compilation(start_time_us=4000, duration_us=80, co_filename="/tmp/ipykernel_7/123.py"),
        compilation(start_time_us=5000, duration_us=90, co_filename="/x/site-packages/torch/_dynamo/external_utils.py"),
        compilation(start_time_us=None, duration_us=90),
    )
    rows = StallRecorder().rows(0, 10_000_000)
    assert rows.text("what").to_list() == [
        "train_step (model.py:12)",
        "train_step (model.py:12), again: tensor 'x' size mismatch at index 0. expected 3, actual 4",
        "the backward pass of train_step (model.py:12)",
        "train_step (cell line 12)",
        "a module",
    ]
    assert rows["start_ns"].tolist() == [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]
    assert rows["dur_ns"].tolist() == [50_000, 60_000, 70_000, 80_000, 90_000]
    assert set(rows["kind"].tolist()) == {StallKind.COMPILE}


def test_compilation_times_in_seconds_of_older_pytorch_are_read(monkeypatch):
    compiler(monkeypatch, compilation(start_time=2.5, entire_frame_compile_time_s=0.25))
    rows = StallRecorder().rows(0, 10**10)
    assert (rows["start_ns"][0], rows["dur_ns"][0]) == (2_500_000_000, 250_000_000)


def test_compilations_of_an_earlier_cell_are_not_counted(monkeypatch):
    compiler(monkeypatch, compilation(start_time_us=1000, duration_us=50))
    assert len(StallRecorder().rows(2_000_000, 10_000_000)) == 0


def test_a_pytorch_without_compilation_metrics_is_a_gap(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())
    recorder = StallRecorder()
    assert len(recorder.rows(0, 1)) == 0
    assert recorder.gaps[0].what == "compilations"


def test_truncated_compilation_metrics_are_reported_as_a_gap(monkeypatch):
    compilations = [compilation(start_time_us=1000 * number, duration_us=50) for number in range(1, 4)]
    compiler(monkeypatch, *compilations, DEFAULT_COMPILATION_METRICS_LIMIT=3)
    recorder = StallRecorder()
    assert len(recorder.rows(0, 10_000_000)) == 3
    assert "latest 3" in recorder.gaps[0].why


def test_compilations_of_the_installed_pytorch_are_recorded():
    torch = pytest.importorskip("torch")

    def doubled(x):
        return (x * 2).sum()

    began_ns = time.time_ns()
    compiled = torch.compile(doubled, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    recorder = StallRecorder()
    rows = rows_since(recorder, began_ns)
    descriptions = [
        text for text in rows.text("what").to_list() if text.startswith("doubled (test_gc_and_compilation.py:")
    ]
    assert len(descriptions) == 2
    assert ", again: tensor 'x' size mismatch" in descriptions[1]
    assert not recorder.gaps
    assert (rows["dur_ns"] > 0).all()
