"""Where steps begin and end, and which of them count."""

import numpy as np
import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.interior import interior_of_parts
from gpulab.tables import EventKind, MarkKind
from gpulab.views.sheet.lanes import middle_window
from tests.support.runs.made_runs import MS, event, host_sample, loader_call, mark, run_of, stepped


def starts_ms(run_steps):
    return (run_steps.start_ns / MS).round(3).tolist()


def test_profiler_steps_are_adjacent_and_edge_steps_are_not_interior():
    run_steps = find_steps(run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 50)], count=5)))
    assert run_steps.detected_by == "ProfilerStep"
    assert starts_ms(run_steps) == [0, 100, 200, 300, 400]
    assert run_steps.interior.tolist() == [False, True, True, True, False]
    assert run_steps.traced_ns == 100 * MS
    assert run_steps.unprofiled_ns is None
    assert run_steps.profiler_overhead is None


def test_without_profiler_steps_the_dataloader_defines_the_steps():
    run_steps = find_steps(run_of([loader_call(at, 5) for at in (0, 20, 40, 60)] + [event(EventKind.OP, "x", 0, 80)]))
    assert run_steps.detected_by == "DataLoader"
    assert starts_ms(run_steps) == [0, 20, 40]


def test_without_a_loader_the_optimizer_defines_the_steps():
    run_steps = find_steps(
        run_of([event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at, 5) for at in (0, 20, 40)])
    )
    assert (run_steps.detected_by, starts_ms(run_steps)) == ("optimizer", [0, 20])


def test_without_marks_the_rarest_regular_operator_defines_the_steps():
    events = []
    for at in range(0, 150, 10):
        events.append(event(EventKind.OP, "aten::mm", at, 4))
        events += [event(EventKind.OP, "aten::add", at + 5 + k, 0.5) for k in range(3)]
    events.append(event(EventKind.OP, "aten::randn", 0, 0.1, thread=1))
    run_steps = find_steps(run_of(events, samples=[host_sample(0)]))
    assert run_steps.detected_by == "repetition of aten::mm"
    assert find_steps(run_of(events)).detected_by == "whole run", "in a foreign trace it may be the layers of a model"
    assert starts_ms(run_steps) == list(range(0, 140, 10))


def test_steps_of_very_different_length_are_found_by_the_operators_that_repeat():
    events, starts, at = [], [], 0.0
    for length in np.random.default_rng(0).lognormal(0, 1.5, 40):
        starts.append(round(at, 3))
        for name in ("aten::linear", "aten::relu", "aten::linear", "aten::argmax"):
            events.append(event(EventKind.OP, name, at, 0.2 * length))
            at += 0.25 * length
    run_steps = find_steps(run_of(events, samples=[host_sample(0)]))
    assert run_steps.detected_by == "repetition of aten::relu"
    assert len(run_steps) == len(starts) - 1


def test_operators_in_no_order_are_no_loop():
    names = np.random.default_rng(0).choice(["aten::mm", "aten::add", "aten::relu"], 200)
    lengths = np.random.default_rng(1).lognormal(0, 1.5, 200)
    starts = np.cumsum(lengths)
    events = [event(EventKind.OP, *each) for each in zip(names, starts, 0.5 * lengths, strict=True)]
    assert find_steps(run_of(events, samples=[host_sample(0)])).detected_by == "whole run"


def test_a_cell_without_a_loop_is_one_step():
    run_steps = find_steps(run_of([event(EventKind.OP, "aten::mm", 5, 10), event(EventKind.OP, "aten::add", 20, 5)]))
    assert (run_steps.detected_by, starts_ms(run_steps), run_steps.end_ns.tolist()) == ("whole run", [5], [25 * MS])
    assert run_steps.too_few


def test_a_loader_step_lasts_from_fetch_to_fetch_and_ends_with_the_pass():
    marks = [mark(0, 4), mark(10, 4), mark(20, 0.1, yielded=False), mark(50, 4, epoch=1), mark(60, 4, epoch=1)]
    marks += [mark(70, 0.1, epoch=1, yielded=False)]
    run_steps = find_steps(run_of(marks=marks, windows=[]))
    assert run_steps.detected_by == "DataLoader"
    assert starts_ms(run_steps) == [0, 10, 50, 60]
    assert (run_steps.end_ns / MS).tolist() == [10, 20, 60, 70]


def test_the_main_loader_defines_the_steps():
    train = [mark(at, 1, loader=0) for at in range(0, 100, 10)]
    val = [mark(at, 1, loader=1) for at in (100, 101)]
    assert starts_ms(find_steps(run_of(marks=train + val, windows=[])))[-1] == 80


def test_user_marks_take_precedence():
    marks = [mark(at, 1) for at in range(0, 50, 5)] + [mark(at, 0, kind=MarkKind.USER) for at in (0, 20, 40)]
    run_steps = find_steps(run_of(marks=marks, windows=[]))
    assert (run_steps.detected_by, starts_ms(run_steps)) == ("gpulab.step()", [0, 20])


