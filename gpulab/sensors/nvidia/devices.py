"""NVIDIA GPUs of this process, named by the driver, in CUDA's order; gaps for the GPUs it cannot use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpulab.hardware.architectures import ARCHITECTURES
from gpulab.run import Gap, Gpu
from gpulab.sensors.nvidia.nvml_errors import NOT_FOUND, NOT_SUPPORTED, cause_of, join_names
from gpulab.sensors.nvidia.visible_devices import Board, DeviceId, enumerate_devices

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadableGpu:
    """A readable GPU or MIG instance; `board`: handle of the whole GPU, equal to `handle` without MIG."""

    gpu: Gpu
    handle: Any
    board: Any
    mig: bool = False  # this is a MIG instance; `gpu.mig` says whether the board is partitioned


@dataclass(frozen=True, kw_only=True, eq=False)
class _Card:
    """A GPU as the driver lists it, with handles."""

    board: Board
    name: str
    handle: Any
    instances: tuple[Any, ...]
    mig: bool | None  # None: unknown


def find_devices(nvml: Any, environ: Mapping[str, str]) -> tuple[tuple[ReadableGpu, ...], tuple[Gap, ...]]:
    """The devices CUDA shows to this process, and a gap for each reason why a GPU is missing."""
    cards, gaps = _cards(nvml)
    setting = environ.get("CUDA_VISIBLE_DEVICES")
    device_ids = enumerate_devices([card.board for card in cards], setting)
    visible_devices = tuple(
        _device(nvml, index, device_id, cards[device_id.board]) for index, device_id in enumerate(device_ids)
    )
    gaps += _hidden(cards, device_ids, setting)
    if len({card.name for card in cards}) > 1 and _has_indices(setting):
        gaps += _order(environ.get("CUDA_DEVICE_ORDER"))
    return visible_devices, tuple(gaps)


def find_all_devices(nvml: Any) -> tuple[tuple[ReadableGpu, ...], tuple[Gap, ...]]:
    """Every GPU and every MIG instance of the machine, in the driver's order, whatever CUDA shows to this process."""
    cards, gaps = _cards(nvml)
    device_ids = [
        DeviceId(board=board, instance=instance)
        for board, card in enumerate(cards)
        for instance in (None, *range(len(card.instances)))
    ]
    devices = (_device(nvml, index, device_id, cards[device_id.board]) for index, device_id in enumerate(device_ids))
    return tuple(devices), tuple(gaps)


def read_text(read: Callable[..., str], *handle: Any) -> str:
    """Read a text from the driver; bytes that are not UTF-8, which some drivers send, are replaced by a mark."""
    try:
        return read(*handle)
    except UnicodeDecodeError:
        # nvidia-ml-py decodes in a decorator; the wrapped function returns the bytes.
        raw: bytes = getattr(read, "__wrapped__", lambda *_: b"unreadable name")(*handle)
        return raw.decode(errors="replace")


def _cards(nvml: Any) -> tuple[list[_Card], list[Gap]]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        cause = cause_of(error.value, str(error))
        return [], [Gap(what="GPU sensors", why=cause.why, fix=cause.fix)]
    if not count:
        fix = "check: nvidia-smi; in a container: docker run --gpus all"
        return [], [Gap(what="GPU sensors", why="the NVIDIA driver shows no GPU to this process", fix=fix)]
    cards, gaps = [], []
    for index in range(count):
        try:
            cards.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            cause = cause_of(error.value, str(error))
            gaps.append(Gap(what=f"GPU {index} of the driver's list", why=cause.why, fix=cause.fix))
    return cards, gaps


def _card(nvml: Any, handle: Any) -> _Card:
    mig = _mig(nvml, handle)
    instances = _instances(nvml, handle) if mig else ()
    board = Board(
        uuid=_or_none(nvml, lambda: read_text(nvml.nvmlDeviceGetUUID, handle)),
        mig=bool(mig),
        instances=tuple(read_text(nvml.nvmlDeviceGetUUID, instance) for instance in instances),
    )
    return _Card(board=board, name=_name(nvml, handle), handle=handle, instances=instances, mig=mig)


def _mig(nvml: Any, handle: Any) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError as error:
        return False if error.value == NOT_SUPPORTED else None


