"""What an out-of-memory error tells: how much was wanted, how much there was, in which phase, on whose line.

PyTorch words it in a way for each kind of device, and host memory runs out in yet others; here are all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

from gpulab.capture.user_names import variables
from gpulab.run import Failure
from gpulab.sensors.host.frames import user_line, users_frames

_UNITS = {"bytes": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50, "eib": 2**60}
_UNITS |= {"kb": 2**10, "mb": 2**20, "gb": 2**30}  # MPS writes GB and means GiB
_SIZE = r"([\d.]+) ([KMGTPE]?i?B|bytes)\b"
_NEEDED = re.compile(rf"Tried to allocate {_SIZE}", re.I)
_DEVICE = re.compile(r"\bGPU (\d+)\b")
_PATTERNS = {
    "capacity": re.compile(rf"total capacity of {_SIZE}|max allowed: {_SIZE}"),
    "free": re.compile(rf"of which {_SIZE} is free"),
    "allowed": re.compile(rf"{_SIZE} allowed;"),
    "allocated": re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch|MPS allocated: {_SIZE}"),
    "unallocated": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "ours": re.compile(rf"this process has {_SIZE} memory in use"),
    "others": re.compile(rf"other allocations: {_SIZE}"),
}
_PROCESS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")
_HOST = (  # PyTorch on Linux and macOS, on Windows, numpy, shared memory of workers
    re.compile(r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate (\d+) bytes"),
    re.compile(rf"Unable to allocate {_SIZE} for an array"),
    re.compile(r"unable to mmap (\d+) bytes .*Cannot allocate memory"),
)
# Without figures, but plain: the driver, or a library, was refused.
_REFUSED = re.compile(r"(?:CUDA|HIP) error: out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED")
_INSIDE = ("__torch_dispatch__", "__torch_function__")  # what stands in for the allocator, not who asked


def failure_of(error: BaseException | None) -> Failure | None:
    """What ended the recorded code, if that was memory running out; also where it was raised on as another error."""
    found = (_told(each) for each in chain_of(error))
    return next((failure for failure in found if failure is not None), None)


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def steps_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines from the recorded code inward to the one that asked for memory."""
    return list(_links(error.__traceback__))


def outside(trace: TracebackType | None) -> list[FrameType]:
    """The frames of a traceback, without those of a mode or a tensor class that stands in for PyTorch's allocator."""
    return [frame for frame, _ in _links(trace)]


def _links(link: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while link is not None and link.tb_frame.f_code.co_name not in _INSIDE:
        yield link.tb_frame, link.tb_lineno
        link = link.tb_next


def _told(error: BaseException) -> Failure | None:
    message = _message(error)
    if _is_device_error(error) or _REFUSED.search(message):
        return _on_device(message, error)
    if isinstance(error, MemoryError) or any(pattern.search(message) for pattern in _HOST):
        return _on_host(message, error)
    return None


def _message(error: BaseException) -> str:
    """The first line of the error. What has a `__str__` of its own is the user's, and is not asked."""
    first = error.args[0] if error.args else ""
    line = first.strip().partition("\n")[0] if isinstance(first, str) else ""
    if not line and isinstance(error, MemoryError):
        # numpy keeps what it could not make, and words it only when it is shown.
        numpys = type(error).__module__.startswith("numpy.")
        size = getattr(error, "_total_size", None) if numpys else None
        return f"Unable to allocate {size} bytes for an array" if isinstance(size, int) else "MemoryError"
    return line


def _is_device_error(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    kind = getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)  # absent while torch is being imported
    return kind is not None and issubclass(type(error), kind)


def _on_device(message: str, error: BaseException) -> Failure:
    figures = {name: _size(pattern.search(message)) for name, pattern in _PATTERNS.items()}
    unallocated, allocated = figures["unallocated"], figures["allocated"]
    reserved = None if unallocated is None or allocated is None else allocated + unallocated
    device = _DEVICE.search(message)
    return Failure(
        message=message,
        device=int(device[1]) if device else 0,
        simulated=_no_device() or "(simulated)" in message,
        needed_bytes=_size(_NEEDED.search(message)),
        free_bytes=figures["free"],
        capacity_bytes=figures["allowed"] or figures["capacity"],
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        others_bytes=figures["others"] if figures["others"] is not None else _others(message, figures, reserved),
        phase=_phase(error),
        where=_where(error),
    )


def _on_host(message: str, error: BaseException) -> Failure:
    needed = None
    for pattern in _HOST:
        if match := pattern.search(message):
            needed = int(match[1]) if len(match.groups()) == 1 else _size(match)
    return Failure(message=message, needed_bytes=needed, phase=_phase(error), where=_where(error))


def _no_device() -> bool:
    """Whether no GPU is here that could have run out: the error comes from a simulated one."""
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available():
        return False
    accelerator = getattr(torch, "accelerator", None)  # since 2.6, for those of other makers
    return accelerator is None or not accelerator.is_available()


def _others(message: str, figures: dict[str, int | None], reserved: int | None) -> int | None:
    """What other processes hold. None where the message does not say."""
    told = [size for match in _PROCESS.finditer(message) if (size := _size(match)) is not None]
    capacity, free, ours = figures["capacity"], figures["free"], figures["ours"]
    if ours is not None:
        rest = 0 if capacity is None or free is None else max(0, capacity - free - ours)
        return sum(told) if told else rest
    if not told or reserved is None:
        return sum(told) if told else None
    # In a container PyTorch does not know its own number: of those listed, the first that could hold what it holds is
    # this process. Half a per cent, as figures are rounded.
    mine = min((size for size in told if size >= 0.995 * reserved), default=0)
    return sum(told) - mine


def _size(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return round(float(number) * _UNITS[unit.lower()])


def _phase(error: BaseException) -> str | None:
    """What the training loop was doing, told by the frames of PyTorch that the error passed."""
    entered: str | None = None
    for frame, _ in steps_of(error):
        file, name = frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_name
        if "/torch/optim/" in file:
            return "optimizer"
        if name in ("backward", "_engine_run_backward") and ("/torch/autograd/" in file or "/torch/_tensor" in file):
            return "backward"
        if file.endswith("/torch/utils/_contextlib.py") and name == "decorate_context":
            entered = "evaluation"  # inside a function under @torch.no_grad() or @torch.inference_mode()
        if entered is None and file.endswith("/torch/nn/modules/module.py") and name == "_call_impl":
            entered = "forward" if _trains(frame) else "evaluation"
        if entered is None and file.endswith("/torch/nn/functional.py"):
            entered = "forward"  # a loss, most likely
    return entered


def _trains(frame: FrameType) -> bool:
    """Whether the module whose call this is was in training mode; yes where it cannot be seen."""
    module = variables(frame).get("self")
    held = object.__getattribute__(module, "__dict__") if hasattr(type(module), "__dict__") else {}
    return bool(held.get("training", True)) if isinstance(held, dict) else True


def _where(error: BaseException) -> str | None:
    """The innermost line of the user's on the way to the failure."""
    steps = steps_of(error)
    return next((line for frame, at in reversed(steps) if (line := _line(frame, at)) is not None), None)


def _line(frame: FrameType, at: int) -> str | None:
    if next(users_frames(frame), None) is not frame:
        return None
    # A frame that has ended says where it ended, which may be the `with` that it left: the traceback says where it was.
    told = user_line(frame)
    return None if told is None else re.sub(rf"\b{frame.f_lineno}(?=\)?$)", str(at), told)


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """Every frame the error passed, from the outside in: what was in use when memory ran out."""
    return (frame for each in chain_of(error) for frame, _ in steps_of(each))
