"""The GPUs CUDA shows to this process, in CUDA's order, derived from the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Board:
    """One GPU as listed by the driver, in PCI order; `instances` are the UUIDs of its MIG instances."""

    uuid: str | None
    mig: bool = False
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeviceId:
    """A device that CUDA can use: a board, or one MIG instance of it."""

    board: int
    instance: int | None = None


def enumerate_devices(boards: Sequence[Board], setting: str | None) -> tuple[DeviceId, ...]:
    """Devices that CUDA enumerates under this CUDA_VISIBLE_DEVICES (None: not set); the first is CUDA's device 0.

    The rules are CUDA's: entries are numbers or prefixes of UUIDs; the first invalid entry hides itself and all that
    follow; a device listed twice hides all; a process sees either one MIG instance or whole GPUs, never both.
    """
    if setting is None:
        devices = [device for index in range(len(boards)) if (device := _board_device(boards, index)) is not None]
    else:
        devices = _devices_in_list(boards, setting)
    instances = [device for device in devices if device.instance is not None]
    return tuple(instances[:1] or devices)


def _devices_in_list(boards: Sequence[Board], setting: str) -> list[DeviceId]:
    devices: list[DeviceId] = []
    for entry in setting.split(","):
        device = _device_by_name(boards, entry.strip())
        if device is None:
            break
        if device in devices:
            return []
        devices.append(device)
    return devices


def _device_by_name(boards: Sequence[Board], entry: str) -> DeviceId | None:
    if entry.isdecimal():
        return _board_device(boards, int(entry)) if int(entry) < len(boards) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matches = [
        DeviceId(board=index)
        for index, board in enumerate(boards)
        if not board.mig and board.uuid is not None and board.uuid.startswith(entry)
    ]
    matches += [
        DeviceId(board=index, instance=number)
        for index, board in enumerate(boards)
        for number, uuid in enumerate(board.instances)
        if uuid.startswith(entry)
    ]
    return matches[0] if len(matches) == 1 else None


def _board_device(boards: Sequence[Board], index: int) -> DeviceId | None:
    """A board by number; with MIG, its first instance; None if it has no usable one."""
    board = boards[index]
    if not board.mig:
        return DeviceId(board=index)
    return DeviceId(board=index, instance=0) if board.instances else None
