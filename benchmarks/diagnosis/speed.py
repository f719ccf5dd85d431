"""Time a diagnosis, rule by rule; shared computations are charged to the first rule that needs them."""

from __future__ import annotations

import time
from pathlib import Path

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rules import RULES, diagnose
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.needs import first_unmet_need

ROUNDS = 3


def speed(trace: Path) -> str:
    """Return a table of milliseconds, medians of three rounds."""
    run = gpulab.load(trace)
    rounds = [_round(run) for _ in range(ROUNDS)]
    rows = {name: sorted(each[name] for each in rounds)[ROUNDS // 2] for name in rounds[0]}
    lines = [f"{trace.name}: {len(run.event_rows):,} events", "", "| what | ms |", "|---|---|"]
    lines += [f"| {name} | {1e3 * took_s:.1f} |" for name, took_s in sorted(rows.items(), key=lambda row: -row[1])]
    return "\n".join(lines)


def _round(run: gpulab.Run) -> dict[str, float]:
    took: dict[str, float] = {}
    began = time.perf_counter()
    run_steps = find_steps(run)
    took["finding the steps"] = time.perf_counter() - began
    began = time.perf_counter()
    accounts = build_ledger(run, run_steps)
    took["the ledger"] = time.perf_counter() - began
    evidence = Evidence(run, run_steps, accounts)
    for rule in RULES:
        began = time.perf_counter()
        if first_unmet_need(rule.needs, evidence) is None:
            rule.check(evidence)
        took[rule.name] = time.perf_counter() - began
    began = time.perf_counter()
    diagnose(run)
    took["**the whole diagnosis**"] = time.perf_counter() - began
    return took
