"""Rules about Python code, garbage collection, recompilation, the GIL and stalls: their numbers, and fixes that run."""

from __future__ import annotations

import collections
import copy
import gc
import io
import re
from dataclasses import replace

import numpy as np
import pytest

import gpulab
from gpulab.analysis.host.cpu_use import thread_cpu_use
from gpulab.analysis.host.gap_neighbors import gap_neighbors
from gpulab.analysis.host.gc_and_compilation import gc_cost
from gpulab.analysis.host.python_time import classify_python_time
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.analysis.steps.pauses import find_pauses
from gpulab.intervals import Spans
from gpulab.rules import diagnose
from gpulab.rules.engine.evidence import with_warm_caches_ns
from gpulab.run import Loader, Model, RepeatedInputs
from gpulab.tables import STALLS, EventKind, StallKind
from tests.cases.host.frozen_outputs.case import loop, provoked_by_a_teacher_after_the_student
from tests.cases.host.work_outside_model.case import provoked_by_a_graph_that_is_built_again_in_every_step
from tests.support.runs.made_runs import MS, event, host_samples, mark, rows, run_of, stall, stepped


def half_outside(at):
    return [event(EventKind.KERNEL, "ampere_sgemm", at + 50, 50)]


def analysed(analysis, run):
    detected_steps = find_steps(run)
    return analysis(run, detected_steps, build_ledger(run, detected_steps))


def finding(run, rule):
    return next(each for each in diagnose(run).findings if each.rule == rule)


def collected(*stalls, **more):
    return run_of(stepped(half_outside, count=10), stall_rows=rows(STALLS, stalls), **more)


def test_time_outside_pytorch_is_partitioned_exactly():
    stalls = [stall(100 * step + 1, 10) for step in range(10)]
    run = collected(*stalls, samples=host_samples(1000, main=0.75, others=0.15))
    times = analysed(classify_python_time, run)
    assert times.python_ns == 50 * MS
    assert times.collecting_ns == 10 * MS
    assert times.gil_ns == 15 * MS
    assert times.absent_ns == 10 * MS
    assert times.user_code_ns == 15 * MS


def test_without_samples_only_collections_are_subtracted():
    times = analysed(classify_python_time, collected(*[stall(100 * step + 1, 10) for step in range(10)]))
    assert (times.threads, times.gil_ns, times.absent_ns) == (None, 0, 0)
    assert times.user_code_ns == 40 * MS


def test_samples_interrupted_by_gpulab_are_not_used_for_threads():
    run = run_of(
        stepped(half_outside),
        samples=host_samples(600),
        pauses=[(step * 100 + 10, step * 100 + 20) for step in range(6)],
    )
    times = analysed(thread_cpu_use, run)
    assert times is None or times.main_frac == pytest.approx(1.0)
    assert analysed(
        thread_cpu_use, run_of(stepped(half_outside), samples=host_samples(600))
    ).main_frac == pytest.approx(1.0)


def test_a_short_loop_gives_no_thread_activity():
    assert (
        analysed(thread_cpu_use, run_of(stepped(half_outside, step_ms=10.0), samples=host_samples(60, every_ms=5)))
        is None
    )


def test_waiting_for_the_backward_thread_is_a_known_wait():
    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 20),
            event(EventKind.OP, "autograd::engine::evaluate_function: AddmmBackward0", at + 20, 60, thread=1),
            event(EventKind.KERNEL, "ampere_sgemm", at + 1, 80),
        ]

    times = analysed(thread_cpu_use, run_of(stepped(step), samples=host_samples(600, main=0.4)))
    assert times.wait_frac == pytest.approx(0.6)
    assert times.absent_frac == pytest.approx(0.0)


def test_waiting_for_the_exchange_between_ranks_on_cpus_is_a_known_wait():
    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 50),
            event(EventKind.ANNOTATION, "gloo:all_reduce", at + 40, 50, thread=1),  # for 40 ms, no operator runs
        ]

    run = run_of(stepped(step), samples=host_samples(600, main=0.6))
    times = analysed(thread_cpu_use, run)
    assert times.wait_frac == pytest.approx(0.4)
    assert times.absent_frac == pytest.approx(0.0)
    assert analysed(classify_python_time, run).absent_ns == 0


