"""Repeat tests that time this machine: a measurement that another program disturbed says nothing of the code."""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

ATTEMPTS = 3


class Retries:
    """A pytest plugin: run each test marked `alone` up to `ATTEMPTS` times, and list the repeated ones."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test marked `alone`, again if it fails; report the last attempt alone."""
        mark = item.get_closest_marker("alone")
        if mark is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for attempt in range(1, ATTEMPTS + 1):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            failed = [report for report in reports if report.failed]
            if not failed:
                break
            crash = str(failed[0].longrepr).strip().splitlines()[-1:]
            self.lines.append(f"{item.nodeid}: attempt {attempt} of {ATTEMPTS} failed: {' '.join(crash)[:200]}")
            self.lines.append(f"    repeated because it {mark.args[0]}")
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the attempts that failed."""
        if self.lines:
            terminalreporter.section("repeated tests")
            for line in self.lines:
                terminalreporter.write_line(line)
