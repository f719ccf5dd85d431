"""When the profiler is on: the plan, fed with made-up clocks."""

from itertools import pairwise

import pytest

from gpulab.capture.plan import MAX_RESTARTS, ProfilerAction, ProfilerPhase, RecordingLimits, RecordingPlan

MS = 1_000_000
SECOND = 1000 * MS


def limits_of(**more):
    """The limits with five warm-up steps, however short they are."""
    return RecordingLimits(**{"short_warm_up_steps": 5, **more})


def plan_with(**limits):
    plan = RecordingPlan(limits_of(**limits))
    plan.begin(0)
    return plan


def walk(plan, steps, step_ns, known_steps=None, start_ns=0, step_events=None):
    """Feed this number of boundaries; return the actions as {boundary number: action}."""
    acts, events = {}, None
    for number in range(1, steps + 1):
        events = None if events is None else events + step_events
        act = plan.boundary(start_ns + number * step_ns, known_steps, events)
        if act is not ProfilerAction.NONE:
            acts[number] = act
        if act is ProfilerAction.START and step_events is not None:
            events = 0
    return acts


def test_a_long_loop_is_recorded_for_one_second_after_opening_and_warm_up():
    plan = plan_with()
    acts = walk(plan, 1000, 10 * MS)
    assert acts == {2: ProfilerAction.STOP, 7: ProfilerAction.START, 107: ProfilerAction.STOP}
    assert plan.phase is ProfilerPhase.DONE


def test_few_slow_steps_are_enough():
    acts = walk(plan_with(), 30, 4 * SECOND)
    assert acts == {2: ProfilerAction.STOP, 7: ProfilerAction.START, 12: ProfilerAction.STOP}


def test_a_loader_known_to_be_short_leaves_more_steps_to_record():
    assert walk(plan_with(), 8, 10 * MS, known_steps=8) == {2: ProfilerAction.STOP, 4: ProfilerAction.START}


def test_recording_stops_before_too_many_events():
    plan = plan_with(max_events=1000)
    walk(plan, 2, 10 * MS)
    assert walk(plan, 50, 10 * MS, start_ns=20 * MS, step_events=100) == {
        5: ProfilerAction.START,
        15: ProfilerAction.STOP,
    }


def test_recording_stops_before_a_step_that_would_exceed_the_limit():
    plan = plan_with(max_events=12_000)
    walk(plan, 2, 10 * MS)
    assert walk(plan, 50, 10 * MS, start_ns=20 * MS, step_events=5000) == {
        5: ProfilerAction.START,
        7: ProfilerAction.STOP,
    }
    assert not plan.resume(10_000)
    assert plan.phase is ProfilerPhase.RESTING


def walk_dense(plan, steps, step_ns, step_events):
    """Feed boundaries of steps with many events, and resume as the recording does; return the windows in steps."""
    windows, events = [], None
    for number in range(1, steps + 1):
        events = None if events is None else events + step_events
        act = plan.boundary(number * step_ns, None, events)
        if act is ProfilerAction.START:
            windows.append([number])
            events = 0
        elif act is ProfilerAction.STOP and windows:
            windows[-1].append(number)
            plan.resume(events)
            events = None
    return windows


def test_steps_with_many_events_are_recorded_in_several_windows():
    windows = walk_dense(plan_with(max_events=40_000), 2000, 20 * MS, 11_000)
    assert [last - first for first, last in windows] == [3] * limits_of().max_windows
    for (_, ended), (began, _) in pairwise(windows):
        assert (began - ended) * 20 * MS >= limits_of().rest_ns
        assert began - ended >= limits_of().rest_steps


def test_the_next_window_comes_soon_if_the_loop_waited_briefly():
    plan = plan_with(max_events=40_000)
    plan.held_ns = 60 * MS
    windows = walk_dense(plan, 200, 12 * MS, 25_000)
    assert len(windows) == limits_of().max_windows
    for (_, ended), (began, _) in pairwise(windows):
        assert began - ended == limits_of().rest_holds * 60 / 12


@pytest.mark.parametrize("held_ms", [[100, 100], [40, 400], [300, 20]])
def test_ranks_record_the_same_steps_although_each_waits_for_its_profiler_for_another_time(held_ms):
    recorded = []
    for held in held_ms:
        plan = plan_with(max_events=40_000, aligned_steps=4, aligned_later_steps=12)
        plan.held_ns = held * MS
        recorded.append(walk_dense(plan, 200, 100 * MS, 11_000))
    first, second = recorded
    assert len(first) == limits_of().max_windows
    assert [began for began, _ in first] == [began for began, _ in second]
    assert first[0][0] % 4 == 0
    assert all(began % 12 == 0 for began, _ in first[1:])


