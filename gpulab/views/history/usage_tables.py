"""GPU-hours, energy and cost by GPU, user and program, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.hardware.prices import Prices
from gpulab.views.sheet.sheet import Block, Line, Row, Section, TableBlock
from gpulab.watch.usage import Usage, total_usage
from gpulab.wording import money, number, percent

_MAX_ROWS = 12


def gpu_hours_section(gpus: Sequence[Usage], users: Sequence[Usage], jobs: Sequence[Usage], prices: Prices) -> Section:
    """Return the tables of GPU-hours held and used, with their cost."""
    priced = any(usage.cost is not None for usage in gpus)
    note = (
        "Held: a process had memory on the GPU. Used: utilisation times held hours. Idle: held, utilisation below 5 %. "
        "Hours of processes that share a GPU count for each of them."
    )
    source = (f"Cost: {prices.source}.",) if priced else ("Cost: no price is known for these GPUs; give one.",)
    blocks: tuple[Block, ...] = (
        Line(" ".join((note, *source)), soft=True),
        _table("GPU", gpus, prices, priced, energy=True),
        _table("user", users, prices, priced, summed=False),
        _table("program", jobs, prices, priced, summed=False),
    )
    return Section("GPU-hours and cost", blocks)


def _table(
    name: str, usages: Sequence[Usage], prices: Prices, priced: bool, *, energy: bool = False, summed: bool = True
) -> TableBlock:
    energy = energy and any(usage.energy_kwh is not None for usage in usages)
    header = (name, "held, h", "used, h", "used", "idle", *(("energy, kWh", "idle, kWh") if energy else ()))
    header += ("cost", "idle cost") if priced else ()
    rows = [Row(_cells(usage, prices, priced, energy)) for usage in usages[:_MAX_ROWS]]
    if len(usages) > _MAX_ROWS:
        rest = total_usage(usages[_MAX_ROWS:], f"{len(usages) - _MAX_ROWS} others")
        rows.append(Row(_cells(rest, prices, priced, energy)))
    if len(usages) > 1 and summed:
        rows.append(Row(_cells(total_usage(usages, "all"), prices, priced, energy), kind="total"))
    return TableBlock(header=header, rows=tuple(rows))


def _cells(usage: Usage, prices: Prices, priced: bool, energy: bool) -> tuple[str, ...]:
    cells = [
        usage.label,
        number(usage.held_h),
        number(usage.used_h),
        percent(usage.used_frac),
        percent(usage.idle_frac),
    ]
    if energy:
        cells += [number(usage.energy_kwh), number(usage.idle_energy_kwh)]
    if priced:
        cells += [money(usage.cost, prices.currency), money(usage.idle_cost, prices.currency)]
    return tuple(cells)
