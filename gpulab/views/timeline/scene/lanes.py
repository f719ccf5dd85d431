"""The rows of a rank that is drawn as a lane: its ledger, and its collectives below it."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.intervals import Ints
from gpulab.views.timeline.scene.elements import Group
from gpulab.views.timeline.scene.rows import RowBuilder, ledger_group


def lane_groups(builder: RowBuilder, name: str, collective_events: Ints) -> Iterator[Group]:
    """Yield the groups of a lane with this name; nothing for a run without a ledger."""
    if builder.ledger is None:
        return
    yield ledger_group(builder, name)
    if len(collective_events):
        yield Group(
            id="collectives",
            name="collectives",
            description=f"Collectives of {name}, from its arrival until they end on all ranks.",
            rows=(builder.row_of_events(collective_events),),
            is_events=True,
        )