def test_windows_end_with_the_target():
    windows = walk_dense(plan_with(max_events=10_000, target_steps=14), 2000, 400 * MS, 1000)
    assert [last - first for first, last in windows] == [10, 4]


def test_slow_steps_with_many_events_rest_for_a_few_steps():
    windows = walk_dense(plan_with(max_events=40_000), 60, 2 * SECOND, 39_000)
    assert [last - first for first, last in windows] == [1] * 4
    assert {began - ended for (_, ended), (began, _) in pairwise(windows)} == {limits_of().rest_steps}


@pytest.mark.parametrize(("events", "phase"), [(25_000, ProfilerPhase.RESTING), (35_000, ProfilerPhase.DONE)])
def test_no_further_window_is_recorded_if_a_step_does_not_fit_into_one(events, phase):
    plan = recording_plan(max_events=40_000)
    plan.exceed(80 * MS)
    assert not plan.resume(events)
    assert plan.phase is phase
    assert plan.is_cut


def test_if_the_number_of_events_is_unknown_two_windows_are_tried():
    plan = recording_plan()
    phases = []
    for at_ns in (80 * MS, 5 * SECOND):
        plan.exceed(at_ns)
        assert not plan.resume(None)
        phases.append(plan.phase)
        walk(plan, 5, 100 * MS, start_ns=at_ns)
    assert phases == [ProfilerPhase.RESTING, ProfilerPhase.DONE]


def test_a_run_says_that_too_few_steps_were_recorded_only_if_that_is_so():
    plan = plan_with(max_events=40_000)
    walk_dense(plan, 12, 500 * MS, 39_000)
    assert plan.is_cut
    walk_dense(plan, 60, 500 * MS, 39_000)
    assert not plan.is_cut


def recording_plan(**limits):
    plan = plan_with(**limits)
    walk(plan, 2, 10 * MS)
    walk(plan, 5, 10 * MS, start_ns=20 * MS)
    assert plan.phase is ProfilerPhase.RECORDING
    return plan


@pytest.mark.parametrize("events", [None, 501, 1000])
def test_a_step_with_too_many_events_is_cut(events):
    plan = recording_plan(max_events=1000)
    assert plan.exceed(80 * MS) is ProfilerAction.STOP
    assert plan.exceed(90 * MS) is ProfilerAction.NONE
    assert not plan.resume(events)
    assert plan.phase in (ProfilerPhase.RESTING, ProfilerPhase.DONE)
    assert plan.is_cut
    assert not plan.resume(0), "only what ended early is resumed"


@pytest.mark.parametrize("events", [0, 500])
def test_a_phase_that_ended_early_for_events_that_do_not_exist_is_resumed(events):
    plan = recording_plan(max_events=1000)
    plan.exceed(80 * MS)
    assert plan.is_interrupted
    assert plan.resume(events)
    assert (plan.phase, plan.is_cut, plan.allowed_events) == (ProfilerPhase.RECORDING, False, 1000 - events)
    assert walk(plan, 200, 10 * MS, start_ns=80 * MS) == {99: ProfilerAction.STOP}, "it ends as planned"
    assert not plan.is_interrupted


def test_events_of_windows_that_ended_early_are_added():
    plan = recording_plan(max_events=1000)
    plan.exceed(80 * MS)
    assert plan.resume(300)
    plan.exceed(90 * MS)
    assert not plan.resume(300)


def test_the_profiler_does_not_start_again_and_again():
    plan, restarts = recording_plan(), 0
    while plan.exceed(80 * MS) is ProfilerAction.STOP and plan.resume(0):
        restarts += 1
    assert 2 <= restarts < 20


def test_an_opening_is_resumed_and_its_events_do_not_count_for_the_recorded_steps():
    plan = plan_with(max_events=1000)
    assert plan.exceed(MS) is ProfilerAction.STOP
    assert plan.resume(400)
    assert (plan.phase, plan.allowed_events) == (ProfilerPhase.OPENING, 600)
    walk(plan, 7, 10 * MS)
    assert (plan.phase, plan.allowed_events) == (ProfilerPhase.RECORDING, 1000)


def test_code_that_has_ended_is_not_resumed():
    plan = recording_plan()
    plan.exceed(80 * MS)
    plan.stop_for_good(81 * MS)
    assert not plan.resume(0)
    assert not plan.is_cut, "everything up to the end was recorded"


def test_the_requested_number_of_steps_is_planned():
    assert walk(plan_with(steps=4), 50, MS) == {
        2: ProfilerAction.STOP,
        7: ProfilerAction.START,
        11: ProfilerAction.STOP,
    }