def test_unprofiled_steps_are_those_outside_windows_and_pauses_and_after_warm_up():
    marks = [mark(at, 1) for at in range(0, 200, 10)]
    run_steps = find_steps(run_of(marks=marks, windows=[(70, 130)], pauses=[(69, 70), (130, 138)]))
    unprofiled = [start for start, is_plain in zip(starts_ms(run_steps), run_steps.unprofiled, strict=True) if is_plain]
    assert unprofiled == [20, 30, 40, 50, 140, 150, 160, 170, 180]
    interior = [start for start, inside in zip(starts_ms(run_steps), run_steps.interior, strict=True) if inside]
    assert interior == [80, 90, 100, 110]


def test_time_of_gpulab_in_the_main_thread_belongs_to_no_step():
    marks = [mark(0, 1), mark(10, 1), mark(55, 1), mark(65, 1)]
    run_steps = find_steps(run_of(marks=marks, windows=[(0, 20)], pauses=[(20, 54)]))
    assert run_steps.end_ns.tolist()[1] == 20 * MS


def test_a_pause_soon_after_a_short_step_is_at_its_end():
    """A window starts when the loop asks for the next batch: here, 0.2 ms after the latest mark."""
    marks = [mark(at, 0.02) for at in (0, 0.2, 0.4, 4.0, 4.2, 4.4)]
    run_steps = find_steps(run_of(marks=marks, windows=[(3.9, 5)], pauses=[(0.6, 3.99)]))
    assert starts_ms(run_steps) == [0, 0.2, 0.4, 4.0, 4.2]
    assert run_steps.recorded.tolist() == [False, False, False, True, True]
    assert run_steps.dur_ns.tolist() == pytest.approx([0.2 * MS] * 5)


def test_empty_steps_are_not_interior():
    events = [
        event(EventKind.STEP, f"ProfilerStep#{number}", at, 0) for number, at in enumerate([0, 0, 0, 0, 0, 10, 20])
    ]
    run_steps = find_steps(run_of(events))
    assert (run_steps.dur_ns[run_steps.interior] > 0).all()
    assert run_steps.traced_ns == 10 * MS


def test_inflation_is_traced_over_unprofiled_step_time():
    marks = [mark(at, 1) for at in range(0, 60, 10)] + [mark(60 + 12 * k, 1) for k in range(8)]
    run_steps = find_steps(run_of(marks=marks, windows=[(59, 200)]))
    assert run_steps.profiler_overhead == pytest.approx(1.2)
    assert run_steps.step_ns == 10 * MS


def test_a_step_is_cut_by_a_window_that_ends_within_it_however_short_the_pause_is():
    marks = [mark(1000 * step, 0, kind=MarkKind.OPTIMIZER) for step in range(4)]
    run_steps = find_steps(run_of(marks=marks, windows=[(1002, 1200)], pauses=[(1000.1, 1002), (1200, 1200.4)]))
    assert not run_steps.recorded.any()
    assert not run_steps.interior.any()


def test_a_step_with_a_pause_within_it_is_no_evidence_and_one_with_a_pause_at_its_start_begins_after_it():
    marks = [mark(at, 0, kind=MarkKind.OPTIMIZER) for at in (0, 100, 200, 300, 400)]
    run_steps = find_steps(run_of(marks=marks, windows=[(0, 400)], pauses=[(140, 150), (200.01, 205)]))
    assert run_steps.recorded.tolist() == [True, False, True, True]
    assert starts_ms(run_steps) == [0, 100, 205, 300]
    assert (run_steps.end_ns / MS).tolist()[2:] == [300, 400]


@pytest.mark.parametrize(
    ("recorded", "interior"),
    [
        ("", ""),
        ("1", "1"),
        ("11", ".1"),
        ("1111", ".11."),
        ("1...11111...1111", ".....111.....11."),
        ("1...111..11..11", ".....1........."),
        ("1...11..11", ".....1...1"),
        ("1....1...1", ".....1...1"),
    ],
)
def test_the_edges_of_each_recorded_part_are_no_evidence_if_there_is_better(recorded, interior):
    mask = np.array([mark == "1" for mark in recorded], bool)
    assert "".join(".1"[int(each)] for each in interior_of_parts(mask)) == interior.ljust(len(recorded), ".")


def test_a_picture_shows_adjacent_steps():
    events = [event(EventKind.STEP, f"ProfilerStep#{number}", 10 * number, 10) for number in range(90)]
    run_steps = find_steps(run_of(events, windows=[(20, 50), (300, 360), (600, 640)]))
    assert run_steps.interior.sum() == 1 + 4 + 2
    shown = middle_window(run_steps)
    assert shown.steps == (31, 32, 33)
    assert (shown.start_ns, shown.end_ns) == (310 * MS, 340 * MS)


def test_steps_at_edges_are_too_few_however_many_there_are():
    events = [event(EventKind.STEP, f"ProfilerStep#{number}", 10 * number, 10) for number in range(60)]
    windows = [(10 * first, 10 * first + 10) for first in range(5, 60, 6)]
    run_steps = find_steps(run_of(events, windows=windows))
    assert run_steps.interior.sum() == len(windows)
    assert run_steps.too_few
