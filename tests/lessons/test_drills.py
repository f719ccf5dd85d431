"""The drills of lesson 20: the twelve are what they say, nothing in them tells it, and counters and trees are exact."""

import re
import zipfile

import pytest

import gpulab
from gpulab.errors import GpulabError
from gpulab.files.datasets import dataset
from gpulab.lessons.course import lesson
from gpulab.lessons.labs.drills import (
    checklists,
    decision_trees,
    drills,
    profiler_tables,
    smaller_batches,
    timelines,
)
from gpulab.lessons.labs.drills.answer_checks import CAUSE_BY_ACTION, EXPECTED_READINGS, answer_problem, contradiction
from gpulab.lessons.labs.drills.cases import ACTIONS, CASES, CAUSES, RECORDED_CASES
from gpulab.lessons.labs.drills.evidence import (
    answer_terms,
    case_catalogue,
    case_evidence,
    counter_table,
    drill_views,
    report_verdict,
)
from gpulab.lessons.labs.drills.run_counters import RUN_COUNTERS, read_counters
from gpulab.lessons.labs.drills.spaced_repetition import Deck, review_days
from gpulab.lessons.labs.steps import throughput

BESIDE = ("worked_example", "memory1", "memory2", "memory3")
DATASETS = [dataset(name) for name in (*(f"case{each.number:02}" for each in CASES), *BESIDE)]
FILES = [path for each in DATASETS for path in sorted(each.folder.glob("*.gpulab"))]
TELLTALE = r"gpulab|workloads|RemoteImages|Documents|/home/|/work|/tmp|\b(?!train\b)\w+\.py\b"
numbered = pytest.mark.parametrize("each", CASES, ids=lambda each: each.key)


def right_answer(each):
    return each.cause, each.action, each.excluded_by[0]


# What lies in the folder.


def test_the_runs_are_small():
    assert all(path.stat().st_size <= 60_000 for path in FILES)
    assert sum(path.stat().st_size for path in FILES) <= 600_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_file_contains_the_answer(path):
    with zipfile.ZipFile(path) as archive:
        header = archive.read("run.json").decode().replace('"gpulab run"', "")  # the name of the format
    run = gpulab.load(path)
    vocabulary = [
        word
        for field in ("event_rows", "host_rows", "stall_rows", "holder_rows")
        for column in getattr(run, field).columns.values()
        for word in getattr(column, "vocabulary", ())
    ]
    assert not [text for text in (header, *vocabulary) if re.search(TELLTALE, text)]
    assert run.source.how in ("recorded", "virtual")
    assert run.began_ns is None


# The answers.


def test_twelve_cases_have_twelve_causes_and_twelve_first_actions():
    assert [each.number for each in CASES] == list(range(1, 13))
    assert len({each.cause for each in CASES}) == len({each.action for each in CASES}) == 12
    for each in CASES:
        assert {each.cause, each.rival} <= set(CAUSES)
        assert each.action in ACTIONS
        assert set(each.excluded_by) <= set(RUN_COUNTERS)
        assert each.cause not in each.owner_name


@numbered
def test_the_cause_is_the_known_answer_of_the_dataset_and_every_flawed_case_has_a_fixed_twin(each):
    entry = dataset(
        f"case{each.number:02}"
    )  # the diagnosis is held to the known answer in tests/files/test_datasets.py
    assert entry.answer.finding == each.cause
    assert (entry.fixed_path is None) == (each.cause == "device_bound")
    assert drills.fixed_case(each.number).name != drills.case(each.number).name or each.cause == "device_bound"


@numbered
def test_every_accepted_counter_tells_the_rival_apart_in_a_run_that_has_it(each):
    rival = next((drills.case(one.number) for one in CASES if f"case{one.number:02}" == each.rival_file), None)
    assert gpulab.diagnose(rival or drills.named_run(each.rival_file)).first.rule == each.rival
    for name in each.excluded_by:
        assert drills.clearly_different(
            drills.counter_values(each.number)[name], drills.counter_values(each.rival_file)[name]
        )


@numbered
def test_an_answer_is_checked_word_by_word(each):
    cause, action, counter = right_answer(each)
    assert answer_problem(each, (cause, action, counter)) is None
    other = "no_workers" if cause != "no_workers" else "unfused_elementwise"
    assert answer_problem(each, (other, action, counter)).startswith(f"The cause does not fit: {other} ")
    assert each.correct_words((other, action, counter)) == (False, True, True)
    assert "there is no counter" in answer_problem(each, (cause, action, "horoscope"))
    assert answer_problem(each, "no_workers") == answer_problem(each, (cause, action)) is not None
    assert f"excludes {each.rival}" in lesson("20").find_question(each.key).prompt


