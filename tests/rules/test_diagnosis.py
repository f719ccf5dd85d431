"""Findings are ranked by predicted saving; masked findings are reported once; gains are never multiplied."""

from dataclasses import replace

import numpy as np
import pytest

from gpulab.comparison import compare
from gpulab.errors import RunError
from gpulab.intervals import Spans
from gpulab.rules import Finding, Gain, Masked, Rule, Stage, diagnose
from gpulab.rules.engine.diagnosis import combined_bound, joint_bound, rank_findings
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.tables import EventKind
from gpulab.views.report.headline import headline
from gpulab.views.report.report import report
from gpulab.wording import ratio
from tests.support.runs.made_runs import MS, NO_WORKERS, event, host_samples, loader_call, run_of, stepped


def answer(rule, *, saves=0.0, at=None, stage=Stage.IDLE, masked_by=(), **more):
    def ask(evidence):
        raise AssertionError("the rule must not run again")

    ask.__name__ = rule
    spans = {"spans": Spans(np.array([at[0] * MS]), np.array([at[1] * MS]))} if at else {}
    step_ns = 100 * MS
    rest_ns = step_ns - round(saves * MS)
    gain = Gain(step_ns=step_ns, best_ns=rest_ns, worst_ns=rest_ns, floor_ns=rest_ns, basis="") if saves else None
    finding = Finding(rule=rule, claim=f"{rule} costs.", evidence=("it was measured",), gain=gain, **spans, **more)
    return Rule(check=ask, about=rule, stage=stage, masked_by=masked_by), finding


def order(*answers):
    return [finding.rule for finding in rank_findings(answers)[0]]


def test_findings_are_ranked_by_predicted_saving():
    assert order(answer("small", saves=5), answer("large", saves=50), answer("none")) == ["large", "small", "none"]


def test_urgent_findings_come_first_and_informative_ones_last():
    answers = (answer("aside", saves=90, informs_only=True), answer("large", saves=50), answer("failed", urgent=True))
    assert order(*answers) == ["failed", "large", "aside"]


def test_what_distorts_other_findings_precedes_them_but_neither_a_failure_nor_as_an_aside():
    shared, large = answer("shared", saves=5, distorts_others=True), answer("large", saves=50)
    assert order(large, shared, answer("failed", urgent=True)) == ["failed", "shared", "large"]
    aside = answer("shared", saves=5, distorts_others=True, informs_only=True)
    assert order(large, aside) == ["large", "shared"]


def test_a_fix_that_may_make_the_step_slower_is_not_the_first_advice():
    rule, gamble = answer("gamble", saves=50)
    gamble = replace(gamble, gain=replace(gamble.gain, worst_ns=130 * MS))
    assert order((rule, gamble), answer("safe", saves=5)) == ["safe", "gamble"]


def test_the_lower_ends_of_the_ranges_decide():
    rule, wide = answer("wide", saves=90)
    wide = replace(wide, gain=replace(wide.gain, worst_ns=97 * MS))
    assert order((rule, wide), answer("sure", saves=5)) == ["sure", "wide"]


def test_noise_is_no_loss():
    rule, large = answer("large", saves=50)
    large = replace(large, gain=replace(large.gain, worst_ns=103 * MS))
    other_rule, small = answer("small", saves=5)
    small = replace(small, gain=replace(small.gain, worst_ns=100 * MS))
    assert order((other_rule, small), (rule, large)) == ["large", "small"]


def test_findings_with_equal_savings_are_ordered_by_stage():
    assert order(answer("state", stage=Stage.STATE), answer("machine", stage=Stage.ENVIRONMENT)) == ["machine", "state"]


def test_a_finding_about_the_same_time_is_masked():
    cause = answer("cause", saves=30, at=(0, 60))
    same = answer("symptom", saves=40, at=(20, 100), masked_by=("cause",))
    reported, masked = rank_findings([cause, same])
    assert [each.rule for each in reported] == ["cause"]
    assert [(each.finding.rule, each.explained_by) for each in masked] == [("symptom", "cause")]


