"""Stage: the tests marked `gpu`, in one process of pytest; counted as they end, so that a stop loses nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.gpu_visit.visit import Check, StageResult, Visit

ROOT = Path(__file__).resolve().parents[3]
_RESULT = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_MARK = re.compile(r"\bmark\.gpu\b")
BAD = ("FAILED", "ERROR")
PYTEST = ("-m", "pytest", "-m", "gpu", "--color=no", "--tb=short", "--durations=15", "--timeout=90")
NO_CACHE = ("-p", "no:cacheprovider", "-p", "no:benchmark")


def marked_tests(visit: Visit) -> StageResult:
    """Run the files that hold such tests; in a dry run, only collect them."""
    files = test_files()
    mode = ["-q", "--collect-only"] if visit.dry_run else ["-v"]
    command = [sys.executable, *PYTEST, *NO_CACHE, *mode, *files]
    verdicts: dict[str, str] = {}
    log = visit.parts_folder() / "pytest.log"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        with log.open("w", encoding="utf-8") as stream:
            for line in process.stdout:
                stream.write(line)
                stream.flush()
                if result := _RESULT.match(line):
                    verdicts[result[1]] = result[2]
                    visit.save(result_of(verdicts, files))
    if visit.dry_run:
        return collected(log.read_text(encoding="utf-8"), process.returncode)
    return result_of(verdicts, files, process.returncode)


def test_files() -> list[str]:
    """The test files that mention the mark."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if _MARK.search(path.read_text(encoding="utf-8"))]


def collected(text: str, exit_code: int) -> StageResult:
    """The number of tests that would run."""
    count = len(re.findall(r"^\S+::", text, re.MULTILINE))
    checks = [Check(name="the tests are collected", holds=exit_code == 0 and count > 0, detail=text[-300:])]
    return StageResult(headline=f"{count} tests collected, none run", figures={"collected": count}, checks=checks)


def result_of(verdicts: dict[str, str], files: list[str], exit_code: int | None = None) -> StageResult:
    """Counts and failures so far; pytest has ended if there is an exit code."""
    counts = Counter(verdicts.values())
    failures = [name for name, verdict in verdicts.items() if verdict in BAD]
    passed = bool(counts["PASSED"]) and not failures
    checks = [Check(name="all tests pass", holds=passed if failures or exit_code is not None else None)]
    return StageResult(
        headline=", ".join(f"{number} {verdict.lower()}" for verdict, number in sorted(counts.items())),
        figures={"counts": dict(counts), "failures": failures, "files": files, "exit_code": exit_code},
        checks=checks,
        head=("test", "result"),
        rows=[(name, verdicts[name]) for name in failures],
    )