@numbered
def test_every_wrong_cause_is_contradicted_by_a_reading_and_the_right_one_by_none(each):
    assert set(EXPECTED_READINGS) == set(CAUSES)
    assert contradiction(each, each.cause) is None
    for cause in set(CAUSES) - {each.cause}:
        reading = contradiction(each, cause)
        assert reading is not None, f"nothing speaks against {cause}"
        assert reading.startswith(f"{cause} ")


@numbered
def test_feedback_on_an_answer_contains_no_correct_word(each):
    for cause in set(CAUSES) - {each.cause}:
        assert each.cause not in answer_problem(each, (cause, "more workers", "busy")).replace(each.rival, "")


def test_feedback_names_a_wrong_action_or_counter():
    case4, case7 = CASES[3], CASES[6]
    assert set(CAUSE_BY_ACTION) == set(ACTIONS)
    assert "device_bound" in answer_problem(case4, ("no_tf32", "leave it", "tensor_cores"))
    assert "leave it" in answer_problem(case4, ("device_bound", "leave it", "tensor_cores"))
    reading = answer_problem(case4, ("no_tf32", "tensor cores", "busy"))
    assert "device_bound" in reading
    assert reading.count("100 %") == 2
    assert "for another reason" in answer_problem(case7, ("pageable_copies", "pin memory", "busy"))
    assert answer_problem(CASES[4], ("dispatch_bound", "larger batch", "calls")) is None, (
        "more rows in each call are fewer"
    )


def test_no_answer_tells_of_a_case_that_comes_later():
    for each in CASES:
        assert all(int(number) < each.number for number in re.findall(r"case (\d+)", each.explanation))


def test_words_are_counted_once_all_twelve_are_answered():
    answers = {each.key: right_answer(each) for each in CASES}
    assert drills.count_correct_words(answers) == 36
    assert drills.count_correct_words({**answers, "case7": ("no_workers", "pin memory", "to_gpu")}) == 35
    assert drills.count_correct_words({**answers, "case7": None}) is None
    assert drills.count_correct_words({}) is None


# The counters, against the report's own figures and against the ledger.


@numbered
def test_shares_are_those_of_the_ledger_and_absent_is_not_zero(each):
    reading, accounts = drills.counter_values(each.number), gpulab.diagnose(drills.case(each.number)).ledger
    for name, parts in {"loader": ("loader",), "python": ("python",), "copies": ("copies",)}.items():
        assert reading[name] is None or reading[name] == pytest.approx(accounts.total_frac(*parts))
    on_gpu = accounts.device == "gpu"
    assert all((reading[name] is not None) == on_gpu for name in ("copies", "to_gpu", "to_host", "matrix", "filled"))
    assert (reading["worker_cpu"] is not None) == (each.cause == "cpu_bound_loading")
    shares = set(RUN_COUNTERS) - {"to_gpu", "to_host", "growth", "worker_cpu"}
    assert all(0 <= reading[name] <= 1 for name in shares if reading[name] is not None)


def test_bytes_are_those_that_the_loops_move():
    assert drills.counter_values(2)["to_host"] == 16384 * 2048 * 2  # predictions in bfloat16
    assert drills.counter_values(7)["to_gpu"] == 16384 * 8192 * 2  # a batch in bfloat16
    assert drills.counter_values(2)["to_gpu"] == drills.counter_values(7)["to_host"] == 0
    assert read_counters(drills.fixed_case(7))["to_gpu"] == 0  # pinned


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [(0.8, 0.4, True), (0.8, 0.41, False), (0.0, 0.0, False), (0.0, 1.0, True), (None, 0.0, True), (None, None, False)],
)
def test_readings_differ_if_one_is_twice_the_other(one, other, apart):
    assert drills.clearly_different(one, other) is drills.clearly_different(other, one) is apart


# Advice that is simpler.


def test_utilisation_alone_is_right_twice():
    advice = {
        each.number: "start workers" if drills.counter_values(each.number)["busy"] < 0.5 else "leave it"
        for each in CASES
    }
    assert [each.number for each in CASES if advice[each.number] == each.action] == [1, 11]
    assert sorted(advice.values()) == ["leave it"] * 6 + ["start workers"] * 6


# The trees.