def test_a_finding_about_other_time_is_not_masked():
    cause = answer("cause", saves=30, at=(0, 30))
    other = answer("symptom", saves=40, at=(20, 100), masked_by=("cause",))
    assert order(cause, other) == ["symptom", "cause"]


def test_a_finding_without_spans_masks_by_its_presence():
    assert order(answer("cause"), answer("symptom", saves=40, at=(0, 9), masked_by=("cause",))) == ["cause"]
    assert order(answer("other"), answer("symptom", saves=40, at=(0, 9), masked_by=("cause",)))[0] == "symptom"


def two_causes(at):
    # 30 ms of data, 20 ms of a pageable copy, 50 ms of work
    return [
        loader_call(at, 30),
        event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 30, 20, correlation=1),
        event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 30, 20, correlation=1, size=10**8),
        event(EventKind.KERNEL, "ampere_sgemm", at + 50, 50),
    ]


def test_the_joint_bound_is_of_all_idle_causes_at_once_and_never_their_product():
    diagnosis = diagnose(run_of(stepped(two_causes), loaders=[NO_WORKERS]))
    gains = [finding.gain for finding in diagnosis.findings if finding.gain and finding.ledger_parts]
    assert [gain.bound for gain in gains] == pytest.approx([100 / 70, 100 / 80])
    assert diagnosis.combined_bound == pytest.approx(100 / 50)
    assert f"with all findings fixed: {ratio(diagnosis.combined_bound)}" in " ".join(str(report(diagnosis)).split())


def slow_kernels_and_two_causes(best_ms):
    idle = diagnose(run_of(stepped(two_causes), loaders=[NO_WORKERS]))
    gain = replace(idle.findings[0].gain, best_ns=best_ms * MS, floor_ns=best_ms * MS)
    return idle, replace(idle.findings[0], rule="slow_kernels", ledger_parts=("kernels",), gain=gain)


def test_a_joint_bound_that_is_not_of_all_findings_names_those_that_it_is_of():
    idle, kernels = slow_kernels_and_two_causes(best_ms=60)
    names = [name for name, _ in headline(replace(idle, findings=(*idle.findings, kernels))).facts]
    assert f"Upper bound with {' and '.join(idle.combined_rules)} fixed" in names
    assert "Upper bound with all findings fixed" not in names


@pytest.mark.parametrize(("best_ms", "is_shown"), [(60, True), (40, False)])
def test_a_joint_bound_is_left_out_if_another_finding_may_gain_more(best_ms, is_shown):
    idle, kernels = slow_kernels_and_two_causes(best_ms)
    evidence = Evidence(idle.run, idle.steps, idle.ledger)
    shown = (idle.combined_bound, idle.combined_rules) if is_shown else (None, ())
    assert combined_bound(evidence, (*idle.findings, kernels)) == shown


def test_warm_caches_speed_up_the_rest_of_a_step_once_however_many_causes_are_fixed():
    gains = [
        Gain(step_ns=100, best_ns=100, worst_ns=100, floor_ns=floor_ns, cold_floor_ns=cold_ns, basis="")
        for cold_ns, floor_ns in ((50, 25), (90, 80))
    ]
    # 40 of 100 remain; the first fix allows for half of what remains, more than a CPU without interruptions gains.
    assert joint_bound(gains, on_gpu=False) == pytest.approx(100 / 20)
    assert joint_bound([gains[1], gains[1]], on_gpu=True) == pytest.approx(100 / (80 * 80 / 90))


def test_a_loop_gains_less_than_its_steps_by_what_the_rest_takes():
    gain = Gain(step_ns=100, best_ns=25, worst_ns=50, floor_ns=10, cold_floor_ns=20, basis="")
    half = gain.of_loop(0.5)  # 100 ns of evaluations for each step
    assert (half.worst_speedup, half.best_speedup, half.bound) == (200 / 150, 200 / 125, 200 / 110)
    assert half.cold_bound == 200 / 120
    assert gain.of_loop(1.0).best_speedup == gain.best_speedup
    assert half.saved_ns == gain.saved_ns


