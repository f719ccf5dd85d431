"""The tables of the report of a job: ledger over ranks, stragglers, findings, hosts, unread files."""

from __future__ import annotations

from gpulab.analysis.steps.ledger import CPU_PARTS, GPU_PARTS
from gpulab.fleet import Fleet
from gpulab.fleet.fleet_result import FindingCount, Spread, rank_numbers
from gpulab.fleet.group_arrivals import GroupArrivals
from gpulab.views.sheet.sheet import Block, Line, Row, Section, TableBlock
from gpulab.wording import Scale, clean, count, percent, quantity, ratio_range, scale

_MAX_GROUPS, _MAX_HOSTS, _MAX_LATE, _MAX_FILES = 8, 8, 5, 50
_NEGLIGIBLE_CLOCK_NS = 1_000_000  # smaller differences between clocks are not mentioned


def part_label(key: str) -> str:
    """Return the label of a part of the ledger."""
    return next((part.label for part in (*GPU_PARTS, *CPU_PARTS) if part.key == key), key)


def ledger_section(fleet: Fleet) -> Section | None:
    """Return the ledger of the typical step over the ranks; None without steps."""
    total = fleet.step_times
    if total is None:
        return None
    unit = scale(float(total.most_ns), figures=4)
    rows = [Row(_spread_cells(part_label(key), spread, unit), key=key) for key, spread in fleet.ledger.items()]
    rows.append(Row(_spread_cells("step", total, unit), kind="total"))
    table = TableBlock(
        header=("", f"median, {unit.unit}", "quartiles", "least-most", "most on rank"),
        rows=tuple(rows),
        caption=f"The typical step over {count(len(fleet.measured), 'rank')}. Medians do not sum to the step exactly.",
    )
    return Section("Where the step time goes", (table,))


def _spread_cells(label: str, spread: Spread, unit: Scale) -> tuple[str, ...]:
    is_even = unit.number(spread.least_ns) == unit.number(spread.most_ns)
    return (
        label,
        unit.number(spread.median_ns),
        unit.range(spread.lower_ns, spread.upper_ns),
        unit.range(spread.least_ns, spread.most_ns),
        "" if is_even or spread.most_rank is None else str(spread.most_rank),
    )


def straggler_section(fleet: Fleet) -> Section | None:
    """Return the ranks that arrive last, by process group; None if no collectives could be matched."""
    groups = fleet.arrivals
    if not groups:
        return None
    unit = scale(float(max(group.step_ns for group in groups)))
    rows = tuple(Row(_group_cells(group, unit)) for group in groups[:_MAX_GROUPS])
    table = TableBlock(
        header=("group", "last most often (steps)", "ranks", f"wait, {unit.unit}", "of a step", f"spread, {unit.unit}"),
        rows=rows,
        text_columns=2,
        caption="Wait: of the other ranks, exposed, per step; mean over ranks, median over steps. Spread: from the "
        "first arrival to the last.",
    )
    blocks: list[Block] = [table]
    if len(groups) > _MAX_GROUPS:
        blocks.append(Line(f"{count(len(groups) - _MAX_GROUPS, 'further group')} with shorter waits.", soft=True))
    unmatched = sum(group.unmatched for group in groups)
    if unmatched:
        blocks.append(Line(f"Recorded other steps, so not compared: {count(unmatched, 'rank')}.", soft=True))
    offsets = [offset for group in groups for offset in group.clock_offset_ns if offset is not None]
    if offsets and max(offsets) - min(offsets) >= _NEGLIGIBLE_CLOCK_NS:
        clocks = scale(float(max(offsets) - min(offsets)))(max(offsets) - min(offsets))
        blocks.append(
            Line(f"The clocks of the hosts differ by up to {clocks}; waits do not depend on them.", soft=True)
        )
    return Section("Who arrives last at collectives", tuple(blocks))


def _group_cells(group: GroupArrivals, unit: Scale) -> tuple[str, ...]:
    late = ", ".join(f"rank {rank} ({steps} of {group.steps})" for rank, steps in group.late_ranks[:_MAX_LATE])
    more = ", ..." if len(group.late_ranks) > _MAX_LATE else ""
    return (
        group.group or "all ranks",
        late + more,
        f"{len(group.ranks):,}",
        unit.number(group.others_wait_ns),
        percent(group.others_wait_ns / max(1, group.step_ns)),
        unit.number(group.spread_ns),
    )


def finding_section(fleet: Fleet) -> Section:
    """Return the first findings, counted over ranks."""
    rows = tuple(
        Row((_claim(item), f"{item.count:,} of {len(fleet.ranks):,}", _gain(item), rank_numbers(item.ranks)))
        for item in fleet.findings
    )
    header = ("first finding, as on the lowest rank", "ranks", "predicted speed-up", "which")
    waiting = "Each rank was diagnosed separately: its exposed communication includes the wait for the straggler."
    note = (Line(waiting, soft=True),) if fleet.straggler is not None else ()
    return Section("First findings over ranks", (TableBlock(header=header, rows=rows), *note))


def _claim(item: FindingCount) -> str:
    return f"{item.rule}: {item.claim}" if item.rule else "none"


def _gain(item: FindingCount) -> str:
    if item.worst_speedup is None or item.best_speedup is None:
        return ""
    return ratio_range(item.worst_speedup, item.best_speedup)


def host_section(fleet: Fleet) -> Section | None:
    """Return the hosts whose ranks arrive last, or wait least; None unless several hosts are known."""
    hosts = fleet.hosts
    if len(hosts) < 2:
        return None
    unit = scale(float(max(host.step_ns for host in hosts)))
    has_clocks = any(host.clock_mhz is not None for host in hosts)
    rows = tuple(
        Row(
            (
                host.host,
                rank_numbers(host.ranks),
                f"{host.last_steps:,}",
                unit.number(host.step_ns),
                unit.number(host.communication_ns),
                *((quantity(host.clock_mhz, "MHz"),) if has_clocks else ()),
            )
        )
        for host in hosts[:_MAX_HOSTS]
    )
    header = ("host", "ranks", "steps last", f"step, {unit.unit}", f"least exposed communication, {unit.unit}")
    table = TableBlock(
        header=(*header, *(("GPU clock",) if has_clocks else ())),
        rows=rows,
        text_columns=2,
        caption="A rank that the others wait for does not wait itself, so it has the least exposed communication.",
    )
    more = len(hosts) - _MAX_HOSTS
    rest = (Line(f"{count(more, 'further host')}.", soft=True),) if more > 0 else ()
    return Section(count(len(hosts), "host"), (table, *rest))


def unread_section(fleet: Fleet) -> Section | None:
    """Return the files that could not be read, with reasons; None if all could."""
    if not fleet.unread:
        return None
    rows = tuple(
        Row(("?" if file.rank is None else str(file.rank), clean(file.path, 120), clean(file.reason)))
        for file in fleet.unread[:_MAX_FILES]
    )
    more = len(fleet.unread) - _MAX_FILES
    rest = (Line(f"{count(more, 'further file')}.", soft=True),) if more > 0 else ()
    table = TableBlock(header=("rank", "file", "reason"), rows=rows, text_columns=3)
    return Section("Files that could not be read", (table, *rest))
