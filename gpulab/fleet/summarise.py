"""Compute the summary of a rank from its run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.analysis.events.busy import busy_time
from gpulab.analysis.machine.clocks import clocks_under_load
from gpulab.analysis.ranks.arrivals import rank_arrivals
from gpulab.analysis.ranks.collectives import Collectives, collectives
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.fleet.rank_summary import (
    MAX_BYTES,
    MAX_COLLECTIVES,
    MAX_STEPS,
    MAX_TEXT,
    DeviceTime,
    FirstFinding,
    GroupSummary,
    RankSummary,
    StepTimes,
    encode,
    pack_arrivals,
    sampled_arrivals,
)
from gpulab.intervals import covered_ns, union
from gpulab.rules import Diagnosis, diagnose
from gpulab.rules.ranks.stragglers import median_clock_mhz
from gpulab.run import Run
from gpulab.run_facts import count_from_fact
from gpulab.wording import clean, shorten

_MAX_GROUPS = 12  # process groups with a sample


def summarise_run(run: Run, path: str) -> RankSummary:
    """Return the summary of the run of one rank, which was read from `path`."""
    diagnosis = diagnose(run)
    ledger, steps = diagnosis.ledger, diagnosis.steps
    clocks = clocks_under_load(run, steps)
    throttled = (clocks.power_throttled_frac, clocks.heat_throttled_frac) if clocks else ()
    summary = RankSummary(
        path=path,
        rank=run.rank,
        world_size=count_from_fact(run, "world_size"),
        host=clean(run.facts["host"], 100) if run.facts.get("host") else None,
        gpu=clean(run.machine.device, 100) if run.machine.gpus else None,
        host_gpus=len(run.machine.gpus),
        began_ns=run.began_ns,
        events=len(run.event_rows),
        lost_events=sum(run.recording.lost.values()),
        finding=_first_finding(diagnosis),
        verdict=shorten(diagnosis.verdict, MAX_TEXT),
        clock_mhz=median_clock_mhz(run) if len(run.event_rows) else None,
        throttled_frac=max((frac for frac in throttled if frac is not None), default=None),
    )
    if ledger is None or diagnosis.step is None:
        return summary
    all_collectives = collectives(run, steps, ledger)
    return _bounded(
        replace(
            summary,
            device=ledger.device,
            interior_steps=len(ledger.step_ns),
            step_ns=diagnosis.step.step_ns,
            traced_ns=steps.traced_ns,
            part_ns=dict(diagnosis.step.part_ns),
            median_part_ns={part.key: ledger.median_ns(part.key) for part in ledger.parts},
            steps=_step_times(steps, ledger, all_collectives),
            device_time=_device_time(run) if ledger.device == "gpu" else None,
            groups=_groups(run, steps, all_collectives, summary.world_size) if all_collectives else (),
        )
    )


def _first_finding(diagnosis: Diagnosis) -> FirstFinding | None:
    first = diagnosis.first
    if first is None:
        return None
    return FirstFinding(
        rule=first.rule,
        claim=shorten(first.claim, MAX_TEXT),
        confidence=first.confidence,
        worst_speedup=first.gain.worst_speedup if first.gain else None,
        best_speedup=first.gain.best_speedup if first.gain else None,
    )


def _step_times(steps: Steps, ledger: Ledger, all_collectives: Collectives | None) -> StepTimes:
    start, end = (bound[:MAX_STEPS] for bound in steps.interior_bounds_ns)
    in_collectives = np.zeros(len(start), np.int64)
    exposed = in_collectives
    if all_collectives is not None:
        spans = union(all_collectives.start_ns, all_collectives.start_ns + all_collectives.dur_ns)
        in_collectives = covered_ns(spans, start, end)
        exposed = covered_ns(ledger.spans["communication"], start, end)
    return StepTimes(
        start_ns=tuple(start.tolist()),
        dur_ns=tuple((end - start).tolist()),
        collective_ns=tuple(in_collectives.tolist()),
        exposed_ns=tuple(exposed.tolist()),
    )


def _device_time(run: Run) -> DeviceTime | None:
    busy = busy_time(run, main_device(run))
    if busy is None:
        return None
    return DeviceTime(
        window_ns=busy.window_ns[1] - busy.window_ns[0],
        busy_ns=busy.busy_ns,
        kernels_ns=busy.kernels.total_ns,
        communication_ns=busy.communication.total_ns,
        exposed_communication_ns=busy.exposed_communication.total_ns,
    )


def _groups(run: Run, steps: Steps, all_collectives: Collectives, world_size: int | None) -> tuple[GroupSummary, ...]:
    """Return the process groups, large ones first; those beyond _MAX_GROUPS without a sample."""
    codes = np.unique(all_collectives.group).tolist()
    names = {code: all_collectives.groups[code] if code >= 0 else "" for code in codes}
    sizes = {code: _group_size(all_collectives, code, world_size) for code in codes}
    ordered = sorted(codes, key=lambda code: (-(sizes[code] or 0), names[code]))
    limit = MAX_COLLECTIVES // max(1, min(len(ordered), _MAX_GROUPS))
    summaries = []
    for position, code in enumerate(ordered[: 4 * _MAX_GROUPS]):
        mask = all_collectives.group == code
        arrivals = rank_arrivals(run, steps, all_collectives, mask)
        arrivals = sampled_arrivals(arrivals, limit if position < _MAX_GROUPS else 0)
        inside = mask & all_collectives.interior
        sizes_bytes = all_collectives.bytes[inside]
        step_count = max(1, int(steps.interior.sum()))
        summaries.append(
            GroupSummary(
                name=clean(names[code], 100),
                size=sizes[code],
                collectives=round(int(inside.sum()) / step_count),
                moved_bytes=round(int(sizes_bytes.sum()) / step_count) if (sizes_bytes >= 0).all() else None,
                sampled=len(arrivals),
                columns=pack_arrivals(arrivals),
            )
        )
    return tuple(summaries)


def _group_size(all_collectives: Collectives, code: int, world_size: int | None) -> int | None:
    """Return the number of ranks of a group; without any details in the trace, it is the group of all ranks."""
    size = int(all_collectives.group_size[all_collectives.group == code].max())
    if size > 0:
        return size
    return world_size if code < 0 else None


def _bounded(summary: RankSummary) -> RankSummary:
    """Return the summary with smaller samples, if it would exceed its size."""
    while len(encode(summary)) > MAX_BYTES and any(group.sampled for group in summary.groups):
        groups = []
        for group in summary.groups:
            arrivals = sampled_arrivals(group.arrivals(), group.sampled // 2)
            groups.append(replace(group, sampled=len(arrivals), columns=pack_arrivals(arrivals)))
        summary = replace(summary, groups=tuple(groups))
    return summary
