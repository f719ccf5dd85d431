"""A predicted run is a run: unchanged it is the recording, changed it has the predicted step, and every view serves."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab import store
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.critical_path import is_device_bound
from gpulab.replay.parsing import parse_changes
from gpulab.replay.predicted_run import predicted_run
from gpulab.replay.prediction import build_replay_model, predict
from gpulab.replay.rewrite import MIDDLE
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.sweep import sweep
from gpulab.run import Source
from gpulab.tables import DEVICE_KINDS, SIDE_TABLES, EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, launched_kernel, loader_call, mark, on_gpu, run_of, stepped
from tests.support.runs.predicted import reading
from tests.support.runs.simulated_machine import Call, graph, loops, run_like, step_ms
from tests.support.tiers import examples

TRACES = (
    *("v100_resnet50_workers0", "v100_resnet50_workers4", "v100_ns_resolution", "h100_timesformer_inference"),
    *("h100_bert_small_inference", "b200_eager", "cuda_event_sync", "mi300_compiled_triton", "cpu_only_gloo"),
)
LOGGING = [*[Call(host_us=15.0, kernel_us=25.0)] * 20, Call(waits=True), Call(host_us=300.0, kernel_us=5.0)]


def accounts(run):
    return build_ledger(run, find_steps(run))


def same_ledger(one, other, within_ns):
    assert len(one.step_ns) == len(other.step_ns)
    for part in one.parts:
        assert np.abs(one.part_ns[part.key] - other.part_ns[part.key]).max() <= within_ns, part.key


calls = loops()


@examples(60)
@given(calls)
def test_unchanged_it_is_the_recording(loop):
    run = run_like(loop)
    schedule = sweep(graph(run))
    again = predicted_run(schedule)
    assert len(again.event_rows) == len(run.event_rows)
    assert np.abs(again.event_rows["start_ns"] - run.event_rows["start_ns"]).max() <= 2
    assert np.abs(again.event_rows["dur_ns"] - run.event_rows["dur_ns"]).max() <= 3
    if not is_device_bound(schedule):  # else its steps are those of the device
        same_ledger(accounts(again), accounts(run), 200)


@examples(60)
@given(calls, st.floats(0.05, 3), st.floats(0.05, 3))
def test_changed_its_events_keep_their_order_and_its_steps_are_the_replayed_ones(loop, gpu, host):
    run = run_like(loop, steps=8)
    base = graph(run)
    changed = base.with_device(dur_ns=base.device.dur_ns * gpu).with_host(call_ns=base.host.call_ns * host)
    schedule = sweep(changed.scaled_before(dict.fromkeys(changed.host.before_ns, host)))
    then = predicted_run(schedule)
    assert (then.event_rows["dur_ns"] >= 0).all()
    on_host = run.event_rows["thread"] >= 0
    order = np.argsort(run.event_rows["start_ns"][on_host], kind="stable")
    assert (np.diff(then.event_rows["start_ns"][on_host][order]) >= 0).all()
    run_steps = find_steps(then)
    lengths = schedule.device_steps_ns if is_device_bound(schedule) else schedule.host_steps_ns
    assert run_steps.dur_ns[run_steps.interior] == pytest.approx(lengths, abs=3)


@examples(40)
@given(calls, st.floats(0.05, 3))
def test_what_lay_inside_what_still_does(loop, host):
    run = run_like(loop)
    base = graph(run)
    then = predicted_run(sweep(base.scaled_before(dict.fromkeys(base.host.before_ns, host))))
    marks, rows = (each.of_kind(EventKind.STEP) for each in (run.event_rows, then.event_rows)), then.event_rows
    for before, after in zip(*(each.frame().itertuples() for each in marks), strict=True):
        old = run.event_rows
        inside = (old["start_ns"] >= before.start_ns) & (
            old["start_ns"] + old["dur_ns"] <= before.start_ns + before.dur_ns
        )
        inside &= old["thread"] >= 0
        assert (rows["start_ns"][inside] >= after.start_ns).all()
        assert (rows["start_ns"][inside] + rows["dur_ns"][inside] <= after.start_ns + after.dur_ns).all()


@pytest.mark.parametrize("name", TRACES)
def test_of_a_real_run_unchanged_the_ledger_is_the_recorded_one(name, recorded):
    run = gpulab.load(recorded(f"{name}.json.gz"))
    again = predicted_run(sweep(graph(run)))
    same_ledger(accounts(again), accounts(run), 2_000)  # old traces tell whole microseconds


@pytest.mark.full
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("change", ["instant_host", "instant_gpu", "no_syncs", "pin_memory", "accumulate=4"])
def test_of_a_real_run_changed_the_step_is_the_predicted_one(name, change, recorded):
    run = gpulab.load(recorded(f"{name}.json.gz"))
    run_steps = find_steps(run)
    ready = build_replay_model(run, run_steps, build_ledger(run, run_steps))
    (one,) = parse_changes(change)
    if one.rewrite.refusal_reason(ready.graph, one.value) is not None:
        pytest.skip("this run cannot tell of it")
    prediction = predict(ready, (one,), samples=2)
    then = predicted_run(prediction.schedule)
    # A run without steps ends with its last work: a call that returns after that is not counted.
    assert find_steps(then).step_ns == pytest.approx(prediction.schedule.host_device_step_ns, rel=0.02, abs=50_000)
    parts = accounts(then)
    assert parts.device == ready.graph.ledger.device
    assert sum(parts.part_ns.values()).tolist() == parts.step_ns.tolist()


def test_where_the_gpu_sets_the_pace_its_steps_are_the_gpus():
    loop = [Call(host_us=40.0, kernel_us=30.0)] * 20
    base = graph(run_like(loop, steps=12))
    schedule = sweep(base.scaled_before(dict.fromkeys(base.host.before_ns, 0.2)))
    assert is_device_bound(schedule)
    assert find_steps(predicted_run(schedule)).step_ns / 1e6 == pytest.approx(step_ms(loop, host=0.2), rel=0.05)


def test_steps_seen_beside_the_recorded_ones_are_not_predicted_and_no_recorded_one_is_lost():
    def step(at):
        return [loader_call(at, 30.0), event(EventKind.OP, "aten::mm", at + 31.0, 60.0)]

    events = [each for number in range(10, 20) for each in step(100.0 * number)]
    marks = [mark(100.0 * number, 30.0) for number in range(40)]
    run = run_of(events, marks=marks, loaders=[NO_WORKERS], windows=[(995, 1998)], pauses=[(990, 995), (1998, 1999)])
    base = graph(run)
    assert find_steps(run).unprofiled_ns is not None
    schedule = sweep(base.scaled_before({"loader": 0.5}))
    run_steps = find_steps(predicted_run(schedule))
    assert run_steps.unprofiled_ns is None
    assert run_steps.dur_ns[run_steps.interior].tolist() == np.rint(schedule.host_steps_ns).astype(int).tolist()
    assert run_steps.traced_ns == 85_000_000


# What is not done any more is not there.


def test_work_and_calls_that_a_change_takes_away_are_gone_and_side_tables_follow():
    run = reading()
    then = predicted_run(sweep(BY_NAME["no_syncs"].edit(graph(run), True, MIDDLE)))
    kinds = then.event_rows["kind"]
    assert not np.isin(kinds, (EventKind.MEMCPY, EventKind.SYNC, EventKind.COPY_CALL)).any()
    assert (kinds == EventKind.KERNEL).sum() == (run.event_rows["kind"] == EventKind.KERNEL).sum()

    def grids(some):
        names = some.event_rows.text("name").select(some.grid_rows["event"]).to_list()
        return sorted(zip(names, some.grid_rows["grid"].tolist(), strict=True))

    assert grids(then) == grids(run)
    assert len(grids(then)) == 12


def test_a_gpu_that_takes_no_time_is_still_a_gpu():
    then = predicted_run(sweep(BY_NAME["instant_gpu"].edit(graph(reading()), True, MIDDLE)))
    assert np.isin(then.event_rows["kind"], DEVICE_KINDS).any()
    assert accounts(then).device == "gpu"


def test_a_part_that_takes_less_takes_less_of_it_and_leaves_the_others():
    def step(at):
        kernel = launched_kernel(
            "ampere_sgemm", at + 61.0, 10.0, number=round(at) + 1, op="aten::mm", called_ms=at + 60.0
        )
        return [loader_call(at, 40.0), *kernel]

    run = on_gpu(stepped(step, count=6, step_ms=100.0))
    then = accounts(predicted_run(sweep(graph(run).scaled_before({"loader": 0.25}))))
    before = accounts(run)
    assert then.median_ns("loader") == pytest.approx(before.median_ns("loader") / 4, rel=0.01)
    assert then.median_ns("python") == pytest.approx(before.median_ns("python"), abs=2_000)


# It says that it is predicted.


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("measured", "predicted from a run measured here on H100"),
        ("recorded", "predicted from a run recorded on H100, 2026-01-01"),
        ("virtual", "predicted from a run on a virtual H100, estimated"),
    ],
)
def test_a_predicted_run_names_the_one_it_was_predicted_from(source, label):
    run = dataclasses.replace(reading(), source=Source(how=source, device="H100", date="2026-01-01"))
    then = predicted_run(sweep(graph(run)))
    assert str(then.source) == label
    assert then.source.how == "predicted"


def test_a_predicted_run_has_no_sensors_and_can_be_kept(tmp_path):
    then = predicted_run(sweep(graph(reading())))
    assert not any(len(rows) for rows in (then.gpu_rows, then.host_rows, then.memory_rows, then.allocator_rows))
    path = tmp_path / "then.gpulab"
    gpulab.save(then, path)
    again = gpulab.load(path)
    assert again.source == then.source
    assert (again.event_rows["start_ns"] == then.event_rows["start_ns"]).all()
    assert store.is_run(path)


def test_every_view_serves_a_predicted_run():
    then = predicted_run(sweep(BY_NAME["no_syncs"].edit(graph(reading()), True, MIDDLE)))
    report = gpulab.report(then)
    assert "predicted from a run recorded on Made GPU" in repr(report)
    assert "data:image/svg+xml" in report._repr_html_()
    assert {table.name for table in SIDE_TABLES} <= {"grids", "shapes", "collectives", "waits"}


def test_a_device_that_works_less_in_the_same_step_has_a_smaller_busy_share():
    def step(at):
        return launched_kernel(
            "ampere_sgemm", at + 61.0, 30.0, number=round(at) + 1, op="aten::mm", called_ms=at + 60.0
        )

    run = on_gpu(stepped(step, count=6, step_ms=100.0))
    steps = find_steps(run)
    model = build_replay_model(run, steps, build_ledger(run, steps))
    assert model.busy_frac == pytest.approx(0.30, abs=0.005)
    assert predict(model, parse_changes("instant_gpu")).busy_frac < 0.001
    assert predict(model, parse_changes("instant_host")).busy_frac > 0.9
