"""Which GPUs CUDA shows to this process, in CUDA's order, as far as the environment tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Board:
    """One GPU as the driver lists it, in PCI order; `instances` are the UUIDs of its MIG instances."""

    uuid: str | None
    mig: bool = False
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device that CUDA may use: a board, or one MIG instance of it."""

    board: int
    instance: int | None = None


def visible(boards: Sequence[Board], setting: str | None) -> tuple[Place, ...]:
    """The devices CUDA enumerates under this CUDA_VISIBLE_DEVICES (None: not set), the first being CUDA's device 0.

    The rules are CUDA's: entries are numbers or beginnings of UUIDs, the first invalid entry hides itself and all
    that follow, a device named twice hides all, and a process sees one MIG instance or whole GPUs, never both.
    """
    if setting is None:
        places = [place for index in range(len(boards)) if (place := _whole(boards, index)) is not None]
    else:
        places = _listed(boards, setting)
    instances = [place for place in places if place.instance is not None]
    return tuple(instances[:1] or places)


def _listed(boards: Sequence[Board], setting: str) -> list[Place]:
    places: list[Place] = []
    for entry in setting.split(","):
        place = _named(boards, entry.strip())
        if place is None:
            break
        if place in places:
            return []
        places.append(place)
    return places


def _named(boards: Sequence[Board], entry: str) -> Place | None:
    if entry.isdecimal():
        return _whole(boards, int(entry)) if int(entry) < len(boards) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    fitting = [
        Place(board=index)
        for index, board in enumerate(boards)
        if not board.mig and board.uuid is not None and board.uuid.startswith(entry)
    ]
    fitting += [
        Place(board=index, instance=number)
        for index, board in enumerate(boards)
        for number, uuid in enumerate(board.instances)
        if uuid.startswith(entry)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _whole(boards: Sequence[Board], index: int) -> Place | None:
    """A board by number; where it is cut into instances, its first one; None where it has none to use."""
    board = boards[index]
    if not board.mig:
        return Place(board=index)
    return Place(board=index, instance=0) if board.instances else None
