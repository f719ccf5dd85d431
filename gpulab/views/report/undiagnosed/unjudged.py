"""Checks that could not run: one line in a report, or the list with reasons if it is asked for."""

from __future__ import annotations

from gpulab.capture.run_registry import runs
from gpulab.rules import RULES, Diagnosis
from gpulab.run import Run
from gpulab.run_facts import is_from_monitor
from gpulab.views.sheet.sheet import Line
from gpulab.views.whatif.command import has_magics
from gpulab.wording import count, sentence, shell_word


def unjudged_line(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """Return a line with the number of checks that could not run, and the command that lists them.

    A monitor records nothing that they could judge, so its report mentions them only if everything is asked for.
    """
    if not diagnosis.unjudged or is_from_monitor(diagnosis.run):
        return ()
    unjudged = f"{len(diagnosis.unjudged)} of {count(len(RULES), 'check')} could not run"
    return (Line(f"{unjudged}. The reasons: {full_report_command(diagnosis.run)}"),)


def full_report_command(run: Run) -> str:
    """Return the command for the report with everything: "%gpureport before --all"; in a script, a call."""
    is_registered = runs.holds(run)
    if is_registered and has_magics():
        return f"%gpureport {shell_word(run.name)} --all"
    return f"gpulab.report({repr(run.name) if is_registered else 'RUN'}, everything=True)"


def unjudged_reasons(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """Return a line for each reason, with the names of all rules that could not run."""
    if len({(each.reason, each.fix) for each in diagnosis.unjudged}) == 1 and diagnosis.ledger is None:
        return (Line(f"No check could run: {_reason(diagnosis.unjudged[0].reason, diagnosis.unjudged[0].fix)}"),)
    shared: dict[tuple[str, str], list[str]] = {}
    for question in diagnosis.unjudged:
        shared.setdefault((question.reason, question.fix), []).append(question.rule)
    return tuple(Line(f"{', '.join(names)}: {_reason(why, fix)}") for (why, fix), names in shared.items())


def _reason(why: str, fix: str) -> str:
    return f"{why.rstrip('.')}. {sentence(fix)}".rstrip()
