"""Rules find their cause and nothing else."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpulab.analysis.events.device_work import missing_work_reason
from gpulab.rules import RULES, diagnose
from gpulab.run import TRACED_WORK, Gap, Loader
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from gpulab.wording import article
from tests.support.runs.made_runs import (
    MS,
    NO_WORKERS,
    awaited,
    event,
    host_sample,
    loader_call,
    mark,
    run_of,
    stepped,
)


def rules_found(run):
    return [finding.rule for finding in diagnose(run).findings]


def kernel(at, dur, name="ampere_sgemm"):
    return event(EventKind.KERNEL, name, at, dur)


def starved_step(at):
    return [loader_call(at, 40), *awaited("ampere_sgemm", at + 40, 60, number=round(at) + 1)]


def test_data_loading_in_the_main_process_is_the_first_finding_and_certain():
    diagnosis = diagnose(run_of(stepped(starved_step), loaders=[NO_WORKERS]))
    first = diagnosis.first
    assert first.rule == "no_workers"
    assert first.confidence == "certain"
    assert diagnosis.verdict == first.claim
    assert first.numbers["exposed_frac"] == pytest.approx(0.4, abs=0.01)
    assert "num_workers=0" in first.claim
    assert 60 * MS <= first.gain.floor_ns <= 60 * MS + 2_000  # replayed, the launch itself takes its microsecond
    assert first.gain.bound == pytest.approx(100 / 60, rel=1e-4)
    assert first.gain.floor_ns <= first.gain.best_ns <= first.gain.worst_ns < first.gain.step_ns
    assert "num_workers=" in first.fix
    assert "# the same batches in the first epoch" in first.fix
    assert first.spans.total_ns == 4 * 40 * MS


def test_loading_time_covered_by_queued_device_work_is_not_reported():
    run = run_of(stepped(lambda at: [loader_call(at, 40), kernel(at, 97)]), loaders=[NO_WORKERS])
    assert "no_workers" not in rules_found(run)


def test_a_wait_for_workers_is_not_reported_as_no_workers():
    run = run_of(stepped(lambda at: [loader_call(at, 40, workers=2), kernel(at + 40, 60)]), loaders=[Loader(workers=2)])
    assert rules_found(run) == ["too_few_workers"]


def test_python_code_in_the_loop_is_named_by_the_line_that_ran():
    lines = (4, 4, 5)  # one function, asked at different lines
    frames = [host_sample(at, frame=f"preprocess (cell line {lines[at // 10 % 3]})") for at in range(0, 600, 10)]
    run = run_of(stepped(lambda at: [kernel(at + 50, 50)]), samples=frames)
    first = diagnose(run).first
    assert first.rule == "host_python"
    assert "preprocess (cell line 4)" in first.claim
    assert first.confidence == "certain"


def test_python_code_without_a_name_is_a_suspicion():
    first = diagnose(run_of(stepped(lambda at: [kernel(at + 50, 50)]))).first
    assert (first.rule, first.confidence) == ("host_python", "suspect")


def test_the_deepest_recorded_frame_with_most_of_the_time_is_named():
    def step(at):
        return [
            event(EventKind.PYTHON, "run.py(3): main", at, 100),
            event(EventKind.PYTHON, "video.py(98): preprocess", at, 49),
            event(EventKind.PYTHON, "numpy.py(7): stack", at + 5, 20),
            kernel(at + 50, 50),
        ]

    assert "video.py(98): preprocess" in diagnose(run_of(stepped(step))).first.claim


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("/tmp/ipykernel_77/123456.py(3): <module>", "Python code in cell line 3 leaves"),
        ("<ipython-input-1-7ec42acbbe28>(4): prepare", "Python code in prepare (cell line 4) leaves"),
        ("photos.py(9): __getitem__", "Python code in photos.py(9): __getitem__ leaves"),
    ],
)
def test_a_recorded_frame_of_a_cell_is_named_as_the_user_sees_it(recorded, shown):
    step = stepped(lambda at: [event(EventKind.PYTHON, recorded, at, 50), kernel(at + 50, 50)])
    assert diagnose(run_of(step)).verdict.startswith(shown)


def small_kernels(at, count=400, kernel_ms=0.005):
    events = []
    for number in range(count):
        start = at + number * 0.25
        events.append(event(EventKind.OP, "aten::add", start, 0.1))
        events.append(event(EventKind.LAUNCH, "cudaLaunchKernel", start + 0.05, 0.01, correlation=number))
        events.append(kernel(start + 0.07, kernel_ms, "vectorized_elementwise_kernel"))
    return events


def test_many_small_kernels_are_dispatch_bound():
    first = diagnose(run_of(stepped(small_kernels))).first
    assert first.rule == "dispatch_bound"
    assert first.numbers["per_step"] == 400
    assert first.gain.worst_ns > first.gain.best_ns


def test_large_kernels_with_the_same_calls_are_not_dispatch_bound():
    assert rules_found(run_of(stepped(lambda at: small_kernels(at, kernel_ms=0.24)))) == ["device_bound"]


def test_many_small_operators_on_a_cpu_are_dispatch_bound():
    step = stepped(lambda at: [event(EventKind.OP, "aten::add", at + number * 0.02, 0.004) for number in range(5000)])
    diagnosis = diagnose(run_of(step))
    assert diagnosis.first.rule == "dispatch_bound"
    assert "GPU" not in diagnosis.verdict


def copied_step(name):
    def step(at):
        return [
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at, 20, correlation=round(at)),
            event(EventKind.MEMCPY, name, at + 2, 18, correlation=round(at), size=64_000_000),
            kernel(at + 20, 80),
        ]

    return step


def test_exposed_pageable_copies_are_reported_and_the_fix_is_pinning():
    first = diagnose(run_of(stepped(copied_step("Memcpy HtoD (Pageable -> Device)")))).first
    assert first.rule == "pageable_copies"
    assert "pin_memory=True" in first.fix
    assert "61 MiB" in " ".join(first.evidence)


def test_the_fix_for_unoverlapped_pinned_copies_is_prefetching():
    first = diagnose(run_of(stepped(copied_step("Memcpy HtoD (Pinned -> Device)")))).first
    assert first.rule == "unoverlapped_copies"
    assert "pin_memory" not in first.fix


def test_copies_that_overlap_with_kernels_are_no_finding():
    step = stepped(
        lambda at: [event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 10, 20), kernel(at, 100)]
    )
    assert rules_found(run_of(step)) == ["device_bound"]


def waiting_step(at, idle_after=20.0):
    events = [kernel(at, 80 - idle_after)]
    events += [
        event(EventKind.OP, name, at + 1, 79.1 - idle_after) for name in ("aten::item", "aten::_local_scalar_dense")
    ]
    events.append(event(EventKind.SYNC, "cudaStreamSynchronize", at + 2, 78 - idle_after))
    events.append(event(EventKind.OP, "aten::add", at + 80 - idle_after, idle_after))
    return [*events, kernel(at + 80, 20)]


def test_a_synchronisation_counts_only_by_the_idle_time_after_it():
    findings = {finding.rule: finding for finding in diagnose(run_of(stepped(waiting_step))).findings}
    assert findings["host_syncs"].numbers["exposed_ns"] == 20 * MS
    assert findings["host_syncs"].numbers["per_step"] == 1
    assert "host_syncs" not in rules_found(run_of(stepped(lambda at: waiting_step(at, idle_after=0.5))))


def test_item_of_a_cpu_tensor_is_no_synchronisation():
    step = stepped(lambda at: [event(EventKind.OP, "aten::item", at, 30), kernel(at + 40, 60)])
    assert "host_syncs" not in rules_found(run_of(step))


def test_a_busy_device_is_reported_without_a_prediction():
    diagnosis = diagnose(run_of(stepped(lambda at: [kernel(at, 98)])))
    assert rules_found(diagnosis.run) == ["device_bound"]
    assert diagnosis.first.gain is None
    assert diagnosis.next_limit is None


def test_a_gpu_busy_copying_is_not_called_computing():
    assert rules_found(run_of(stepped(copied_step("Memcpy HtoD (Pageable -> Device)")))) == ["pageable_copies"]


def test_the_part_that_the_fix_removes_is_not_the_next_limit():
    step = stepped(copied_step("Memcpy HtoD (Pageable -> Device)"))
    assert "matrix kernels" in diagnose(run_of(step)).next_limit
    assert "100 %" in diagnose(run_of(step)).next_limit


def test_exposed_communication_is_not_reported_as_compute():
    step = stepped(lambda at: [kernel(at, 30), event(EventKind.COLLECTIVE, "ncclDevKernel_AllReduce", at + 30, 68)])
    diagnosis = diagnose(run_of(step))
    assert diagnosis.first.rule == "exposed_communication"
    busy = next(finding for finding in diagnosis.findings if finding.rule == "device_bound")
    assert busy.numbers["busy_frac"] == pytest.approx(0.98, abs=0.01)
    assert busy.numbers["communication_frac"] == pytest.approx(0.68, abs=0.01)
    assert "68 %" in busy.claim


def test_findings_are_ranked_by_predicted_saving():
    def step(at):
        return [
            loader_call(at, 15),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 15, 30),
            *pageable(at),
            kernel(at + 45, 55),
        ]

    def pageable(at):
        return [event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 15, 30)]

    findings = diagnose(run_of(stepped(step), loaders=[NO_WORKERS])).findings
    assert {finding.rule for finding in findings} == {"pageable_copies", "no_workers"}
    saved = [finding.saved_ns for finding in findings]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > saved[1] > 0


def test_few_steps_lower_the_confidence_and_say_so():
    first = diagnose(run_of(stepped(starved_step, count=3), loaders=[NO_WORKERS])).first
    assert first.confidence == "likely"
    assert "1 complete step" in first.confidence_reason


def test_rules_that_need_a_gpu_are_not_judged_without_one():
    diagnosis = diagnose(run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 99)])))
    assert {"pageable_copies", "host_syncs"} <= {unjudged.rule for unjudged in diagnosis.unjudged}
    assert all(unjudged.reason and unjudged.fix for unjudged in diagnosis.unjudged)


def test_calls_to_a_gpu_whose_work_is_missing_make_every_finding_suspect():
    def step(at):
        return [
            loader_call(at, 40),
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 41, 1),
            event(EventKind.OP, "mm", at + 40, 50),
        ]

    diagnosis = diagnose(run_of(stepped(step), loaders=[NO_WORKERS]))
    assert diagnosis.first.confidence == "suspect"
    assert diagnosis.first.confidence_reason == missing_work_reason(diagnosis.run)


def test_an_empty_recording_is_not_judged():
    diagnosis = diagnose(run_of(windows=[]))
    assert diagnosis.findings == ()
    assert len(diagnosis.unjudged) >= len(RULES) - 2  # memory, which needs no step, is asked all the same
    assert diagnosis.verdict.startswith("No diagnosis")


def test_a_recording_without_a_complete_step_says_what_to_record_instead():
    gap = Gap(what=f"{TRACED_WORK} of more than a few steps", why="a step has many events", fix="use --steps 3")
    run = run_of([kernel(1, 5)], marks=[mark(at, 90) for at in range(0, 2000, 100)], windows=[(0, 20)])
    run = replace(run, recording=replace(run.recording, left_out=(gap,)))
    assert diagnose(run).verdict == "No diagnosis: a step has many events. Use --steps 3."
    assert re.search(r"\b\d+ steps, [^;]*; none traced from start to end", " ".join(str(report(run)).split()))


def test_a_sensor_that_is_missing_is_no_reason_for_an_empty_recording():
    gap = Gap(what="CPU energy", why="this machine has no RAPL counters", fix="measure at the socket")
    run = run_of(windows=[])
    run = replace(run, recording=replace(run.recording, left_out=(gap,)))
    assert diagnose(run).verdict.startswith("No diagnosis: PyTorch ran no operator")
    assert "RAPL" not in "".join(unjudged.reason for unjudged in diagnose(run).unjudged)


def test_a_loop_without_a_dominant_cause_is_not_worth_changing():
    def step(at):
        return [loader_call(at, 4), kernel(at + 4, 80), event(EventKind.OP, "aten::add", at + 84, 16)]

    diagnosis = diagnose(run_of(stepped(step), loaders=[NO_WORKERS]))
    assert diagnosis.findings == ()
    assert diagnosis.verdict.startswith("Nothing worth changing")


def test_one_or_two_analysed_steps_do_not_acquit_a_loop():
    def step(at):
        return [loader_call(at, 4), kernel(at + 4, 80), event(EventKind.OP, "aten::add", at + 84, 16)]

    verdict = diagnose(run_of(stepped(step, count=3), loaders=[NO_WORKERS])).verdict
    assert verdict.startswith("No cause found, but only 1 complete step of 3")
    assert "gpulab.profile(steps=" in verdict


@pytest.mark.parametrize("number", ["8.2 ms", "11 ms", "11.5 ms", "18 ms", "80 ms"])
def test_a_number_with_a_vowel_sound_takes_an(number):
    assert article(number) == f"an {number}"


@pytest.mark.parametrize("number", ["1.8 ms", "9 ms", "110 ms", "180 ms", "1,800 ms"])
def test_any_other_number_takes_a(number):
    assert article(number) == f"a {number}"


@pytest.mark.parametrize("file", ["CHANGELOG.md", "docs/reports.md"])
def test_the_documentation_states_the_number_of_rules(file):
    text = (Path(__file__).resolve().parents[2] / file).read_text(encoding="utf-8")
    assert f"{len(RULES)} rules" in text