def test_the_utilisation_tree_ends_at_the_planted_cause():
    walks = {
        each.number: decision_trees.walk(decision_trees.UTILISATION, drills.counter_values(each.number))
        for each in CASES
    }
    assert all(walks[each.number].leaf.name == each.cause for each in CASES)
    assert sum(len(walked.fact_names) for walked in walks.values()) == lesson("20").target("reads").value
    assert (
        decision_trees.walk(decision_trees.UTILISATION, drills.counter_values("worked_example")).leaf.name
        == "too_few_workers"
    )
    assert {leaf.name for leaf in decision_trees.leaves(decision_trees.UTILISATION)} == set(CAUSES)


def test_the_tree_of_memory_ends_where_each_run_belongs():
    runs = {**{name: drills.named_run(name) for name in BESIDE[1:]}, "leak": drills.case(10)}
    reached = {
        name: decision_trees.walk(decision_trees.OUT_OF_MEMORY, decision_trees.memory_facts(run)).leaf.name
        for name, run in runs.items()
    }
    assert reached == {"memory1": "activations", "memory2": "states", "memory3": "long_sample", "leak": "leak"}


@pytest.mark.parametrize(
    ("facts", "leaf"),
    [
        ({"first_step": True, "others": True}, "neighbour"),
        ({"first_step": False, "grows": True, "evaluating": True}, "evaluation"),
        ({"first_step": False, "grows": False, "larger": False, "fragmented": True}, "fragmentation"),
        ({"first_step": False, "grows": False, "larger": False, "fragmented": False}, "neighbour"),
    ],
)
def test_other_leaves_are_reached_by_facts_alone(facts, leaf):
    walked = decision_trees.walk(decision_trees.OUT_OF_MEMORY, facts)
    assert walked.leaf.name == leaf
    assert walked.fact_names == set(facts)
    assert repr(walked).endswith(f"-> {leaf}: {walked.leaf.action}")


def test_a_missing_fact_raises_an_error():
    with pytest.raises(GpulabError, match="Does the first step fail"):
        decision_trees.walk(decision_trees.OUT_OF_MEMORY, {})


def test_states_are_four_times_the_parameters_with_adam():
    parameters = 8 * (12288 * 12288 + 12288) * 4
    assert decision_trees.run_state_bytes(drills.named_run("memory2")) == 4 * parameters
    assert decision_trees.run_state_bytes(drills.named_run("memory2"), copies=2) == 2 * parameters


# The learner's own triage.


def test_a_triage_is_scored_by_causes_and_counters_read():
    done = drills.score_triage(
        lambda read: "no_workers" if read("loader") + read("loader") > 1 else "unfused_elementwise"
    )
    assert (done.correct, done.counters_read, done.worked_example) == (2, 12, "no_workers")
    assert "case 2: unfused_elementwise" in str(done)
    assert drills.score_triage(None) is None
    assert drills.score_triage(lambda read: str(read("matrix"))).causes[0] == "0.0"  # absent on a CPU
    with pytest.raises(GpulabError, match="no counter 'stars'"):
        drills.score_triage(lambda read: str(read("stars")))


# Asked again.


def test_gaps_grow_while_an_answer_is_known_and_begin_anew_when_it_is_missed():
    assert review_days(30) == (0, 1, 4, 11)
    assert review_days(60) == (0, 1, 4, 11, 32, 53)
    deck = Deck().after_answer("one", True, 0).after_answer("two", False, 0).after_answer("one", True, 1)
    assert deck.due(1) == ("two",)
    assert deck.due(4) == ("two", "one")
    assert deck.after_answer("one", False, 4).due(5) == ("two", "one")


# What is shown before an answer.


@numbered
def test_the_evidence_names_no_cause_and_the_report_comes_after_the_answer(each):
    text = repr(case_evidence(each.number))
    verdict = gpulab.diagnose(drills.case(each.number)).verdict
    assert each.owner_name in text
    assert verdict not in text
    assert "shaded" not in case_evidence(each.number)._repr_html_()
    assert not report_verdict(each.key, None)
    assert not report_verdict(each.key, ("unfused_elementwise", "leave it", "busy"))
    (reading,) = report_verdict(each.key, right_answer(each))
    assert " ".join(verdict.split()) in " ".join(repr(reading).split())


def test_a_drill_is_evidence_then_feedback_then_the_verdict():
    opened = gpulab.lab("20", size="tiny")
    assert ["case 6" in repr(each) for each in drill_views(opened, "case6", None)] == [True, False]
    assert "2 cores, 2 workers" in repr(case_evidence(6))
    assert "Absent: copies, to_gpu" in repr(case_evidence(6))
    assert len(drill_views(opened, "case6", right_answer(CASES[5]))) == 3