def test_one_cause_has_no_joint_bound():
    run = run_of(
        stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, "k", at + 40, 60)]), loaders=[NO_WORKERS]
    )
    assert diagnose(run).combined_bound is None


def test_a_comparison_checks_the_prediction_of_the_rule_that_was_acted_on():
    before = run_of(stepped(two_causes), loaders=[NO_WORKERS])
    after = run_of(
        stepped(lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at, 50)], step_ms=70), loaders=[NO_WORKERS]
    )
    rules = [finding.rule for finding in diagnose(before).findings if finding.gain]
    by_rule = {finding.rule: finding.gain for finding in diagnose(before).findings}
    for rule in rules:
        assert compare(before, after, rule).predicted == by_rule[rule]
    assert compare(before, after).predicted is None  # both runs have num_workers=0, so the first fix was not applied


def test_comparing_by_a_rule_without_a_finding_raises_run_error():
    run = run_of(stepped(two_causes), loaders=[NO_WORKERS])
    with pytest.raises(RunError, match="no finding 'garbage'") as refused:
        compare(run, run, "garbage")
    assert "no_workers" in refused.value.why


def test_a_report_separates_findings_information_and_masked_findings():
    diagnosis = diagnose(run_of(stepped(two_causes), loaders=[NO_WORKERS]))
    _, aside = answer("warming", informs_only=True)
    _, symptom = answer("symptom")
    extended = replace(
        diagnosis,
        findings=(*diagnosis.findings, aside),
        masked=(Masked(finding=symptom, explained_by=diagnosis.findings[0].rule),),
    )
    text = str(report(extended))
    assert text.index("other finding") < text.index("Worth knowing") < text.index("Warming costs.")
    assert f"Symptom costs. Its time is counted in the finding {diagnosis.findings[0].rule}." in " ".join(text.split())


def test_the_rest_of_a_cpu_step_speeds_up_with_the_removed_share():
    assert with_warm_caches_ns(100 * MS, 100 * MS) == 100 * MS
    assert 60 * MS < with_warm_caches_ns(80 * MS, 100 * MS) < 80 * MS
    assert 0.3 * 10 * MS < with_warm_caches_ns(10 * MS, 100 * MS) < 0.5 * 10 * MS


def test_the_rest_of_a_gpu_step_is_the_bound():
    run = run_of(
        stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, "k", at + 40, 60)]), loaders=[NO_WORKERS]
    )
    assert diagnose(run).first.gain.floor_ns == 60 * MS


@pytest.mark.parametrize(("wait_ms", "confidence"), [(45, "likely"), (55, "certain")])
def test_on_a_cpu_the_first_finding_has_high_confidence_only_if_its_cause_takes_most_of_a_step(wait_ms, confidence):
    def step(at):
        return [loader_call(at, wait_ms), event(EventKind.OP, "aten::mm", at + wait_ms, 100 - wait_ms)]

    first = diagnose(run_of(stepped(step, count=20), loaders=[NO_WORKERS])).first
    assert first.rule == "no_workers"
    assert first.confidence == confidence
    assert bool(first.confidence_reason) == (confidence == "likely")


@pytest.mark.parametrize(("loading_ms", "is_unknown"), [(14, False), (6, True)])
def test_time_of_unknown_cause_is_the_verdict_only_if_no_known_cause_takes_more(loading_ms, is_unknown):
    """No fix is certain to save much; 10 % of a step are in Python code, or in other programs on full cores."""

    def step(at):
        return [
            loader_call(at, loading_ms),
            event(EventKind.OP, "aten::addmm", at + loading_ms + 10, 90 - loading_ms),
        ]

    samples = [
        {**each, "preempted": 0.15 * each["at_ns"] / 1e6}
        for each in host_samples(600, main=0.5, others=0.0, cpu_frac=1.0, frame="train (cell line 3)")
    ]
    run = run_of(stepped(step), samples=samples, loaders=[NO_WORKERS])
    diagnosis = diagnose(run)
    assert diagnosis.first is None
    assert ("cause is unknown" in diagnosis.verdict) is is_unknown