def test_frequent_collections_use_the_median_step_and_rare_ones_the_mean():
    every = analysed(gc_cost, collected(*[stall(100 * step + 5, 40) for step in range(10)]))
    rare = analysed(gc_cost, collected(stall(305, 40)))
    assert every.in_most
    assert every.per_step_ns == 40 * MS
    assert not rare.in_most
    assert rare.per_step_ns == rare.mean_ns == 40 * MS // 8


def test_only_the_exposed_half_of_a_collection_counts():
    run = run_of(
        stepped(lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at + 25, 75)], count=10),
        stall_rows=rows(STALLS, [stall(100 * step + 5, 40) for step in range(10)]),
    )
    result = finding(run, "garbage_collection")
    assert result.numbers["exposed_ns"] == 20 * MS


def test_an_explicit_gc_collect_is_named_with_its_line():
    stalls = [stall(100 * step + 5, 40, "gc.collect() in train (cell line 7)") for step in range(10)]
    result = finding(collected(*stalls), "garbage_collection")
    assert result.numbers["exposed_frac"] == pytest.approx(0.4)
    assert "gc.collect() (train (cell line 7))" in result.claim
    assert result.fix.startswith("# train (cell line 7)")
    assert "freeze" not in result.fix


def test_the_fix_for_automatic_collections_is_gc_freeze():
    result = finding(collected(*[stall(100 * step + 5, 40) for step in range(10)]), "garbage_collection")
    assert "gc.collect()" not in result.claim
    assert "gc.freeze()" in result.fix


def test_the_gain_includes_warmer_caches_without_collections():
    gain = finding(collected(*[stall(100 * step + 5, 40) for step in range(10)]), "garbage_collection").gain
    assert gain.step_ns == 100 * MS
    assert gain.worst_ns == 68 * MS
    assert gain.best_ns == gain.floor_ns == with_warm_caches_ns(60 * MS, 100 * MS) < 60 * MS
    assert not gain.is_mean


def test_a_recompiled_function_is_named_in_claim_and_fix():
    reason = "train_step (cell line 3), again: tensor 'x' size mismatch at index 0. expected 3, actual 4"
    stalls = [stall(100 * step + 2, 40, reason, StallKind.COMPILE) for step in range(10)]
    result = finding(collected(*stalls), "recompilation")
    assert result.numbers["exposed_frac"] == pytest.approx(0.4)
    assert "train_step (cell line 3)" in result.claim
    assert "train_step = torch.compile(train_step, dynamic=True)" in result.fix


def test_a_recompiled_model_is_named_as_the_user_names_it():
    reason = "a module, again: tensor 'x' size mismatch at index 0. expected 3, actual 4"
    stalls = [stall(100 * step + 2, 40, reason, StallKind.COMPILE) for step in range(10)]
    result = finding(collected(*stalls, models=(Model(kind="ResNet", name="net"),)), "recompilation")
    assert "compiling the model" in result.claim
    assert "net = torch.compile(net, dynamic=True)" in result.fix


def test_dynamic_sizes_are_not_proposed_if_no_size_changes():
    stalls = [
        stall(100 * step + 2, 40, "f (a.py:1), again: L['alpha'] == 0.5", StallKind.COMPILE) for step in range(10)
    ]
    assert "dynamic" not in finding(collected(*stalls), "recompilation").fix


def test_operators_run_by_the_compiler_are_not_device_work():
    step = lambda at: [event(EventKind.OP, "aten::addmm", at, 60), event(EventKind.OP, "aten::mm", at + 60, 40)]  # noqa: E731
    stalls = rows(STALLS, [stall(100 * number, 60, "f", StallKind.COMPILE) for number in range(10)])
    run = run_of(stepped(step, count=10), stall_rows=stalls)
    account = build_ledger(run, find_steps(run))
    assert account.typical_frac("compute") == pytest.approx(0.4)
    assert account.typical_frac("python") == pytest.approx(0.6)
    assert analysed(classify_python_time, run).user_code_ns == 0


