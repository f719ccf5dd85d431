"""An example finding for each rule, from the runs that the rule's test cases provoke it with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gpulab.rules import Finding, Rule, diagnose


@cache
def example_finding(rule: Rule) -> Finding:
    """Return a finding of this rule, with code to paste if there is a case whose finding has code.

    Raises LookupError if no case provokes the rule.
    """
    findings = []
    for provoke in _cases(rule):
        diagnosis = diagnose(provoke())
        all_findings = (*diagnosis.findings, *(masked.finding for masked in diagnosis.masked))
        matches = [finding for finding in all_findings if finding.rule == rule.name]
        findings += matches
        if any(finding.fix for finding in matches):
            break
    if not findings:
        raise LookupError(f"no case in tests/cases/{rule.topic}/{rule.name} provokes the rule")
    return next((finding for finding in findings if finding.fix), findings[0])


def _cases(rule: Rule) -> Sequence[Callable[[], Any]]:
    module = importlib.import_module(f"tests.cases.{rule.topic}.{rule.name}.case")
    return [value for name, value in vars(module).items() if name.startswith("provoked") and callable(value)]
