"""Parse out-of-memory errors: requested size, available memory, phase of training, and the user's line.

PyTorch words these errors differently for each kind of device, and host memory runs out in further ways; all are here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

from gpulab.capture.hooks.user_variables import frame_variables
from gpulab.capture.protection.cuda_check import is_cuda_available, nvml_first
from gpulab.run import Failure
from gpulab.sensors.host.frames import is_user_frame, user_line

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
    "process": re.compile(rf"this process has {_SIZE} memory in use"),
    "others": re.compile(rf"other allocations: {_SIZE}"),
}
_PROCESS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")
_HOST = (  # PyTorch on Linux and macOS, PyTorch on Windows, numpy, shared memory of DataLoader workers
    re.compile(r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate (\d+) bytes"),
    re.compile(rf"Unable to allocate {_SIZE} for an array"),
    re.compile(r"unable to mmap (\d+) bytes .*Cannot allocate memory"),
)
# Errors without sizes: an allocation by the driver or a library failed.
_WITHOUT_SIZES = re.compile(r"(?:CUDA|HIP) error: out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED")
_ALLOCATOR_FRAMES = ("__torch_dispatch__", "__torch_function__")  # they replace the allocator; their caller allocates


def parse_failure(error: BaseException | None) -> Failure | None:
    """The out-of-memory error that ended the recorded code, also if it was re-raised as another error; else None."""
    failures = (_parse_error(each) for each in exception_chain(error))
    return next(iter([failure for failure in failures if failure is not None]), None)


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors it was raised from."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__


def frames_and_lines(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines from the recorded code inward to the one that allocated memory."""
    return list(_links(error.__traceback__))


def frames_without_allocator(trace: TracebackType | None) -> list[FrameType]:
    """Frames of a traceback, without those of a mode or a tensor class that replaces PyTorch's allocator."""
    return [frame for frame, _ in _links(trace)]


def _links(link: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while link is not None and link.tb_frame.f_code.co_name not in _ALLOCATOR_FRAMES:
        yield link.tb_frame, link.tb_lineno
        link = link.tb_next


def _parse_error(error: BaseException) -> Failure | None:
    message = _message(error)
    if _is_device_error(error) or _WITHOUT_SIZES.search(message):
        return _on_device(message, error)
    if isinstance(error, MemoryError) or any([pattern.search(message) for pattern in _HOST]):
        return _on_host(message, error)
    return None


def _message(error: BaseException) -> str:
    """First line of the error. An overridden `__str__` is the user's code and is not called."""
    first = error.args[0] if error.args else ""
    line = first.strip().partition("\n")[0] if isinstance(first, str) else ""
    if not line and isinstance(error, MemoryError):
        # numpy keeps the size, and builds the message only when it is displayed.
        from_numpy = type(error).__module__.startswith("numpy.")
        size = getattr(error, "_total_size", None) if from_numpy else None
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
        simulated=_is_simulated() or "(simulated)" in message,
        needed_bytes=_size(_NEEDED.search(message)),
        free_bytes=_usable_bytes(figures["free"], figures["allowed"], reserved),
        capacity_bytes=figures["allowed"] or figures["capacity"],
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        others_bytes=figures["others"] if figures["others"] is not None else _others(message, figures, reserved),
        phase=_phase(error),
        where=_user_location(error),
    )


def _usable_bytes(free: int | None, allowed: int | None, reserved: int | None) -> int | None:
    """The free memory that this process may use: torch.cuda.set_per_process_memory_fraction() limits it."""
    if free is None or allowed is None or reserved is None:
        return free
    return min(free, max(0, allowed - reserved))


def _on_host(message: str, error: BaseException) -> Failure:
    needed = None
    for pattern in _HOST:
        if match := pattern.search(message):
            needed = int(match[1]) if len(match.groups()) == 1 else _size(match)
    return Failure(message=message, needed_bytes=needed, phase=_phase(error), where=_user_location(error))


def _is_simulated() -> bool:
    """Whether the error comes from a simulated GPU, because this machine has none that could run out."""
    torch = sys.modules.get("torch")
    if torch is None or is_cuda_available():
        return False
    accelerator = getattr(torch, "accelerator", None)  # since 2.6, for GPUs of other vendors
    with nvml_first():
        return accelerator is None or not accelerator.is_available()


def _others(message: str, figures: dict[str, int | None], reserved: int | None) -> int | None:
    """Memory held by other processes; None if the message does not say."""
    sizes = [size for match in _PROCESS.finditer(message) if (size := _size(match)) is not None]
    capacity, free, process = figures["capacity"], figures["free"], figures["process"]
    if process is not None:
        rest = 0 if capacity is None or free is None else max(0, capacity - free - process)
        return sum(sizes) if sizes else rest
    if not sizes or reserved is None:
        return sum(sizes) if sizes else None
    # In a container, PyTorch does not know its own process id. This process is the smallest of those listed that
    # is at least as large as the reserved memory, with 0.5 % tolerance because the sizes are rounded.
    own_size = min((size for size in sizes if size >= 0.995 * reserved), default=0)
    return sum(sizes) - own_size


def _size(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return round(float(number) * _UNITS[unit.lower()])


def _phase(error: BaseException) -> str | None:
    """Phase of the training loop, from the PyTorch frames that the error passed."""
    entered: str | None = None
    for frame, _ in frames_and_lines(error):
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
            entered = "forward"  # most likely a loss
    return entered


def _trains(frame: FrameType) -> bool:
    """Whether the called module was in training mode; True if unknown."""
    module = frame_variables(frame).get("self")
    attributes = object.__getattribute__(module, "__dict__") if hasattr(type(module), "__dict__") else {}
    return bool(attributes.get("training", True)) if isinstance(attributes, dict) else True


def _user_location(error: BaseException) -> str | None:
    """The user's innermost line on the way to the failure."""
    steps = frames_and_lines(error)
    return next(iter([line for frame, at in reversed(steps) if (line := _line(frame, at)) is not None]), None)


def _line(frame: FrameType, at: int) -> str | None:
    if not is_user_frame(frame):
        return None
    # A finished frame reports the line where it ended, which may be the `with` it left; the traceback is right.
    line = user_line(frame)
    return None if line is None else re.sub(rf"\b{frame.f_lineno}(?=\)?$)", str(at), line)


def all_frames(error: BaseException) -> Iterator[FrameType]:
    """Every frame the error passed, outermost first: the frames active when memory ran out."""
    return (frame for each in exception_chain(error) for frame, _ in frames_and_lines(each))