def test_the_thread_that_holds_the_gil_is_named_in_claim_and_fix():
    samples = host_samples(600, main=0.5, others=0.5, others_frame="count_words (cell line 3)")
    result = finding(run_of(stepped(half_outside), samples=samples), "gil_contention")
    assert result.numbers["exposed_frac"] == pytest.approx(0.5, abs=0.01)
    assert result.claim.endswith(": count_words (cell line 3).")
    assert "count_words in a multiprocessing.Process" in result.advice
    assert result.confidence == "likely"


def test_with_full_cores_gil_contention_is_a_suspicion():
    samples = host_samples(600, main=0.5, others=0.5, cpu_frac=1.0, preempted=0.0)
    result = finding(run_of(stepped(half_outside), samples=samples), "gil_contention")
    assert result.confidence == "suspect"
    assert "all cores were busy" in result.confidence_reason


def test_a_wait_can_overlap_only_with_the_rest_of_the_step():
    samples = host_samples(600, main=0.2, frame="labels_of (cell line 4)")
    step = lambda at: [event(EventKind.OP, "aten::addmm", at + 80, 20)]  # noqa: E731
    gain = finding(run_of(stepped(step), samples=samples), "unexplained_idle").gain
    assert gain.floor_ns == pytest.approx(with_warm_caches_ns(20 * MS, 100 * MS), rel=0.01)
    assert gain.best_ns == pytest.approx(80 * MS, rel=0.01)


def test_a_loop_that_sleeps_most_of_its_time_has_that_as_its_verdict():
    samples = host_samples(600, main=0.02, frame="train (cell line 12)", called="sleep (time)")
    step = lambda at: [event(EventKind.OP, "aten::addmm", at + 97, 3)]  # noqa: E731
    diagnosis = diagnose(run_of(stepped(step), samples=samples))
    assert diagnosis.first is None  # the rest of a step is too short for an overlap to gain much
    assert "sleep (time), called by train (cell line 12)" in diagnosis.verdict
    assert re.search(r"9[5-8] % of each step", diagnosis.verdict)
    assert "Worth knowing" in diagnosis.verdict


def marked(step_ms, **more):
    starts = np.concatenate([[0.0], np.cumsum(step_ms)])
    return run_of(marks=[mark(start, 1.0) for start in starts], loaders=[Loader(workers=0)], windows=[], **more)


def every(period, count=80):
    return [20.0 + (100.0 if number % period == period - 1 else 0.0) for number in range(count)]


@pytest.mark.parametrize("each", [2, 3, 7, 10, 20])
def test_the_period_of_stalls_is_found(each):
    run = marked(every(each))
    stalls = find_pauses(run, find_steps(run))
    assert stalls.period_steps == each
    assert stalls.typical_cost_ns == 100 * MS


@pytest.mark.parametrize("function", ["torch.serialization.save", "__main__.save_checkpoint"])
def test_a_checkpoint_in_every_second_step_is_a_stall(function):
    samples = host_samples(4800, frame="train (cell line 9)", called=function, every_ms=10)
    result = finding(marked(every(2), samples=samples), "periodic_stalls")
    assert result.gain.step_ns == pytest.approx(70 * MS, rel=0.05)
    assert "save_in_background" in result.fix


@pytest.mark.parametrize("function", ["__main__.discriminator_step", "torch.utils.checkpoint.checkpoint"])
def test_work_in_every_second_step_is_no_stall(function):
    samples = host_samples(4800, frame="train (cell line 9)", called=function, every_ms=10)
    findings = diagnose(marked(every(2), samples=samples)).findings
    assert "periodic_stalls" not in {finding.rule for finding in findings}


@pytest.mark.parametrize("seed", range(20))
def test_random_slow_steps_have_no_period(seed):
    generator = np.random.default_rng(seed)
    run = marked([20.0 + (60.0 if generator.random() < 0.2 else 0.0) for _ in range(200)])
    stalls = find_pauses(run, find_steps(run))
    assert stalls is None or stalls.period_steps is None


def test_a_period_is_found_in_noise():
    generator = np.random.default_rng(3)
    noisy = [
        length + (float(generator.uniform(10, 25)) if generator.random() < 0.1 else 0.0) for length in every(10, 200)
    ]
    run = marked(noisy)
    assert find_pauses(run, find_steps(run)).period_steps == 10


