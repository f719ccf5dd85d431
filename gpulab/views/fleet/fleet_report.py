"""The report of a job: a headline, the ledger over ranks, stragglers, hosts, findings, and files that were not read."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.fleet import Fleet
from gpulab.fleet.fleet_result import rank_numbers
from gpulab.fleet.group_arrivals import GroupArrivals
from gpulab.views.fleet.fleet_tables import (
    finding_section,
    host_section,
    ledger_section,
    part_label,
    straggler_section,
    unread_section,
)
from gpulab.views.sheet.sheet import Answer, Block, Line, Sheet
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, percent, quantity, sentence

_MOST_FRAC = 0.5  # of the ranks: a finding that comes first on as many may be the headline


@dataclass(frozen=True, eq=False, repr=False)
class FleetReport(View):
    """The analysis of a job as a view."""

    fleet: Fleet


def fleet_report(fleet: Fleet) -> FleetReport:
    """Return the report of a job."""
    sections = (
        ledger_section(fleet),
        straggler_section(fleet),
        finding_section(fleet),
        host_section(fleet),
        unread_section(fleet),
    )
    blocks: tuple[Block, ...] = (
        _headline(fleet),
        *(Line(sentence(text), soft=True) for text in _provenance(fleet)),
        *(section for section in sections if section is not None),
    )
    return FleetReport(Sheet(f"gpulab report of {count(len(fleet.ranks), 'rank')}", blocks), fleet)


def _headline(fleet: Fleet) -> Answer:
    straggler = fleet.straggler
    if straggler is not None:
        return _straggler_answer(straggler)
    spread = fleet.step_times
    step = f" A step takes {duration(spread.median_ns)} (median over ranks)." if spread else ""
    rotating = next((group for group in fleet.arrivals if group.has_long_wait), None)
    if rotating is not None:
        return _rotating_answer(rotating)
    first = next((item for item in fleet.findings if item.rule), None)
    if first is not None and first.count >= _MOST_FRAC * len(fleet.ranks):
        return Answer(
            claim=f"On {first.count:,} of {count(len(fleet.ranks), 'rank')}, the first finding is {first.rule}.",
            leading=True,
            evidence=(f"On rank {rank_numbers(first.ranks[:1])}: {first.claim}{step}",),
            advice=_advice(first.ranks[0] if first.ranks else None),
        )
    if not fleet.measured:
        return Answer(claim="No rank recorded steps with events.", leading=True)
    return Answer(claim="No straggler, and no finding that most ranks share.", leading=True, evidence=(step.strip(),))


def _straggler_answer(group: GroupArrivals) -> Answer:
    cause, host = group.cause, f" on {group.late_host}" if group.late_host else ""
    others = len(group.ranks) - 1
    evidence = [
        f"It arrives last in {percent(group.last_frac)} of the {count(group.steps, 'step')} compared "
        f"({count(group.collectives, 'collective')}, matched across {others + 1:,} ranks)."
    ]
    if cause is not None:
        label = "compute" if cause.part == "compute" else part_label(cause.part)
        late, usual = duration(cause.late_ns), duration(cause.others_ns) if cause.others_ns else "none"
        evidence.append(f"On this rank, {label} takes {late} per step, on the median of the others {usual}.")
        if cause.clock_mhz is not None and cause.others_clock_mhz is not None:
            clocks = quantity(cause.clock_mhz, "MHz"), quantity(cause.others_clock_mhz, "MHz")
            evidence.append(f"Its GPU clock is {clocks[0]}, that of the others {clocks[1]} (medians).")
    saving = f"up to {duration(group.gain_ns)} per step, if it arrived together with the second-last rank"
    return Answer(
        claim=f"Rank {group.late_rank}{host} is a straggler{cause.clause if cause else ''}: "
        f"{count(others, 'other GPU', 'other GPUs')} {'waits' if others == 1 else 'wait'} "
        f"{duration(group.others_wait_ns)} of each {duration(group.step_ns)} step for it.",
        leading=True,
        evidence=tuple(evidence),
        advice=_advice(group.late_rank),
        facts=(("Possible saving", saving),),
    )


def _rotating_answer(group: GroupArrivals) -> Answer:
    late = ", ".join(f"rank {rank}: {count(steps, 'step')}" for rank, steps in group.late_ranks[:5])
    by_host = (
        f" A rank of {group.late_host} is last in {percent(group.late_host_frac)} of the steps."
        if group.late_host and len(set(group.late_ranks)) > 1
        else ""
    )
    return Answer(
        claim=f"Ranks wait {duration(group.others_wait_ns)} of each {duration(group.step_ns)} step for the last one, "
        "which is another rank from step to step.",
        leading=True,
        evidence=(f"Last most often, of {count(group.steps, 'step')}: {late}.{by_host}",),
        advice="Give every rank the same amount of work in each step: sort samples by length, or count tokens instead "
        "of samples.",
    )


def _advice(rank: int | None) -> str:
    return "" if rank is None else f"Load that rank and see its report: gpulab.report(fleet.rank({rank}))."


def _provenance(fleet: Fleet) -> list[str]:
    """Return lines on what was read, and what is missing."""
    of = f" of {fleet.world_size:,}" if fleet.world_size else ""
    texts = [f"{count(len(fleet.ranks), 'rank')}{of} read"]
    if fleet.unread:
        texts.append(f"{count(len(fleet.unread), 'file')} could not be read")
    if fleet.missing_ranks:
        texts.append(f"no file of {count(len(fleet.missing_ranks), 'rank')} ({rank_numbers(fleet.missing_ranks)})")
    more = len(fleet.job.ranks) - len(fleet.ranks)
    if more:
        texts.append(f"{count(more, 'further recording')} of the same ranks not used")
    damaged = [summary.rank for summary in fleet.ranks if summary.lost_events]
    lines = ["; ".join(texts)]
    if damaged:
        lines.append(f"read in part, because the traces are damaged: {count(len(damaged), 'rank')}")
    gpus = sorted({summary.gpu for summary in fleet.ranks if summary.gpu})
    if gpus:
        lines.append(f"recorded on {', '.join(gpus)}, with the profiler on")
    return lines
