"""Each rule has a folder of cases in tests/cases: runs in which it must fire, and near misses in which it must not.

`case.py` in the rule's folder holds functions `provoked_by_...()` and `spared_...()`, each of which returns a run, or
the runs of all ranks; `provoked_*.gpulab` and `spared_*.gpulab` next to it are recorded runs.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

from gpulab.rules import RULES
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT
from tests.support.runs.cases import ALL, CASES, diagnosis_of

NAMES = [rule.name for rule in RULES]
TOPICS = {path.name: path.parent.name for path in CASES.glob("*/*")}
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


PROVOKED = [pytest.param(rule, make, id=f"{rule}-{name}") for rule, verb, name, make in ALL if verb == "provoked"]
SPARED = [pytest.param(rule, make, id=f"{rule}-{name}") for rule, verb, name, make in ALL if verb == "spared"]


def test_every_rule_is_provoked_by_a_case_and_spared_by_a_near_miss():
    verbs = {name: {verb for rule, verb, _, _ in ALL if rule == name} for name in NAMES}
    missing = {
        name: {"provoked", "spared"} - present for name, present in verbs.items() if present != {"provoked", "spared"}
    }
    assert not missing


def test_every_case_belongs_to_an_existing_rule():
    assert {rule for rule, *_ in ALL} <= set(NAMES)


def test_rule_names_are_unique():
    assert len(set(NAMES)) == len(NAMES)


def test_a_rule_is_masked_only_by_existing_rules():
    assert {name for rule in RULES for name in rule.masked_by} <= set(NAMES)


@pytest.mark.parametrize(("rule", "make"), PROVOKED)
def test_a_case_provokes_its_rule(rule, make):
    diagnosis = diagnosis_of(make)
    findings = {finding.rule: finding for finding in diagnosis.findings}
    assert rule in findings
    finding = findings[rule]
    assert finding.claim.endswith(".")
    assert "\n" not in finding.claim
    assert finding.evidence
    assert finding.confidence in (CERTAIN, LIKELY, SUSPECT)
    assert not finding.lesson or (NOTEBOOKS / f"{finding.lesson}.ipynb").exists()
    assert finding.topic == TOPICS[rule]
    assert finding.fix or finding.advice or finding.informs_only
    if finding.gain is not None:
        gain = finding.gain
        assert 0 < gain.floor_ns <= gain.best_ns <= gain.worst_ns <= gain.step_ns
    assert plurals_of_one(diagnosis) == []


@pytest.mark.parametrize(("rule", "make"), PROVOKED)
def test_a_fix_is_code_that_can_be_pasted(rule, make):
    for finding in diagnosis_of(make).findings:
        tree = ast.parse(finding.fix)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is Ellipsis]


NOUNS = (
    "all-reduce|batche|collection|collective|compilation|core|DataLoader worker|epoch|GPU|kernel|operator|processe|"
    "rank|reading|sample|step|tensor|thread|time|worker"
)


def plurals_of_one(diagnosis):
    """Texts of a diagnosis with a count of one before a plural: "1 workers"."""
    texts = [diagnosis.verdict, *(unjudged.reason for unjudged in diagnosis.unjudged)]
    for finding in diagnosis.findings:
        texts += [finding.claim, *finding.evidence, finding.advice, *finding.caveats, finding.confidence_reason]
        texts += [] if finding.gain is None else [finding.gain.basis]
    return [text for text in texts if re.search(rf"(?<![\w.,/-])(?<!of )1 (?:{NOUNS})s\b", text)]


@pytest.mark.parametrize(("rule", "make"), SPARED)
def test_a_near_miss_spares_the_rule(rule, make):
    diagnosis = diagnosis_of(make)
    reported = [finding.rule for finding in diagnosis.findings]
    assert rule not in reported
    assert rule not in [masked.finding.rule for masked in diagnosis.masked]
    assert plurals_of_one(diagnosis) == []


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_docstring_of_a_rule_is_its_page(rule):
    page = inspect.getdoc(rule.check)
    for heading in ("Proof:", "Confused with:", "What to do:"):
        assert heading in " ".join(page.split())