def test_the_gain_of_periodic_stalls_is_of_the_mean_step():
    samples = host_samples(2400, frame="train (cell line 9)", called="torch.serialization.save", every_ms=10)
    result = finding(marked(every(10), samples=samples), "periodic_stalls")
    assert result.gain.is_mean
    assert result.gain.step_ns == pytest.approx(30 * MS, rel=0.05)
    assert result.gain.floor_ns == pytest.approx(with_warm_caches_ns(20 * MS, 30 * MS), rel=0.05)
    assert (result.numbers["every"], result.numbers["each_ns"]) == (10, 100 * MS)
    assert "checkpoint" in result.claim
    assert "train (cell line 9)" in result.claim
    assert "save_in_background" in result.fix


def test_unknown_code_that_takes_much_of_the_time_may_be_a_part_of_the_training():
    samples = host_samples(2400, frame="collect_rollout (cell line 8)", called=None, every_ms=10)
    result = finding(marked(every(10), samples=samples), "periodic_stalls")
    assert result.gain is None
    assert "collect_rollout" in result.claim
    assert "stall" not in result.claim


def test_periodic_stalls_are_judged_without_events():
    run = marked(every(10))
    assert len(run.event_rows) == 0
    assert diagnose(run).first.rule == "periodic_stalls"


def test_only_a_warm_up_that_takes_most_of_the_run_is_the_verdict():
    assert diagnose(marked([5000.0, *[20.0] * 40])).first.rule == "slow_first_step"
    short = diagnose(marked([300.0, *[20.0] * 40]))
    assert short.first is None
    assert [each.rule for each in short.findings] == ["slow_first_step"]


@pytest.mark.parametrize(("workers", "persistent", "once"), [(0, None, True), (4, True, True), (4, False, False)])
def test_a_warm_up_happens_once_unless_workers_restart_in_every_epoch(workers, persistent, once):
    loader = Loader(workers=workers, persistent_workers=persistent)
    (finding,) = diagnose(replace(marked([300.0, *[20.0] * 40]), loaders=(loader,))).findings
    assert (", once" in finding.claim) is once
    assert ("persistent_workers=True" in finding.advice) is not once


def test_an_imported_trace_is_not_judged_without_the_needed_data():
    unjudged = {each.rule for each in diagnose(run_of(stepped(half_outside))).unjudged}
    assert {"garbage_collection", "gil_contention", "unexplained_idle", "recompilation", "periodic_stalls"} <= unjudged