def test_a_cell_without_steps_is_recorded_for_a_limited_time():
    plan = plan_with(opening_timeout_ns=2 * SECOND)
    assert plan.tick(1 * SECOND) is ProfilerAction.NONE
    assert plan.tick(3 * SECOND) is ProfilerAction.STOP
    assert plan.tick(4 * SECOND) is ProfilerAction.NONE


def test_the_opening_begins_after_the_imports_of_the_cell():
    plan = plan_with(opening_timeout_ns=2 * SECOND)
    for second in range(1, 9):
        assert plan.may_be_postponed
        plan.postpone(second * SECOND)
        assert plan.tick(second * SECOND) is ProfilerAction.NONE
    assert plan.tick(9 * SECOND) is ProfilerAction.NONE
    assert plan.tick(11 * SECOND) is ProfilerAction.STOP
    assert not plan.may_be_postponed


def test_memory_of_imported_packages_does_not_end_the_opening():
    plan = plan_with()
    for number in range(3 * MAX_RESTARTS):
        plan.postpone(number * SECOND)
        assert plan.exceed(number * SECOND + 1) is ProfilerAction.STOP
        assert plan.resume(0)
        assert plan.phase is ProfilerPhase.OPENING


def test_a_loop_that_begins_after_a_long_set_up_is_still_recorded():
    plan = plan_with(opening_timeout_ns=2 * SECOND)
    assert plan.tick(3 * SECOND) is ProfilerAction.STOP
    acts = walk(plan, 300, 10 * MS, start_ns=60 * SECOND)
    assert list(acts.values()) == [ProfilerAction.START, ProfilerAction.STOP]


def test_recording_ends_with_the_loop_while_the_cell_continues():
    plan = plan_with(idle_timeout_ns=5 * SECOND)
    walk(plan, 20, 10 * MS)
    assert plan.phase is ProfilerPhase.RECORDING
    assert plan.tick(4 * SECOND) is ProfilerAction.NONE
    assert plan.tick(6 * SECOND) is ProfilerAction.STOP
    assert plan.phase is ProfilerPhase.DONE


def test_a_slow_step_is_not_mistaken_for_the_end_of_the_loop():
    plan = plan_with(idle_timeout_ns=5 * SECOND)
    walk(plan, 8, 4 * SECOND)
    assert plan.phase is ProfilerPhase.RECORDING
    assert plan.tick(8 * 4 * SECOND + 15 * SECOND) is ProfilerAction.NONE


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_stopped_plan_does_not_start_again(steps):
    plan = plan_with()
    walk(plan, steps, MS)
    plan.stop_for_good(steps * MS)
    assert walk(plan, 100, MS, start_ns=steps * MS) == {}
    assert plan.tick(99 * SECOND) is ProfilerAction.NONE


@pytest.mark.parametrize(("step_ms", "is_recorded"), [(500, False), (20, True)])
def test_steps_that_cannot_fit_into_a_window_are_not_recorded(step_ms, is_recorded):
    plan = plan_with(max_events=40_000)
    plan.begin(0)
    plan.boundary(10 * MS)
    assert plan.exceed(30 * MS) is ProfilerAction.STOP
    plan.resume(30_000)  # a million events per second
    acts = [plan.boundary(10 * MS + number * step_ms * MS) for number in range(1, 30)]
    assert (ProfilerAction.START in acts) is is_recorded
    assert plan.is_cut is not is_recorded


