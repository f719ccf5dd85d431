"""Who waits for whom, as a table: a row for each waiting rank, a column for each rank that arrives last."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.ranks.waits import GroupWaits, JobWaits
from gpulab.rules.ranks.stragglers import is_straggler
from gpulab.views.report.job.rank_choice import choice_sentence, most_telling_ranks, rank_label
from gpulab.views.sheet.sheet import Line, Row, TableBlock
from gpulab.wording import Scale, count, duration, percent, scale

_MAX_COLUMNS = 10  # ranks that are columns: more do not fit beside each other
_MAX_GROUPS = 8
_NO_WAIT = "·"


def wait_matrix(waits: JobWaits) -> TableBlock:
    """Return the exposed wait of each rank for each other rank, per step: mean over steps.

    Ranks that nobody waits for have no column, and of a large job only some ranks are listed.
    """
    rows = most_telling_ranks(waits)
    awaited = np.argsort(-waits.caused_ns, kind="stable")[:_MAX_COLUMNS]
    columns = sorted(awaited[waits.caused_ns[awaited] > 0].tolist())
    unit = scale(max(float(waits.waits_ns.max()), float(waits.matrix_ns.max())))
    strongest = max(1.0, float(waits.matrix_ns.max()))
    body = [
        Row(
            (
                _name(waits, rank),
                *(_number(waits.matrix_ns[rank, column], unit, rank == column) for column in columns),
                unit.number(float(waits.waits_ns[rank])),
            ),
            shades=tuple(float(waits.matrix_ns[rank, column]) / strongest for column in columns),
        )
        for rank in rows
    ]
    total = [float(waits.caused_ns[column]) for column in columns]
    if len(rows) == len(waits.matched.ranks):
        body.append(Row(("all ranks", *map(unit.number, total), unit.number(sum(total))), kind="total"))
    header = ("", *(f"for {_name(waits, column)}" for column in columns), "in all")
    return TableBlock(header=header, rows=tuple(body), caption=_caption(waits, unit, rows, columns))


def _caption(waits: JobWaits, unit: Scale, rows: tuple[int, ...], columns: list[int]) -> str:
    omitted = int((waits.caused_ns > 0).sum()) - len(columns)
    more = f" {count(omitted, 'more rank')} that others wait for are only in the last column." if omitted else ""
    return (
        f"How long each rank waits for the rank that arrives last, in {unit.unit} per step: mean over "
        f"{count(len(waits.step_numbers), 'step')} and {count(len(waits.matched), 'matched collective')}. "
        f"Waits that a kernel hides are not counted.{choice_sentence(rows, len(waits.matched.ranks))}{more}"
    )


def group_lines(waits: JobWaits) -> tuple[Line, ...]:
    """Return a sentence for each process group with waits: whether one rank is last persistently, or ranks in turn."""
    step_ns = int(np.median([rank.steps.traced_ns or 0 for rank in waits.matched.ranks]))
    waiting = [group for group in waits.groups if group.matrix_ns.any()]
    lines = [Line(_pattern(waits, group, step_ns)) for group in waiting[:_MAX_GROUPS]]
    if len(waiting) > _MAX_GROUPS:
        lines.append(Line(f"{count(len(waiting) - _MAX_GROUPS, 'more process group')} with shorter waits.", soft=True))
    return tuple(lines)


def _pattern(waits: JobWaits, group: GroupWaits, step_ns: int) -> str:
    others = np.delete(group.waits_ns, group.members.index(group.latest))
    latest = _name(waits, group.latest)
    several = len(waits.groups) > 1
    subject = f"In group {group.group or 'without a name'} of {len(group.members)} ranks" if several else ""
    share = f"{percent(group.last_frac)} of {count(group.steps, 'step')}"
    if is_straggler(float(np.mean(others)), group, step_ns):
        text = f"rank {latest} is last in {share}: a persistent straggler"
    elif (distinct := int((group.last_steps > 0).sum())) == 1:
        text = f"rank {latest} is last in {share}"
    else:
        text = f"{count(distinct, 'rank')} take turns in being last; rank {latest} is last most often, in {share}"
    sums = f"the ranks wait {duration(float(group.waits_ns.mean()))} per step on average"
    return f"{subject}, {text}; {sums}." if subject else f"{text[0].upper()}{text[1:]}; {sums}."


def _name(waits: JobWaits, index: int) -> str:
    return rank_label(waits.matched.ranks[index].run, index)


def _number(ns: float, unit: Scale, is_self: bool) -> str:
    return _NO_WAIT if is_self or ns <= 0 else unit.number(ns)