def test_the_checkpoint_fix_saves_a_copy_of_everything_each_time_it_is_called(tmp_path):
    torch = pytest.importorskip("torch")
    samples = host_samples(2400, frame="train (cell line 9)", called="torch.serialization.save", every_ms=10)
    namespace = {}
    exec(finding(marked(every(10), samples=samples), "periodic_stalls").fix, namespace)
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    kinds = collections.defaultdict(list, best=[torch.ones(2)])
    state = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 7,
        "history": (1, [2.5]),
        "x": kinds,
    }
    expected = copy.deepcopy(state)
    for name in ("a.pt", "b.pt"):
        namespace["save_in_background"](state, tmp_path / name)
    with torch.no_grad():
        net.weight.zero_()  # training goes on
    for thread in namespace["writers"]:
        thread.join()
    for name in ("a.pt", "b.pt"):
        saved = torch.load(tmp_path / name, weights_only=False)
        assert saved.keys() == expected.keys()
        assert torch.equal(saved["model"]["weight"], expected["model"]["weight"])
        assert saved["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
        assert (saved["step"], saved["history"], type(saved["x"])) == (7, (1, [2.5]), collections.defaultdict)


def test_the_prefetch_fix_gives_the_same_results_in_order():
    samples = host_samples(600, main=0.5, frame="labels_of (cell line 4)")
    namespace = {}
    exec(finding(run_of(stepped(half_outside), samples=samples), "unexplained_idle").fix, namespace)
    assert list(namespace["prefetch"](lambda number: number * number, range(5))) == [0, 1, 4, 9, 16]
    assert list(namespace["prefetch"](abs, [])) == []


@pytest.mark.full
def test_the_gc_fix_disables_automatic_collection():
    fix = finding(collected(*[stall(100 * step + 5, 40) for step in range(10)]), "garbage_collection").fix
    namespace = {}
    try:
        exec(fix, namespace)
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
        namespace["collect_sometimes"](1000)
    finally:
        gc.enable()
        gc.unfreeze()


def test_the_function_that_prepares_samples_is_named_and_no_code_guesses_what_it_takes():
    samples = host_samples(600, frame="double (cell line 4)", every_ms=10)
    loaders = [Loader(workers=0, batch_size=2, name="batches", dataset_name="pairs")]
    result = finding(run_of(stepped(half_outside), samples=samples, loaders=loaders), "host_python")
    assert result.fix == ""
    assert "double()" in result.advice
    assert "collate_fn" in result.advice
    assert "set num_workers=" in result.advice


def test_code_that_moves_to_a_loader_with_workers_needs_no_other_number_of_workers():
    samples = host_samples(600, frame="double (cell line 4)", every_ms=10)
    loaders = [Loader(workers=2, batch_size=2, name="batches", dataset_name="pairs")]
    result = finding(run_of(stepped(half_outside), samples=samples, loaders=loaders), "host_python")
    assert "whose workers then do it" in result.advice
    assert "num_workers" not in result.advice


@pytest.mark.full
def test_a_collection_and_a_compilation_of_a_real_run_are_in_it():
    torch = pytest.importorskip("torch")
    heavy = [[number] for number in range(200_000)]
    with gpulab.profile("stalls") as session:
        torch.save(torch.ones(3), io.BytesIO())
        gc.collect()
    whats = session.run.stalls["what"].tolist()
    assert len(heavy) == 200_000
    assert any(str(what).startswith("gc.collect() in test_a_collection_and") for what in whats)
    assert not [callback for callback in gc.callbacks if "Stalls" in repr(callback)]


@pytest.mark.parametrize(("main", "others", "is_found"), [(0.45, 0.5, False), (0.1, 0.6, True)])
def test_on_full_cores_only_an_unfair_share_indicates_the_gil(main, others, is_found):
    samples = host_samples(600, main=main, others=others, cpu_frac=1.0)
    samples = [{**each, "preempted": 0.15 * each["at_ns"] / 1e6} for each in samples]
    findings = {each.rule: each for each in diagnose(run_of(stepped(half_outside), samples=samples)).findings}
    assert ("gil_contention" in findings) is is_found
    assert not is_found or findings["gil_contention"].confidence == "suspect"


def test_the_fix_for_restarted_workers_uses_the_users_loader():
    marks, at = [], 0.0
    for epoch in range(6):
        for number in range(5):
            marks.append(mark(at, 300.0 if number == 0 else 2.0, epoch=epoch))
            at += 320.0 if number == 0 else 20.0
        marks.append(mark(at, 1.0, epoch=epoch, yielded=False))
        at += 1.0
    loader = Loader(workers=4, batch_size=16, persistent_workers=False, name="batches", dataset_name="photos")
    result = finding(run_of(marks=marks, loaders=[loader], windows=[]), "periodic_stalls")
    assert result.numbers["each_ns"] == pytest.approx(298 * MS, rel=0.01)
    assert "4 DataLoader workers" in result.claim
    assert "batches = DataLoader(" in result.fix
    assert "num_workers=4" in result.fix
    assert "persistent_workers=True" in result.fix
    assert "batch_sampler=batches.batch_sampler" in result.fix  # the same batches in the same order
    assert result.gain.is_mean


GUARDED = "gpulab/capture/protection/guard.py(29): call"


def with_frames(*frames):
    """Steps of 100 ms, half of them outside PyTorch, whose loop and other Python frames were recorded at `frames`."""

    def make_step(at):
        inside = [event(EventKind.PYTHON, name, at + start, dur) for name, start, dur in frames]
        return [*half_outside(at), *inside]

    loop = event(EventKind.PYTHON, "train.py(3): main", -1, 1002)
    return run_of([loop, *stepped(make_step, count=10)])


def test_time_of_gpulab_itself_is_no_code_of_the_loop():
    times = analysed(classify_python_time, with_frames((GUARDED, 0, 20), ("train.py(9): prepare", 20, 30)))
    assert (times.python_ns, times.own_ns, times.user_code_ns) == (50 * MS, 20 * MS, 30 * MS)
    result = finding(with_frames((GUARDED, 0, 20), ("train.py(9): prepare", 20, 30)), "host_python")
    assert "train.py(9): prepare" in result.claim
    assert "20 ms of gpulab itself" in " ".join(result.evidence)


def test_a_function_with_most_of_the_time_is_named_instead_of_the_loop_that_calls_it():
    result = finding(with_frames(("train.py(9): prepare", 0, 30)), "host_python")
    assert "train.py(9): prepare" in result.claim
    assert "60 %" in " ".join(result.evidence)


def operators_around(at):
    ops = [("aten::add", at, 10), ("aten::index", at + 40, 10), ("aten::sum", at + 50, 10)]
    return [event(EventKind.OP, name, start, dur) for name, start, dur in ops]


def test_code_that_no_frame_names_is_described_by_the_operators_around_it():
    around = gap_neighbors(run_of(operators_around(0)), Spans(np.array([10 * MS]), np.array([40 * MS])))
    assert (around.before, around.after, around.frac) == ("aten::add", "aten::index", 1.0)


def test_workers_are_proposed_only_for_code_that_takes_longer_than_passing_a_batch():
    short = finding(run_of(stepped(lambda at: [event(EventKind.KERNEL, "k", at + 1, 1)], step_ms=2)), "host_python")
    assert "set num_workers" not in short.advice
    assert "would hardly help" in short.advice


def test_python_that_alternates_with_operators_outside_the_model_is_counted_once():
    diagnosis = diagnose(provoked_by_a_graph_that_is_built_again_in_every_step())
    assert "host_python" not in {each.rule for each in diagnosis.findings}
    share = next(each for each in diagnosis.findings if each.rule == "work_outside_model").numbers["share_frac"]
    assert share == pytest.approx(0.30, abs=0.03)


def test_python_elsewhere_stays_a_finding_of_its_own():
    def step(at):
        """Operators before the forward pass; Python code within it."""
        building = [event(EventKind.OP, "aten::copy_", at + 3 * number, 3) for number in range(5)]
        forward = [event(EventKind.OP, "aten::addmm", at + 15 + start, 2) for start in (0, 20)]
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        backward = [event(EventKind.OP, node, at + 40 + 20 * number, 19) for number in range(2)]
        return [*building, *forward, *backward, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 80, 20)]

    reported = {each.rule for each in diagnose(run_of(stepped(step))).findings}
    assert {"host_python", "work_outside_model"} <= reported