@pytest.mark.parametrize(("rate", "is_recorded"), [(130_000, True), (290_000, True), (310_000, False)])
def test_a_step_that_does_not_fit_into_a_window_is_recorded_in_a_deferred_one(rate, is_recorded):
    plan = plan_with(max_events=40_000, max_deferred_events=200_000)
    plan.begin(0)
    plan.boundary(10 * MS)
    plan.exceed(10 * MS + SECOND // 10)
    plan.resume(rate * 11 // 100)  # events per second, and steps of a second
    acts = [plan.boundary(10 * MS + number * SECOND) for number in range(1, 8)]
    assert (ProfilerAction.START in acts) is plan.is_deferred is is_recorded
    assert (plan.allowed_events == 200_000) is is_recorded


@pytest.mark.parametrize(("step_ms", "is_deferred"), [(100, True), (20, False)])
def test_the_rate_of_events_before_the_first_step_shows_that_a_step_does_not_fit(step_ms, is_deferred):
    plan = plan_with(max_events=40_000, max_deferred_events=200_000)
    plan.exceed(40 * MS)
    plan.resume(30_000)  # 750 events per millisecond; then steps of 75,000 or 15,000
    walk(plan, 10, step_ms * MS, start_ns=50 * MS)
    assert plan.phase is ProfilerPhase.RECORDING
    assert plan.is_deferred is is_deferred


def deferring_plan():
    plan = recording_plan(max_events=40_000, max_deferred_events=200_000)
    plan.exceed(80 * MS)
    assert not plan.resume(35_000)
    return plan


def test_after_a_window_without_a_complete_step_comes_one_deferred_window():
    plan = deferring_plan()
    assert (plan.phase, plan.is_deferred) == (ProfilerPhase.RESTING, True)
    acts = walk(plan, 40, 500 * MS, start_ns=80 * MS, step_events=70_000)
    assert list(acts.values()) == [ProfilerAction.START, ProfilerAction.STOP]
    assert [last - first for first, last in [acts]] == [2]
    assert plan.phase is ProfilerPhase.DONE


def test_steps_of_a_deferred_window_that_the_end_of_the_code_ends_count():
    plan = deferring_plan()
    walk(plan, 9, 500 * MS, start_ns=80 * MS)
    assert (plan.phase, plan.is_cut) == (ProfilerPhase.RECORDING, True)
    plan.stop_for_good(20 * SECOND)
    assert not plan.is_cut


def test_there_is_no_window_after_one_that_is_too_large():
    plan = recording_plan(max_deferred_events=200_000)
    plan.give_up(80 * MS)
    assert walk(plan, 100, 100 * MS, start_ns=80 * MS) == {}
    assert plan.is_cut


def test_requested_steps_are_not_deferred():
    plan = plan_with(steps=3, max_events=40_000, max_deferred_events=200_000)
    plan.begin(0)
    plan.boundary(10 * MS)
    plan.exceed(10 * MS + SECOND // 10)
    plan.resume(30_000)
    for number in range(1, 30):
        plan.boundary(10 * MS + number * SECOND)
    assert not plan.is_deferred


def test_a_window_that_ends_early_with_few_events_within_an_operator_is_not_the_end_of_the_recording():
    plan = RecordingPlan(limits=limits_of())
    plan.begin(0)
    at_ns = 0
    for _ in range(7):
        at_ns += 70 * MS
        plan.boundary(at_ns)
    assert plan.phase is ProfilerPhase.RECORDING
    assert plan.exceed(at_ns + 60 * MS) is ProfilerAction.STOP
    assert not plan.resume(12, may_restart=False)
    assert plan.phase is ProfilerPhase.RESTING
    for _ in range(40):
        at_ns += 70 * MS
        plan.boundary(at_ns)
    assert plan.phase is ProfilerPhase.DONE
    assert plan.windows == 0
    assert not plan.is_cut


def test_windows_that_always_end_early_within_an_operator_do_not_go_on_forever():
    plan = RecordingPlan(limits=limits_of())
    plan.begin(0)
    alarms = 0
    for step in range(1000):
        plan.boundary(70 * MS * step)
        if plan.exceed((70 * step + 60) * MS) is ProfilerAction.STOP:
            plan.resume(12, may_restart=False)
            alarms += plan.boundaries > 1
    assert 8 <= alarms <= 14
    assert plan.phase is ProfilerPhase.DONE
    assert plan.is_cut


@pytest.mark.parametrize(("step_ms", "warm"), [(8, 8), (70, 5)])
def test_short_steps_are_measured_without_the_profiler_a_little_longer(step_ms, warm):
    plan = RecordingPlan(limits=RecordingLimits())
    plan.begin(0)
    steps = 0
    while plan.boundary(steps * step_ms * MS) is not ProfilerAction.START:
        steps += 1
    assert steps == warm + 1


def start_of_ranks(openings, steps_ms, known_steps=None):
    """Return after which boundary each of several ranks starts to record, and after which one it rests and restarts."""
    starts = []
    for opening_ns, step_ms in zip(openings, steps_ms, strict=True):
        plan = RecordingPlan(RecordingLimits(aligned_steps=4))
        plan.begin(0)
        if opening_ns:
            plan.tick(opening_ns)
        acts = walk(plan, 14, step_ms * MS, known_steps, start_ns=opening_ns)
        starts.append([number for number, act in acts.items() if act is ProfilerAction.START])
    return starts


@pytest.mark.parametrize("known_steps", [None, 14])
def test_ranks_record_the_same_steps_although_one_starts_later_and_has_longer_steps(known_steps):
    first, *others = start_of_ranks([0, 3 * SECOND, 0], [30, 40, 70], known_steps)
    assert first
    assert others == [first, first]


def test_windows_of_ranks_begin_at_multiples_of_the_same_number_of_steps():
    plan = RecordingPlan(RecordingLimits(aligned_steps=4, max_events=1000, rest_ns=0))
    plan.begin(0)
    acts = walk(plan, 200, 10 * MS, step_events=300)
    starts = [number for number, act in acts.items() if act is ProfilerAction.START]
    assert len(starts) > 1
    assert not [number for number in starts if number % 4]
