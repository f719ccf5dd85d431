"""Run each stage in a process of its own, within its limit and the budget; skip those that have a result."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu_visit.catalogue import Stage
from benchmarks.gpu_visit.visit import NO_CUDA, Visit, read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
OK, FAILED, REHEARSED, SKIPPED = "ok", "failed", "rehearsed", "skipped"
CRASHED, TIMEOUT = "crashed", "timeout"
UNFINISHED = "unfinished"  # stopped by the end of the budget, or it has parts left: a later call continues
FAILURES = frozenset((FAILED, CRASHED, TIMEOUT))
LAST_LINES, MAX_LOG_BYTES = 15, 200_000
RESERVE_S = 5.0  # of the budget, for the summary

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where results go, which stages are repeated, and when the budget ends."""

    folder: Path
    ends_s: float  # on time.monotonic()
    dry_run: bool = False
    again: Sequence[str] = ()

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget, without the reserve."""
        return self.ends_s - time.monotonic() - RESERVE_S


def run_stages(stages: Sequence[Stage], plan: Plan, log: Callable[[str], None], done: Callable[[], None]) -> None:
    """Run the stages that have no result yet, in order; `done` is called after each of them."""
    open_folder(plan)
    for stage in stages:
        if stage.name in plan.again:
            shutil.rmtree(plan.folder / stage.name, ignore_errors=True)
        elif has_result(stage, plan):
            log(f"{stage.name}: there is a result already")
            continue
        if plan.seconds_left < stage.least_s:
            log(f"{stage.name}: not started, {max(0, plan.seconds_left):.0f} s are left")
            continue
        log(f"{stage.name}: {stage.about}")
        record = run_stage(stage, plan)
        write_json(result_file(plan.folder, stage.name), record)
        log(f"{stage.name}: {record['status']} in {record['seconds']:.0f} s. {record['reason'] or record['headline']}")
        done()


def open_folder(plan: Plan) -> None:
    """Make the folder. Raises ValueError if it holds results of the other kind, dry or real."""
    kind = {"dry_run": plan.dry_run}
    marker = plan.folder / "visit.json"
    if (read_json(marker) or kind) != kind:
        other = "a real run" if plan.dry_run else "a dry run"
        raise ValueError(f"{plan.folder} holds results of {other}: name another folder with --out")
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_json(marker, kind)


def has_result(stage: Stage, plan: Plan) -> bool:
    """Whether a result of an earlier call stands: the stage ended or was stopped at its own limit."""
    record = read_json(result_file(plan.folder, stage.name))
    if not isinstance(record, dict) or record.get("status") == UNFINISHED:
        return False
    return plan.dry_run or record.get("reason") != NO_CUDA


def result_file(folder: Path, name: str) -> Path:
    """The file with the result of a stage."""
    return folder / f"{name}.json"


def statuses(stages: Sequence[Stage], folder: Path) -> list[str]:
    """The statuses of those stages that have a result."""
    records = [read_json(result_file(folder, stage.name)) for stage in stages]
    return [record["status"] for record in records if record]


def run_stage(stage: Stage, plan: Plan) -> Record:
    """Run one stage to its end or its limit, and return its record."""
    limit_s = min(float(stage.limit_s), plan.seconds_left)
    began, began_s = datetime.now(timezone.utc), time.monotonic()
    record: Record = {"stage": stage.name, "dry_run": plan.dry_run, "began": began.isoformat(timespec="seconds")}
    if plan.dry_run and stage.needs_gpu:
        return {**record, "status": SKIPPED, "seconds": 0.0, "reason": NO_CUDA, "headline": ""}
    visit = Visit(folder=plan.folder, stage=stage.name, ends_s=began_s + limit_s, dry_run=plan.dry_run)
    visit.outcome_file.unlink(missing_ok=True)
    log_file = plan.folder / f"{stage.name}.log"
    exit_code = run_process(stage, visit, limit_s, log_file)
    outcome = read_json(visit.outcome_file) or {}
    visit.outcome_file.unlink(missing_ok=True)
    status, reason = judged(exit_code, outcome, dry_run=plan.dry_run)
    if exit_code is None:
        is_cut_short = limit_s < stage.limit_s
        status = UNFINISHED if is_cut_short or stage.continues else TIMEOUT
        reason = f"{'the budget ended' if is_cut_short else 'stopped at its limit'}, after {limit_s:.0f} s"
    headline = outcome.get("headline", "")
    lines = shortened_log(log_file)
    return {
        **record,
        "status": status,
        "reason": reason,
        "seconds": round(time.monotonic() - began_s, 1),
        "limit_s": round(limit_s, 1),
        "headline": f"(tiny, on the CPU) {headline}" if plan.dry_run and headline else headline,
        "checks": outcome.get("checks", []),
        "head": outcome.get("head", []),
        "rows": outcome.get("rows", []),
        "figures": outcome.get("figures", {}),
        "last_lines": lines if status in (CRASHED, TIMEOUT, UNFINISHED, FAILED) else [],
    }


def run_process(stage: Stage, visit: Visit, limit_s: float, log_file: Path) -> int | None:
    """Run the process of a stage; return its exit code, or None if it was stopped at its limit."""
    command = [sys.executable, "-m", "benchmarks.gpu_visit.child", stage.target, str(visit.folder.resolve())]
    command += [stage.name, f"{limit_s:.1f}", *["--dry-run"] * visit.dry_run]
    with log_file.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment_of(visit),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group, which can be stopped as one
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            stop_group(process)


def environment_of(visit: Visit) -> dict[str, str]:
    """The environment of a stage: this clone first, no history of predictions, no GPU in a dry run."""
    inherited = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
    settings = {"PYTHONPATH": paths, "GPULAB_HISTORY": "off", "GPULAB_PROGRESS": "off", "PYTHONUNBUFFERED": "1"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if visit.dry_run else {}
    return {**os.environ, **settings, **hidden}


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and those that it started, such as DataLoader workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)


def judged(exit_code: int | None, outcome: Mapping[str, Any], *, dry_run: bool) -> tuple[str, str]:
    """The status of a stage that ended by itself, and its reason; a dry run is never `ok`."""
    if exit_code != 0:
        return CRASHED, f"exit code {exit_code}"
    if not outcome:
        return CRASHED, "it left no result"
    if outcome["skipped"]:
        return SKIPPED, str(outcome["skipped"])
    failures = [check["name"] for check in outcome["checks"] if check["holds"] is False]
    if failures:
        return FAILED, f"{len(failures)} of {len(outcome['checks'])} checks fail: {'; '.join(failures)}"
    return (REHEARSED if dry_run else OK), ""


def shortened_log(path: Path) -> list[str]:
    """Cut a log to its end, and return its last lines."""
    content = path.read_bytes()
    if len(content) > MAX_LOG_BYTES:
        path.write_bytes(content[-MAX_LOG_BYTES:])
    return content[-MAX_LOG_BYTES:].decode("utf-8", errors="replace").splitlines()[-LAST_LINES:]
