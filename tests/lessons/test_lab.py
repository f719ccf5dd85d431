"""An open lesson: predict, reveal, check, same, claim, score, hint, card; its text is the same on every machine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.errors import GpulabError
from gpulab.lessons import COUNTED, GIVEN, MEASURED, SIMULATED, sources
from gpulab.lessons import lesson_lab as laboratory
from gpulab.lessons.course import lesson
from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target
from gpulab.lessons.sources import LIVE, MODELLED, PUBLISHED, RECORDED
from gpulab.lessons.stable_view import with_code
from gpulab.run import Machine, Source
from gpulab.user_data import course_progress
from gpulab.views.sheet import palette
from gpulab.views.sheet.sheet import Facts, Verdict
from tests.support.runs.made_runs import run_of

PREDICTION = "You predicted"
HINTS = ("the report", "the wait share", "the line with num_workers")
LESSON = Lesson(
    id="99_made",
    title="Made",
    question="is it?",
    minutes=5,
    outcomes=("distinguish two causes",),
    symptom="slow",
    signature="a counter",
    fix="repair it",
    limits="it is not broken",
    experiments=(LessonExperiment(number="99.1", description="all"),),
    questions=(
        Question(
            key="share",
            prompt="How much?",
            choices=(Choice(key="a", text="little", below=0.3), Choice(key="b", text="much", feedback="Look again.")),
            explanation="It waits.",
            hints=HINTS,
        ),
        Question(
            key="cause",
            prompt="Why?",
            choices=(
                Choice(key="a", text="data", feedback="Yes, data."),
                Choice(key="b", text="launches", feedback="Count them."),
            ),
            right="a",
            explanation="The loader is late.",
            hints=HINTS,
        ),
        Question(
            key="number", prompt="How many?", find_problem=lambda value: None if value == 3 else f"{value} is not 3"
        ),
    ),
    targets=(
        Target(key="opens", unit="file opens", value=3, hints=HINTS),
        Target(key="kept", unit="items kept", value=10, lower_is_better=False),
    ),
)


@pytest.fixture
def lab():
    return laboratory.Lab(LESSON, Machine(cpu="Some CPU", cores_allowed=2.0), "tiny", "cpu")


@pytest.fixture(autouse=True)
def progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv(course_progress.VARIABLE, str(tmp_path / "deep" / "progress.json"))


def test_the_device_card_says_what_the_notebook_runs_on(lab):
    text = repr(lab)
    assert "99 Made: is it?" in text
    assert "Some CPU" in text
    assert "Some CPU, 2 cores" in text
    assert "virtual H100" in text
    assert "distinguish two causes" in lab._repr_mimebundle_()["text/html"]
    assert "virtual" not in repr(laboratory.Lab(LESSON, Machine(), "full", "cuda"))


@pytest.mark.parametrize(("size", "expected"), [("tiny", 1), ("lab", 2), ("full", 2)])
def test_a_size_selects_its_value_and_full_defaults_to_the_value_of_lab(lab, size, expected):
    lab.size = size
    assert lab.pick(1, 2) == expected
    assert lab.pick(1, 2, 3) == {"tiny": 1, "lab": 2, "full": 3}[size]


def test_the_size_comes_from_the_argument_the_environment_or_the_device(monkeypatch):
    monkeypatch.setenv("GPULAB_SIZE", "tiny")
    assert gpulab.lab("00").size == "tiny"
    assert gpulab.lab("00_start_here", size="full").size == "full"
    monkeypatch.delenv("GPULAB_SIZE")
    assert gpulab.lab("00").size == ("full" if torch.cuda.is_available() else "lab")
    monkeypatch.setenv("GPULAB_SIZE", "huge")
    with pytest.raises(GpulabError, match="tiny, lab, full"):
        gpulab.lab("00")


def test_an_unknown_lesson_is_an_error_that_lists_the_lessons():
    with pytest.raises(GpulabError, match="00_start_here"):
        gpulab.lab("77_nothing")


def test_a_question_is_shown_with_its_choices_and_collapsed_hints(lab):
    view = lab.predict("share")
    assert repr(view).splitlines() == ["share: How much?", "a: little", "b: much"]
    html = view._repr_html_()
    assert html.count("<details") == 3
    assert "the line with num_workers" in html
    assert 'L.answer("share", "a")' in html.replace("&quot;", '"')


def test_the_measured_value_decides_and_the_html_also_shows_the_prediction(lab):
    lab.answer("share", "B ")
    solution = lab.reveal("share", 0.12, "%")
    assert repr(solution).splitlines() == ["share: a) little", "It waits."]
    html = solution._repr_html_()
    assert "b) much" in html
    assert "12 %" in html
    assert "Look again." in html
    assert repr(lab.reveal("share", 0.9)).startswith("share: b) much")


def test_a_question_is_resolved_without_a_prediction_but_not_before_the_measurement(lab):
    assert PREDICTION not in lab.reveal("cause")._repr_html_()
    assert repr(lab.reveal("cause")).startswith("cause: a) data")
    assert "share: a)" not in repr(lab.reveal("share"))
    assert "share: b)" not in repr(lab.reveal("share"))


def test_the_text_does_not_depend_on_the_prediction_and_the_measured_value(lab):
    before = repr(lab.reveal("share", 0.1))
    lab.answer("share", "b")
    assert repr(lab.reveal("share", 0.2, "%")) == before


def test_an_unknown_letter_or_question_is_an_error_that_lists_the_known_ones(lab):
    with pytest.raises(GpulabError, match="a, b"):
        lab.answer("share", "c")
    with pytest.raises(GpulabError, match="share, cause, number"):
        lab.predict("nothing")


def test_a_check_gives_the_reason_for_right_and_wrong_answers(lab):
    assert "not answered yet" in repr(lab.check("cause", None))
    assert "cause: not right yet: Count them." in repr(lab.check("cause", "b"))
    right = repr(lab.check("cause", "a"))
    assert "cause: right. Yes, data." in right
    assert "The loader is late." in right
    assert "7 is not 3" in repr(lab.check("number", 7))
    assert "number: right." in repr(lab.check("number", 3))


def test_hints_come_one_by_one_and_the_last_one_repeats(lab):
    lines = [repr(lab.hint("cause")) for _ in range(4)]
    assert [hint in line for hint, line in zip((*HINTS, HINTS[2]), lines, strict=True)] == [True] * 4
    assert HINTS[0] in repr(lab.hint("opens"))
    assert "no hint" in repr(lab.hint("number"))


def test_a_claim_is_one_line_however_long_and_its_values_appear_only_in_the_html(lab):
    sentence = "two workers cut the share of time that the loop waits for data " * 3
    claim = lab.claim(sentence.strip(), True, before=0.67, after=0.24, unit="%")
    assert repr(claim) == f"HOLDS  {sentence.strip()}  [measured here]"
    assert "67 % → 24 %" in claim._repr_html_()
    assert "51 % → 0.4 %" in lab.claim("it does", True, before=0.51, after=0.004, unit="%")._repr_html_()
    figures = {"before": 2, "after": 7.9, "unit": "items", "names": ("CPU-bound", "I/O-bound")}
    assert "CPU-bound: 2; I/O-bound: 7.9 items" in lab.claim("it does", True, **figures)._repr_html_()
    assert "51 % → 0 %" in lab.claim("it does", True, before=0.51, after=0.0, unit="%")._repr_html_()
    assert repr(lab.claim("it does", False, source=COUNTED)) == "FAILS  it does  [counted here]"


def test_verdicts_are_highlighted_and_a_failed_claim_says_what_to_do(lab):
    holding, failing = (lab.claim("twice as fast", holds)._repr_html_() for holds in (True, False))
    assert f'background:{palette.GOOD}">HOLDS</span>  twice as fast' in holding
    assert f'background:{palette.BAD}">FAILS</span>  twice as fast' in failing
    assert failing.count("<") > holding.count("<")  # one more line: what to do
    assert ">right</span>. Yes" in lab.check("cause", "a")._repr_html_()
    assert ">not right yet</span>: Count them." in lab.check("cause", "b")._repr_html_()
    assert f'{palette.UNDECIDED}">not answered yet</span>' in lab.check("cause", None)._repr_html_()
    assert ">reached</span>" in lab.score("opens", 3)._repr_html_()
    assert ">not reached yet</span>" in lab.score("opens", 4)._repr_html_()


def not_true(view):
    """Return what a failed claim says about its conditions."""
    return [
        text
        for block in view.sheet.blocks
        if isinstance(block, Facts)
        for name, text in block.rows
        if name == "not true"
    ]


def test_a_failed_claim_shows_the_first_condition_that_is_false_with_its_values(lab):
    times = {"before": 2.0, "after": 1.5}
    view = lab.claim(
        "it is twice as fast, and opens one file",
        len(times) == 2 and (times["after"] <= 0.5 * times["before"] and times["missing"] == 1),
        before=times["before"],
    )
    assert not_true(view) == ["times['after'] <= 0.5 * times['before'] (1.5 <= 1)"]
    assert not_true(lab.claim("as counts", holds=(len(times), 1) == (3, 1))) == [
        "(len(times), 1) == (3, 1) ((2, 1) == (3, 1))"
    ]


def test_conditions_without_a_comparison_are_shown_as_they_are_written_and_names_are_left_out(lab):
    numbers = [1, 2]
    assert not_true(lab.claim("some are large", any(item > 5 for item in numbers))) == [
        "any((item > 5 for item in numbers))"
    ]
    large = False
    assert not_true(lab.claim("it is large", large)) == []
    assert not_true(lab.claim("it holds", 1 < 2)) == []


def test_a_false_all_shows_the_first_element_for_which_it_is_false(lab):
    times = {"one": 1.0, "two": 2.0, "three": 3.0}
    (text,) = not_true(lab.claim("all are fast", all(time < 2 for name, time in times.items())))
    assert text.endswith(": false for name = two, time = 2 (2 < 2)")
    (text,) = not_true(lab.claim("all have an a", all("e" in name for name in times if name != "one")))
    assert text.endswith(": false for name = two (e in two)")
    (text,) = not_true(lab.claim("all are names", all(name.startswith("t") for name in times)))
    assert text.endswith(": false for name = one")
    (text,) = not_true(lab.claim("all are true", all([True, False])))
    assert text == "all([True, False])"


def test_code_between_backticks_is_code_in_html_and_stays_text_elsewhere(lab):
    quoting = replace(LESSON, questions=(replace(LESSON.questions[1], prompt="What does `num_workers=0` do?"),))
    view = laboratory.Lab(quoting, Machine(), "tiny", "cpu").predict("cause")
    assert "<code>num_workers=0</code>" in view._repr_html_()
    assert "`num_workers=0`" in repr(view)
    assert with_code('<p title="`a`">`b` and a lone `</p>') == '<p title="`a`"><code>b</code> and a lone `</p>'


def test_a_prediction_of_an_earlier_session_shows_its_date(lab, monkeypatch):
    statuses = []
    monkeypatch.setattr(
        "gpulab.lessons.question_view.choice_buttons", lambda html, *rest: statuses.append(rest[-1]) or html
    )
    lab.answer("cause", "b")
    lab.predict("cause")._repr_html_()
    again = laboratory.Lab(LESSON, Machine(), "tiny", "cpu")
    again.predict("cause")._repr_html_()
    again.predict("share")._repr_html_()
    again.answer("cause", "a")
    again.predict("cause")._repr_html_()
    assert [date.today().isoformat() in status for status in statuses] == [False, True, False, False]


def test_a_check_is_answered_by_a_button(lab, monkeypatch):
    presses = []
    monkeypatch.setattr(
        "gpulab.lessons.question_view.choice_buttons",
        lambda html, prompt, choices, chosen, on_choice, status: presses.append(on_choice) or html,
    )
    lab.check("cause", None)._repr_html_()
    (press,) = presses
    assert "Count them." in press("b")
    assert not lab._checked["cause"]
    assert "The loader is late." in press("a")
    assert lab._checked["cause"]


def test_a_condition_that_cannot_be_evaluated_again_or_told_apart_is_not_shown(lab):
    results = iter([False])
    assert not_true(lab.claim("it reads a result", next(results))) == []
    first, second = lab.claim("one", 1 > 2), lab.claim("two", 2 > 3)
    assert not_true(first) == not_true(second) == []
    assert not_true(lab.claim("no number", float("nan") > 1)) == ["float('nan') > 1 (nan > 1)"]


def test_the_condition_of_a_claim_in_a_cell_of_a_notebook_is_found(lab):
    shell = InteractiveShell()
    shell.user_ns.update(L=lab)
    shell.run_cell("%time speed = 3\nview = L.claim(\n    'fast',\n    speed > 5,\n)")
    assert not_true(shell.user_ns["view"]) == ["speed > 5 (3 > 5)"]


@pytest.mark.parametrize(
    ("text", "word", "around"),
    [
        ("HOLDS  as fast", "HOLDS", ("", "  as fast")),
        ("the right side: right. Yes", "right", ("the right side: ", ". Yes")),
        ("a: 4 opens, par is 3: not yet", "not yet", ("a: 4 opens, par is 3: ", "")),
    ],
)
def test_the_verdict_word_is_at_the_beginning_or_after_a_colon(text, word, around):
    assert Verdict(text, result=word).text_around_result == around


def test_a_claim_names_the_source_of_its_values(lab):
    run = run_of([])
    virtual = replace(run, source=replace(run.source, how="virtual", device="H100 SXM"))
    assert repr(lab.claim("it does", True, source=virtual)).endswith("[virtual H100 SXM, estimated]")
    measured = replace(run, source=replace(run.source, how="measured", device="Some CPU"))
    assert repr(lab.claim("it does", True, source=measured)).endswith("[measured here]")


def test_a_measurement_that_gives_an_unexpected_answer_decides_nothing(lab):
    question = Question(
        key="faster",
        prompt="How much faster?",
        choices=(Choice(key="a", text="less", below=2), Choice(key="b", text="more")),
        expected="b",
        explanation="It is much faster.",
    )
    lab.lesson = replace(lab.lesson, questions=(*lab.lesson.questions, question))
    lab.answer("faster", "b")
    unfinished = lab.reveal("faster", 1.0, "x")
    assert repr(unfinished) == "faster: not decided. The cells above give a) less"
    assert "much faster" not in unfinished._repr_html_()
    assert PREDICTION not in unfinished._repr_html_()
    assert repr(lab.reveal("faster", 3.0, "x")).startswith("faster: b) more")


def test_what_only_a_model_says_does_not_hold(lab):
    virtual = replace(run_of([]), source=replace(run_of([]).source, how="virtual", device="H100 SXM"))
    for source in (SIMULATED, virtual, "recorded on AMD EPYC, and virtual H100 SXM, estimated"):
        assert repr(lab.claim("it does", True, source=source)).startswith("MODEL SAYS  it does  [")
        assert repr(lab.claim("it does", False, source=source)).startswith("FAILS  it does  [")
    for source in (MEASURED, COUNTED, "recorded on A100"):
        assert repr(lab.claim("it does", True, source=source)).startswith("HOLDS  it does  [")


@pytest.mark.parametrize(
    ("how", "strength"), [("measured", LIVE), ("recorded", RECORDED), ("virtual", MODELLED), ("predicted", MODELLED)]
)
def test_every_kind_of_run_has_a_strength(how, strength):
    run = replace(run_of([]), source=Source(how=how, device="H100 SXM", of="measured"))
    assert sources.strength(sources.source_label(run)) == strength


def test_published_figures_are_no_evidence_of_this_machine():
    assert sources.strength(GIVEN) == PUBLISHED


def test_the_claim_after_different_results_fails(lab):
    assert repr(lab.same([1.0, 2.0], [1.0, 2.0])).startswith("SAME")
    assert repr(lab.claim("it is faster", True)).startswith("HOLDS")
    assert repr(lab.same([1.0, 2.0], [1.0, 3.0])).startswith("DIFFERENT")
    assert repr(lab.claim("it is faster", True)).startswith("FAILS  it is faster: ")
    assert repr(lab.claim("another thing", True)).startswith("HOLDS"), "only the next claim fails"
    assert repr(lab.same([1.0, 2.0], [1.0, 2.1], equal=0.2)).startswith("SAME")


def test_a_claim_depends_on_the_last_result_of_its_comparison_however_often_both_run(lab):
    def compare(after):
        return lab.same([1.0], [after])

    def claim():
        return repr(lab.claim("it is faster", True))

    compare(2.0)
    assert [claim()[:5] for _ in range(3)] == ["FAILS"] * 3
    assert repr(lab.claim("another thing", True)).startswith("HOLDS")
    compare(1.0)
    assert [claim()[:5] for _ in range(2)] == ["HOLDS"] * 2
    compare(2.0)
    assert claim().startswith("FAILS")


def test_a_score_is_a_count_compared_with_its_target(lab):
    assert repr(lab.score("opens", None)) == "opens: no score yet: not done, or not right. The target is 3 file opens"
    assert repr(lab.score("opens", 2000)) == "opens: 2,000 file opens, target 3: not reached yet"
    assert repr(lab.score("opens", 3)) == "opens: 3 file opens, target 3: reached"
    assert repr(lab.score("kept", 9)).endswith(": not reached yet")
    assert repr(lab.score("kept", 11)).endswith(": reached")


def test_the_card_sums_up_the_lesson_and_can_be_saved(lab, tmp_path):
    lab.answer("share", "a")
    lab.reveal("share", 0.1, "%")
    lab.check("cause", "a")
    lab.claim("it is so", True, before=2.0, after=1.0, unit="ms")
    lab.claim("it is not", False)
    text = repr(lab.card())
    assert "1 of 2 claims held here" in text
    assert "2 -> 1 ms" in text
    assert "it is not broken" in text
    assert "How much?" in text
    assert "it is so" in lab.card().save(tmp_path / "card.html").read_text(encoding="utf-8")


def test_a_repeated_claim_replaces_the_earlier_one(lab):
    lab.claim("it is so", False)
    lab.claim("it is so", True)
    lab.claim("4 files are opened, not 3,000", True)
    lab.same(1.0, 2.0)
    lab.claim("3 files are opened, not 3,000", True)
    assert "1 of 2 claims held here" in repr(lab.card())
    lab.same(1.0, 1.0)
    lab.claim("3 files are opened, not 3,000", True)
    assert "2 of 2 claims held here" in repr(lab.card())


def test_predictions_survive_a_kernel_restart_and_can_be_changed(lab):
    lab.answer("share", "a")
    lab.answer("cause", "b")
    again = laboratory.Lab(LESSON, Machine(), "tiny", "cpu")
    assert "a) little" in again.reveal("share", 0.1)._repr_html_()
    again.answer("cause", "a")
    assert course_progress.read_predicted_letters("99_made") == {"share": "a", "cause": "a"}
    fewer = replace(LESSON, questions=LESSON.questions[1:])
    assert PREDICTION in laboratory.Lab(fewer, Machine(), "tiny", "cpu").reveal("cause")._repr_html_()
    course_progress.store_predictions("99_made", {"share": "z"})
    assert PREDICTION not in laboratory.Lab(LESSON, Machine(), "tiny", "cpu").reveal("share", 0.1)._repr_html_()


def test_results_and_predictions_are_stored_side_by_side(lab):
    lab.answer("share", "a")
    lab.card()
    lab.answer("share", "b")
    assert set(course_progress.load_progress()) == {"99_made"}
    assert course_progress.read_predicted_letters("99_made") == {"share": "b"}


def test_a_card_lists_the_next_lessons():
    text = " ".join(repr(gpulab.lab("01").card()).split())
    following = lesson("05")
    assert f"05 {following.title} ({following.minutes} minutes; path" in text
    assert following.question in text
    assert '"one evening", "training is slow"' in text
    assert "09 Memory" in text
    assert "one evening" in repr(gpulab.lab("08").card())


def test_progress_is_stored_only_as_counts(lab):
    lab.answer("share", "a")
    lab.reveal("share", 0.1)
    lab.check("cause", "b")
    lab.claim("a secret sentence", True)
    lab.card()
    done = course_progress.load_progress()["99_made"]
    assert (done.predicted, done.foreseen, done.right, done.held, done.claims) == (1, 1, 0, 1, 1)
    assert "secret" not in course_progress.path().read_text(encoding="utf-8")


def test_each_copy_of_the_course_has_predictions_of_its_own(tmp_path, monkeypatch):
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
    monkeypatch.chdir(mine)
    course_progress.store_predictions("99_made", {"share": "a"}, {"share": "2026-11-01"})
    monkeypatch.chdir(other)
    assert course_progress.read_predicted_letters("99_made") == {}
    assert course_progress.read_prediction_dates("99_made") == {}
    course_progress.store_predictions("99_made", {"share": "b"})
    monkeypatch.chdir(mine)
    assert course_progress.read_predicted_letters("99_made") == {"share": "a"}
    assert course_progress.read_prediction_dates("99_made") == {"share": "2026-11-01"}


def test_predictions_of_earlier_versions_belong_to_the_first_copy_that_asks(tmp_path, monkeypatch):
    stored = {"predicted": {"99_made": {"share": "a"}}, "predicted_on": {"99_made": {"share": "2026-11-01"}}}
    course_progress.path().parent.mkdir(parents=True)
    course_progress.path().write_text(json.dumps(stored), encoding="utf-8")
    for folder, letters, dates in (
        ("first", {"share": "a"}, {"share": "2026-11-01"}),
        ("second", {}, {}),
        ("first", {"share": "a"}, {"share": "2026-11-01"}),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        assert course_progress.read_predicted_letters("99_made") == letters
        assert course_progress.read_prediction_dates("99_made") == dates


def test_predictions_of_earlier_versions_are_shown_where_the_file_cannot_be_written(monkeypatch):
    course_progress.path().parent.mkdir(parents=True)
    course_progress.path().write_text(json.dumps({"predicted": {"99_made": {"share": "a"}}}), encoding="utf-8")
    monkeypatch.setattr(course_progress, "update_state", lambda *arguments: False)
    assert course_progress.read_predicted_letters("99_made") == {"share": "a"}


def test_progress_can_be_disabled_and_ignores_invalid_files(lab, monkeypatch, tmp_path):
    file = tmp_path / "odd.json"
    monkeypatch.setenv(course_progress.VARIABLE, str(file))
    for text in (
        json.dumps({"done": {"00_start_here": {"date": "x"}, "other": 3}, "predicted": 4}),
        json.dumps({"done": {"00_start_here": dict.fromkeys(course_progress.LessonResults.__annotations__, "x")}}),
        json.dumps({"done": []}),
    ):
        file.write_text(text, encoding="utf-8")
        assert course_progress.load_progress() == {}
        assert course_progress.read_predicted_letters("00_start_here") == {}
    lab.card()
    assert set(course_progress.load_progress()) == {"99_made"}
    monkeypatch.setenv(course_progress.VARIABLE, "off")
    assert course_progress.path() is None
    assert course_progress.load_progress() == {}
    lab.card()


def test_the_progress_view_counts_lessons(monkeypatch):
    from gpulab.lessons import progress
    from gpulab.lessons.course import lessons

    assert f"0 of {len(lessons())} lesson" in repr(progress())
    done = course_progress.LessonResults(
        date="2026-11-22", device="CPU", predicted=3, foreseen=2, right=1, held=4, claims=4
    )
    course_progress.store_progress("00_start_here", done)
    text = repr(progress())
    assert f"1 of {len(lessons())} lesson" in text
    assert "2 of 3" in text


def test_a_block_is_recorded_on_a_real_or_a_virtual_gpu(lab):
    with lab.gpu("block"):
        model = torch.nn.Linear(64, 64).cuda()
        for _ in range(4):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            gpulab.step()
    run = gpulab.runs["block"]
    assert run.source.how == ("measured" if torch.cuda.is_available() else "virtual")
    assert len(run.event_rows)


def test_the_number_of_recorded_steps_of_a_block_can_be_set(lab):
    with lab.gpu("few", steps=3):
        model = torch.nn.Linear(64, 64).cuda()
        for _ in range(12):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            gpulab.step()
    assert find_steps(gpulab.runs["few"]).host_steps.recorded.sum() == 3


def test_hostile_words_stand_as_text(lab):
    html = lab.claim("<script>alert(1)</script>", True)._repr_html_()
    assert "<script>" not in html
