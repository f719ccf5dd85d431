"""How nbval compares stored outputs with new ones, and what notebooks cost: what cannot be the same twice is left out,
text stays strict, and a notebook that takes far longer than its lesson promises fails.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpulab.lessons.course import lessons

# Reports carry times and pictures in these; what they claim stands beside them as text/plain, which is compared.
VOLATILE = ("text/html", "image/svg+xml")
# A budget is for a quiet machine; on one that does something else besides, this much longer is no fault of a notebook.
PATIENCE = 2

_spent_s: Counter[str] = Counter()  # by notebook


def pytest_collectstart(collector: Any) -> None:
    """Tell nbval's collector of a notebook what not to compare."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += VOLATILE


def pytest_runtest_logreport(report: Any) -> None:
    """Add up what the cells of each notebook take, the start of its kernel included."""
    _spent_s[report.nodeid.partition("::")[0].rpartition("/")[2]] += report.duration


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what each notebook took, beside its budget."""
    for name, budget_s in _budgets_s().items():
        terminalreporter.write_line(f"{name}: {_spent_s[name]:.0f} s of {budget_s}")


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Fail where a notebook took far longer than its budget."""
    over = [name for name, budget_s in _budgets_s().items() if _spent_s[name] > PATIENCE * budget_s]
    if over and exitstatus == 0 and not hasattr(session.config, "workerinput"):
        session.exitstatus = 1
        told = session.config.pluginmanager.getplugin("terminalreporter")
        names = ", ".join(over)
        told.write_line(f"\nover {PATIENCE} times their budget: {names}; let them do less at size tiny", red=True)


def _budgets_s() -> dict[str, int]:
    """Of the notebooks that ran."""
    known = {f"{each.id}.ipynb": each.budget_s for each in lessons()}
    return {name: known[name] for name in sorted(_spent_s) if name in known}