def test_a_second_pass_without_gradients_is_not_taken_for_a_frozen_model():
    run = provoked_by_a_teacher_after_the_student()
    again = RepeatedInputs(kind="Net", name="net", calls=1, step_frac=0.3)
    assert "frozen_outputs" in {finding.rule for finding in diagnose(run).findings}
    assert "frozen_outputs" not in {
        finding.rule for finding in diagnose(replace(run, repeated_inputs=(again,))).findings
    }
    with_gradient = replace(again, with_gradient=True)  # which is another pass than that of the teacher
    assert "frozen_outputs" in {
        finding.rule for finding in diagnose(replace(run, repeated_inputs=(with_gradient,))).findings
    }


@pytest.mark.parametrize(("with_gradient", "most"), [(False, 1.7), (True, 5.0)])
def test_the_bound_of_repeated_work_leaves_room_for_its_backward_pass(with_gradient, most):
    again = RepeatedInputs(kind="Net", name="net", calls=1, step_frac=0.15, with_gradient=with_gradient)
    run = replace(loop("cccl", "cccl"), repeated_inputs=(again,))
    gain = next(finding.gain for finding in diagnose(run).findings if finding.rule == "repeated_inputs")
    assert gain.bound >= 1 / (1 - most * 0.15) * 0.999
    assert gain.floor_ns <= gain.best_ns <= gain.worst_ns <= gain.step_ns