def test_the_table_has_every_counter_of_every_case():
    lines = repr(counter_table()).split("\n")
    (tensor_cores,) = (line.split() for line in lines if line.startswith("tensor_cores"))
    assert tensor_cores[1:] == ["-", "100", "-", "0", "42", "-", "100", "-", "100", "-", "100", "100"]
    (to_gpu,) = (line.split() for line in lines if line.startswith("to_gpu"))
    assert to_gpu[7] == "256"


def test_each_of_the_seven_answers_is_borne_out_by_a_run():
    reading = {each.number: drills.counter_values(each.number) for each in CASES}
    gains = {
        number: CASES[number - 1].sample_factor
        * throughput.step_ms(drills.case(number))
        / throughput.step_ms(drills.fixed_case(number))
        for number in (4, 9)
    }
    assert reading[4]["busy"] == pytest.approx(reading[11]["busy"], abs=0.05)
    assert reading[4]["tensor_cores"] == 0 < reading[11]["tensor_cores"]
    busy_values = [reading[number]["busy"] for number in (2, 3, 6)]
    assert max(busy_values) - min(busy_values) < 0.1
    assert gains[4] > 5
    assert reading[1]["busy"] < 0.2
    assert gains[9] > 10
    assert reading[9]["busy"] > 0.8
    assert len({each.cause for each in CASES if reading[each.number]["busy"] < 0.5}) == 6
    failed = drills.named_run("memory2")
    assert (
        decision_trees.run_state_bytes(failed)
        > failed.failure.capacity_bytes
        > decision_trees.run_state_bytes(failed) / 4
    )


def test_lists_hold_every_word():
    text = repr(answer_terms())
    assert all(f"{word}:" in text for word in (*CAUSES, *ACTIONS, *RUN_COUNTERS))
    assert all(each.owner_name in repr(case_catalogue()) for each in CASES)


def test_there_is_no_run_of_another_name():
    with pytest.raises(GpulabError, match="no case 17"):
        drills.case(17)


# Recordings of a real GPU, tables and timelines.


@pytest.mark.parametrize("each", RECORDED_CASES, ids=lambda each: each.key)
def test_a_recorded_case_has_its_answer_and_its_counter_excludes_the_rival(each):
    assert dataset(each.dataset_name).answer.finding == each.cause
    assert answer_problem(each, right_answer(each)) is None
    for counter in each.excluded_by:
        case_value, rival = drills.counter_values(each.number)[counter], drills.counter_values(each.rival_file)[counter]
        assert drills.clearly_different(case_value, rival)


def test_a_table_of_a_recording_counts_its_operators():
    assert profiler_tables.calls_of("h100_09", "aten::sqrt") == 160
    assert profiler_tables.cpu_total_ms("h100_09", "Optimizer.step") > 10 * 160 / 1e3
    lines = profiler_tables.recorded_table("h100_09", sort_by="cpu_time_total", rows=3).split("\n")
    assert lines[0].split()[-1] == "Calls"
    assert lines[2].startswith("Optimizer.step#AdamW.step")


def test_a_timeline_has_the_rows_of_the_recording():
    text = timelines.text_timeline("h100_02")
    assert all(row in text for row in ("CPU main", "CUDA API", "GPU kernels", "GPU copies"))
    assert "<<<" in text
    assert ">>>" not in text
    assert timelines.text_timeline("ranks_0", others=("ranks_1",)).count("all-reduce ") >= 2


def test_the_causes_of_the_timelines_are_those_of_the_report():
    right = timelines.causes_by_report()
    assert timelines.timeline_problem(right) is None
    assert "direction" in timelines.timeline_problem({**right, "B": "pageable_copies"})
    assert "give a cause" in timelines.timeline_problem({"A": "host_syncs"})
    assert "no cause" in timelines.timeline_problem(dict.fromkeys("ABCD", "bad luck"))


def test_the_tree_misses_causes_it_has_no_leaf_for():
    recorded = decision_trees.walk_recordings(decision_trees.UTILISATION)
    assert len(recorded) == 13
    assert sum(leaf == known for leaf, known in recorded.values()) == 8


def test_half_of_the_batch_does_not_fit_and_a_quarter_does():
    assert not smaller_batches.fits([256])
    assert smaller_batches.fits([16, 128])


def test_the_guide_is_right_for_a_third_of_the_cases():
    first = [next(iter(checklists.items_of_case(each.number)), None) for each in CASES]
    assert sum(checklists.is_right(item, each) for item, each in zip(first, CASES, strict=True)) == 4