def _instances(nvml: Any, handle: Any) -> tuple[Any, ...]:
    """Handles of a board's MIG instances; their numbers in the driver's list may have holes."""
    instances = []
    for index in range(_or_none(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError as error:
            if error.value != NOT_FOUND:
                break
    return tuple(instances)


def _device(nvml: Any, index: int, device_id: DeviceId, card: _Card) -> ReadableGpu:
    is_board = device_id.instance is None
    handle = card.handle if device_id.instance is None else card.instances[device_id.instance]
    numbers = _or_none(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(card.handle))
    capability = ".".join(map(str, numbers)) if numbers else None
    limit_mw = _or_none(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(card.handle)) if is_board else None
    default_mw = (
        _or_none(nvml, lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(card.handle)) if is_board else None
    )
    clock_mhz = _or_none(nvml, lambda: float(nvml.nvmlDeviceGetMaxClockInfo(card.handle, nvml.NVML_CLOCK_SM)))
    gpu = Gpu(
        index=index,
        name=card.name if is_board else _name(nvml, handle),
        uuid=_or_none(nvml, lambda: read_text(nvml.nvmlDeviceGetUUID, handle)),
        memory_bytes=_or_none(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        multiprocessors=_multiprocessors(nvml, handle, capability, is_board=is_board),
        compute_capability=capability,
        power_limit_w=limit_mw / 1e3 if limit_mw else None,
        power_default_w=default_mw / 1e3 if default_mw else None,
        sm_clock_max_mhz=clock_mhz or None,
        link_generation_max=_or_none(nvml, lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(card.handle))) or None,
        link_width_max=_or_none(nvml, lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(card.handle))) or None,
        mig=card.mig,
    )
    return ReadableGpu(gpu=gpu, handle=handle, board=card.handle, mig=not is_board)


def _multiprocessors(nvml: Any, handle: Any, capability: str | None, *, is_board: bool) -> int | None:
    if not is_board:
        return _or_none(nvml, lambda: int(nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount))
    cores = _or_none(nvml, lambda: int(nvml.nvmlDeviceGetNumGpuCores(handle)))  # NVML has only this number
    architecture = ARCHITECTURES.get(capability or "")
    return cores // architecture.cores_per_multiprocessor if cores and architecture else None


def _name(nvml: Any, handle: Any) -> str:
    return _or_none(nvml, lambda: read_text(nvml.nvmlDeviceGetName, handle)) or "NVIDIA GPU"


def _or_none(nvml: Any, read: Callable[[], T]) -> T | None:
    """Read a value; None if the driver has none."""
    try:
        return read()
    except nvml.NVMLError:
        return None


def _hidden(cards: Sequence[_Card], device_ids: Sequence[DeviceId], setting: str | None) -> list[Gap]:
    gaps = []
    empty = [card.name for card in cards if card.board.mig and not card.instances]
    if empty:
        fix = "create a MIG instance (sudo nvidia-smi mig -cgi ... -C), or disable MIG (sudo nvidia-smi -mig 0)"
        gaps.append(
            Gap(what=join_names(empty), why="MIG is enabled without any instance: CUDA cannot use the GPU", fix=fix)
        )
    units = [DeviceId(board=index) for index, card in enumerate(cards) if not card.board.mig]
    units += [
        DeviceId(board=index, instance=number)
        for index, card in enumerate(cards)
        for number in range(len(card.instances))
    ]
    hidden = [_display_name(cards[device_id.board], device_id) for device_id in units if device_id not in device_ids]
    if hidden:
        why = f"CUDA_VISIBLE_DEVICES={setting} hides {'it' if len(hidden) == 1 else 'them'} from this process"
        if setting is None:
            why = "CUDA shows a process one MIG instance and then no other GPU"
        subject = f"{len(hidden)} of {len(units)} GPUs: {join_names(hidden)}"
        gaps.append(Gap(what=subject, why=why, fix="set CUDA_VISIBLE_DEVICES before the kernel starts"))
    return gaps


def _display_name(card: _Card, device_id: DeviceId) -> str:
    uuid = card.board.uuid if device_id.instance is None else card.board.instances[device_id.instance]
    return f"{card.name} ({uuid[:12]})" if uuid else card.name


def _has_indices(setting: str | None) -> bool:
    """Whether CUDA's numbers select or order the devices; UUIDs are unambiguous."""
    return setting is None or any(entry.strip().isdecimal() for entry in setting.split(","))


def _order(order: str | None) -> list[Gap]:
    if order == "PCI_BUS_ID":
        return []
    return [
        Gap(
            what="which GPU is device 0 in CUDA",
            why="the GPUs differ; CUDA numbers the fastest GPU first, the driver sorts by PCI slot",
            fix="set CUDA_DEVICE_ORDER=PCI_BUS_ID before the kernel starts",
        )
    ]
