"""Run CUDA kernels that are written in Python, thread by thread, with the names of numba.cuda.

    from gpulab.lessons.labs.kernels.programs import simulator as cuda

    @cuda.jit
    def add(first, second, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = first[i] + second[i]

    launch = add[blocks, threads_per_block](first, second, out)

With Numba and a GPU, the same code runs there: `from numba import cuda`. Here, each launch returns a record of what the
threads read, wrote and executed. Threads of a block run one after the other up to the next `syncthreads`.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from types import CodeType, FrameType
from typing import Any

import numpy as np

from gpulab.errors import GpulabError
from gpulab.lessons.labs.kernels.programs.device_arrays import (
    ALIGNMENT_BYTES,
    CONSTANT,
    GLOBAL,
    SHARED,
    Access,
    DeviceArray,
    offset_in_base,
)
from gpulab.lessons.labs.kernels.programs.launch_record import WARP, Launch

Triple = tuple[int, int, int]
float32, float64, int32, int64 = np.float32, np.float64, np.int32, np.int64
warpsize = WARP
MAX_THREADS_PER_BLOCK = 1024
MAX_THREADS = 1 << 20  # in a simulated launch: more would take minutes


@dataclass(eq=False)
class _State:
    """A launch while it runs."""

    blocks: Triple
    threads: Triple
    code: CodeType
    accesses: list[Access] = field(default_factory=list)
    executed: Counter[tuple[int, int, int, int]] = field(default_factory=Counter)  # block, warp, line, nth -> lanes
    next_address: int = ALIGNMENT_BYTES
    shared: dict[tuple[int, int], DeviceArray] = field(default_factory=dict)  # by block and line
    constants: dict[int, DeviceArray] = field(default_factory=dict)  # by line
    shared_bytes: dict[int, int] = field(default_factory=Counter)  # used by each block

    def place(self, values: np.ndarray[Any, Any], name: str, space: str = GLOBAL) -> DeviceArray:
        """Give an array an address; a view of another array begins within it."""
        offset = offset_in_base(values)
        base = self.next_address
        self.next_address += -(-(offset + values.nbytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return DeviceArray(values, space, name, base + offset, _running)


@dataclass(eq=False)
class _Thread:
    """The thread that runs."""

    state: _State
    block: Triple
    thread: Triple
    block_number: int
    number: int  # in its block
    wait: Callable[[int], None] | None = None
    counts: Counter[tuple[str, bool, int]] = field(default_factory=Counter)
    lines: Counter[int] = field(default_factory=Counter)

    def record(self, space: str, array: str, is_store: bool, line: int, address: int, size: int) -> None:
        key = (array, is_store, line)
        access = Access(self.block_number, self.number, space, array, is_store, line, self.counts[key], address, size)
        self.counts[key] += 1
        self.state.accesses.append(access)

    def position(self) -> str:
        return f"block {self.block}, thread {self.thread}"

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Run the kernel as this thread, and count the lines that it executes."""
        __tracebackhide__ = True
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            function(*arguments)
        finally:
            sys.settrace(before)
            warp = self.number // WARP
            for line, count in self.lines.items():
                for nth in range(count):
                    self.state.executed[self.block_number, warp, line, nth] += 1

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._count if frame.f_code is self.state.code else None

    def _count(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines[frame.f_lineno] += 1
        return self._count


_active: _Thread | None = None


def _running() -> _Thread:
    if _active is None:
        raise GpulabError(
            "No kernel is running.",
            why="threadIdx, grid(), shared and syncthreads exist only inside of a kernel",
            fix="launch the kernel: kernel[blocks, threads_per_block](...)",
        )
    return _active


class _Index:
    """threadIdx and its like: three numbers of the running thread."""

    def __init__(self, read: Callable[[_Thread], Triple]) -> None:
        self._read = read

    @property
    def x(self) -> int:
        """The first number."""
        return self._read(_running())[0]

    @property
    def y(self) -> int:
        """The second number."""
        return self._read(_running())[1]

    @property
    def z(self) -> int:
        """The third number."""
        return self._read(_running())[2]


threadIdx = _Index(lambda thread: thread.thread)  # noqa: N816 - Numba's and CUDA's name
blockIdx = _Index(lambda thread: thread.block)  # noqa: N816
blockDim = _Index(lambda thread: thread.state.threads)  # noqa: N816
gridDim = _Index(lambda thread: thread.state.blocks)  # noqa: N816


def grid(ndim: int) -> Any:
    """Return the position of the thread in the whole grid: a number, or a tuple for 2 or 3 dimensions."""
    thread = _running()
    places = tuple(
        block * length + offset
        for block, length, offset in zip(thread.block, thread.state.threads, thread.thread, strict=True)
    )
    return places[0] if ndim == 1 else places[:ndim]


def gridsize(ndim: int) -> Any:
    """Return the number of threads in the whole grid, in each of the dimensions."""
    state = _running().state
    lengths = tuple(blocks * threads for blocks, threads in zip(state.blocks, state.threads, strict=True))
    return lengths[0] if ndim == 1 else lengths[:ndim]


def syncthreads() -> None:
    """Wait until all threads of the block have come here."""
    thread = _running()
    assert thread.wait is not None, "the kernel was recognised as one without barriers"
    thread.wait(sys._getframe(1).f_lineno)


class shared:  # noqa: N801 - Numba's name
    """Memory that the threads of a block share."""

    @staticmethod
    def array(shape: int | tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return the array of this line of the program; all threads of a block get the same one."""
        thread, line = _running(), sys._getframe(1).f_lineno
        state, key = thread.state, (thread.block_number, line)
        if key not in state.shared:
            values = np.zeros(shape, dtype)
            base = state.shared_bytes[thread.block_number]
            state.shared_bytes[thread.block_number] = base + -(-values.nbytes // 128) * 128
            state.shared[key] = DeviceArray(values, SHARED, f"shared {line}", base, _running)
        return state.shared[key]


class const:  # noqa: N801 - Numba's name
    """Memory that a kernel only reads, with a cache that gives one value to a whole warp at once."""

    @staticmethod
    def array_like(values: Any) -> DeviceArray:
        """Return these values as an array in constant memory; all threads of a launch get the same one."""
        state, line = _running().state, sys._getframe(1).f_lineno
        if line not in state.constants:
            state.constants[line] = state.place(np.asarray(values), f"constant {line}", CONSTANT)
        return state.constants[line]


@dataclass(frozen=True)
class CudaKernel:
    """A function that runs on the simulated GPU: `kernel[blocks, threads_per_block](...)`."""

    function: Callable[..., Any]

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., Launch]:
        blocks, threads = (_triple(each) for each in configuration[:2])
        if _count(threads) > MAX_THREADS_PER_BLOCK:
            raise GpulabError(
                "The kernel cannot be launched.",
                why=f"a block of {_count(threads):,} threads is too large",
                fix=f"use at most {MAX_THREADS_PER_BLOCK:,} threads per block, and more blocks",
            )
        if not 0 < _count(blocks) * _count(threads) <= MAX_THREADS:
            raise GpulabError(
                "The kernel cannot be simulated.",
                why=f"it has {_count(blocks) * _count(threads):,} threads",
                fix=f"use 1 to {MAX_THREADS:,}: each one is simulated in Python",
            )
        return partial(self._launch, blocks, threads)

    def __call__(self, *arguments: Any) -> None:
        """A kernel cannot be called without a configuration."""
        raise GpulabError(
            "A kernel needs a launch configuration.",
            why="it was called like a function",
            fix="write kernel[blocks, threads_per_block](...)",
        )

    def _launch(self, blocks: Triple, threads: Triple, *arguments: Any) -> Launch:
        __tracebackhide__ = True  # IPython then shows the lines of the kernel only
        state = _State(blocks, threads, self.function.__code__)
        names = [*inspect.signature(self.function).parameters]
        if len(arguments) != len(names):
            raise TypeError(f"the kernel has the arguments {', '.join(names)}; the launch passes {len(arguments)}")
        placed = tuple(_argument(state, name, value) for name, value in zip(names, arguments, strict=True))
        run = _run_with_barriers if "syncthreads" in self.function.__code__.co_names else _run_in_turn
        for number, block in enumerate(_positions(blocks)):
            run(state, [_Thread(state, block, each, number, n) for n, each in enumerate(_positions(threads))],
                lambda thread: thread.call(self.function, placed))  # fmt: skip
        shared_bytes = max(state.shared_bytes.values(), default=0)
        return Launch.of(_count(blocks), _count(threads), state.accesses, state.executed, shared_bytes)


def jit(function: Callable[..., Any]) -> CudaKernel:
    """Return the function as a kernel."""
    return CudaKernel(function)


def _run_in_turn(state: _State, threads: list[_Thread], call: Callable[[_Thread], None]) -> None:
    global _active
    __tracebackhide__ = True
    for thread in threads:
        _active = thread
        try:
            call(thread)
        finally:
            _active = None


def _run_with_barriers(state: _State, threads: list[_Thread], call: Callable[[_Thread], None]) -> None:
    """Run each thread to its next barrier, then all to the one after it; one at a time, each in a thread of Python."""
    __tracebackhide__ = True
    runners = [_Runner(thread, call) for thread in threads]
    try:
        alive = runners
        while alive:
            for runner in alive:
                runner.run_to_barrier()
            alive = [runner for runner in alive if not runner.has_ended]
            lines = {runner.line for runner in alive}
            if len(lines) > 1:
                places = ", ".join(map(str, sorted(lines)))
                raise GpulabError(
                    "The kernel waits forever.",
                    why=f"threads of one block wait at different barriers, in lines {places}",
                    fix="call syncthreads() where all threads of a block come by, not inside of an if",
                )
    finally:
        for runner in runners:
            runner.end()


class _Ended(BaseException):
    """Ends a thread that waits at a barrier, if another one failed."""


class _Runner:
    """A thread of Python that runs one thread of the GPU, in turn with others."""

    def __init__(self, thread: _Thread, call: Callable[[_Thread], None]) -> None:
        self._thread, self._call = thread, call
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._python_thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self._was_started = self._must_end = False
        self.has_ended = False
        self.line = 0  # of the barrier at which it waits
        thread.wait = self._wait

    def run_to_barrier(self) -> None:
        """Let it run until it waits or ends. Raises what it raises."""
        global _active
        __tracebackhide__ = True
        _active = self._thread
        if not self._was_started:
            self._was_started = True
            self._python_thread.start()
        self._go.release()
        self._back.acquire()
        _active = None
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End it where it waits."""
        if self._was_started and not self.has_ended:
            self._must_end = True
            self._go.release()
        if self._was_started:
            self._python_thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._call(self._thread)
        except _Ended:
            pass
        except BaseException as error:
            self._error = error
        self.has_ended = True
        self._back.release()

    def _wait(self, line: int) -> None:
        self.line = line
        self._back.release()
        self._go.acquire()
        if self._must_end:
            raise _Ended


def _argument(state: _State, name: str, value: Any) -> Any:
    """Return an argument of a launch as the kernel gets it: an array on the device, or a number."""
    if isinstance(value, np.ndarray):
        return state.place(value, name)
    if isinstance(value, (bool, int, float, np.generic)):
        return value
    raise GpulabError(
        f"The kernel cannot get {name}.",
        why=f"it is a {type(value).__name__}; a kernel takes NumPy arrays and numbers",
        fix=f"pass np.asarray({name})",
    )


def _triple(lengths: Any) -> Triple:
    numbers = (*lengths,) if isinstance(lengths, (tuple, list)) else (lengths,)
    if not all(isinstance(number, (int, np.integer)) for number in numbers):
        raise GpulabError(
            "The kernel cannot be launched.",
            why=f"the number of blocks and of threads must be whole numbers, not {', '.join(map(repr, numbers))}",
            fix="round up: -(-elements // threads_per_block)",
        )
    padded = (*map(int, numbers), 1, 1, 1)
    return padded[0], padded[1], padded[2]


def _count(lengths: Triple) -> int:
    return lengths[0] * lengths[1] * lengths[2]


def _positions(lengths: Triple) -> Iterator[Triple]:
    """Yield all positions, x first."""
    for z, y, x in product(*(range(each) for each in reversed(lengths))):
        yield x, y, z
