"""Answers are ranked by what they save; what another explains is not told twice; gains are never multiplied."""

from dataclasses import replace

import numpy as np
import pytest

from gpulab.comparison import compare
from gpulab.errors import RunError
from gpulab.intervals import Spans
from gpulab.rules import Finding, Gain, Masked, Rule, Stage, diagnose
from gpulab.rules.engine.diagnosis import ranked
from gpulab.rules.engine.evidence import warmed_ns
from gpulab.tables import Kind
from gpulab.views.report.report import report
from tests.support.runs.made_runs import MS, NO_WORKERS, event, loader_call, run_of, stepped


def answer(rule, *, saves=0.0, at=None, stage=Stage.IDLE, masked_by=(), **more):
    def ask(seen):
        raise AssertionError("it was asked already")

    ask.__name__ = rule
    shown = {"shown_by": Spans(np.array([at[0] * MS]), np.array([at[1] * MS]))} if at else {}
    step_ns = 100 * MS
    left_ns = step_ns - round(saves * MS)
    gain = Gain(step_ns=step_ns, best_ns=left_ns, worst_ns=left_ns, floor_ns=left_ns, basis="") if saves else None
    finding = Finding(rule=rule, claim=f"{rule} costs.", evidence=("it was seen",), gain=gain, **shown, **more)
    return Rule(ask=ask, about=rule, stage=stage, masked_by=masked_by), finding


def order(*answers):
    return [finding.rule for finding in ranked(answers)[0]]


def test_findings_are_ranked_by_what_they_save():
    assert order(answer("small", saves=5), answer("large", saves=50), answer("none")) == ["large", "small", "none"]


def test_what_is_urgent_comes_first_and_what_is_aside_last():
    told = (answer("aside", saves=90, aside=True), answer("large", saves=50), answer("failed", urgent=True))
    assert order(*told) == ["failed", "large", "aside"]


def test_of_equals_the_one_whose_stage_is_earlier_comes_first():
    assert order(answer("state", stage=Stage.STATE), answer("machine", stage=Stage.ENVIRONMENT)) == ["machine", "state"]


def test_a_finding_about_time_that_another_explains_is_not_told_twice():
    cause = answer("cause", saves=30, at=(0, 60))
    same = answer("symptom", saves=40, at=(20, 100), masked_by=("cause",))
    found, masked = ranked([cause, same])
    assert [each.rule for each in found] == ["cause"]
    assert [(each.finding.rule, each.by) for each in masked] == [("symptom", "cause")]


def test_a_finding_about_other_time_is_told_beside_it():
    cause = answer("cause", saves=30, at=(0, 30))
    other = answer("symptom", saves=40, at=(20, 100), masked_by=("cause",))
    assert order(cause, other) == ["symptom", "cause"]


def test_a_finding_that_shows_no_time_explains_by_being_there():
    assert order(answer("cause"), answer("symptom", saves=40, at=(0, 9), masked_by=("cause",))) == ["cause"]
    assert order(answer("other"), answer("symptom", saves=40, at=(0, 9), masked_by=("cause",)))[0] == "symptom"


def two_causes(at):
    # 30 ms of data, 20 ms of a pageable copy, 50 ms of work
    return [
        loader_call(at, 30),
        event(Kind.COPY_CALL, "cudaMemcpyAsync", at + 30, 20, correlation=1),
        event(Kind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 30, 20, correlation=1, size=10**8),
        event(Kind.KERNEL, "ampere_sgemm", at + 50, 50),
    ]


def test_the_joint_bound_is_of_all_idle_causes_at_once_and_never_their_product():
    diagnosis = diagnose(run_of(stepped(two_causes), loaders=[NO_WORKERS]))
    gains = [finding.gain for finding in diagnosis.findings if finding.gain and finding.parts]
    assert [gain.bound for gain in gains] == pytest.approx([100 / 70, 100 / 80])
    assert diagnosis.together == pytest.approx(100 / 50)
    assert "as well: at most" in str(report(diagnosis))


def test_one_cause_has_no_joint_bound():
    run = run_of(stepped(lambda at: [loader_call(at, 40), event(Kind.KERNEL, "k", at + 40, 60)]), loaders=[NO_WORKERS])
    assert diagnose(run).together is None


def test_a_comparison_checks_the_prediction_of_the_rule_that_was_acted_on():
    before = run_of(stepped(two_causes), loaders=[NO_WORKERS])
    after = run_of(stepped(lambda at: [event(Kind.KERNEL, "ampere_sgemm", at, 50)], step_ms=70), loaders=[NO_WORKERS])
    rules = [finding.rule for finding in diagnose(before).findings if finding.gain]
    by_rule = {finding.rule: finding.gain for finding in diagnose(before).findings}
    for rule in rules:
        assert compare(before, after, rule).predicted == by_rule[rule]
    assert compare(before, after).predicted == by_rule[rules[0]]


def test_a_comparison_by_a_rule_that_found_nothing_says_what_was_found():
    run = run_of(stepped(two_causes), loaders=[NO_WORKERS])
    with pytest.raises(RunError, match="no finding 'garbage'") as refused:
        compare(run, run, "garbage")
    assert "no_workers" in refused.value.why


def test_a_report_tells_asides_and_what_was_explained_apart_from_findings():
    diagnosis = diagnose(run_of(stepped(two_causes), loaders=[NO_WORKERS]))
    _, aside = answer("warming", aside=True)
    _, symptom = answer("symptom")
    told = replace(
        diagnosis,
        findings=(*diagnosis.findings, aside),
        masked=(Masked(finding=symptom, by=diagnosis.findings[0].rule),),
    )
    shown = str(report(told))
    assert shown.index("other finding") < shown.index("Worth knowing") < shown.index("Warming costs.")
    assert f"Symptom costs. Explained by: {diagnosis.findings[0].claim}" in " ".join(shown.split())


def test_what_is_left_of_a_step_on_a_cpu_may_be_faster_alone_the_more_was_taken_away():
    assert warmed_ns(100 * MS, 100 * MS) == 100 * MS
    assert 60 * MS < warmed_ns(80 * MS, 100 * MS) < 80 * MS
    assert 0.3 * 10 * MS < warmed_ns(10 * MS, 100 * MS) < 0.5 * 10 * MS


def test_what_is_left_of_a_step_on_a_gpu_is_a_bound_as_it_is():
    run = run_of(stepped(lambda at: [loader_call(at, 40), event(Kind.KERNEL, "k", at + 40, 60)]), loaders=[NO_WORKERS])
    assert diagnose(run).first.gain.floor_ns == 60 * MS
