"""Virtual time: what the program does takes what it would take with this GPU, as it happens.

The host goes from record to record: its own Python as measured, each operator's dispatch and launches as priced. The
GPU's streams work off what was launched, in order, each kernel no sooner than its launch, than the work before it in
its stream, and than the events the stream was told to wait for. The host waits where a real one would: for a value it
reads, a copy from pageable memory, a batch, and for room in the queue of launches. A real queue takes about a thousand;
this one takes no more than two steps' launches, because a loop is played for a few steps only, and they should be as
those of a long one are: there the host of a busy GPU gets a few steps ahead and no further.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.replay.graph.dependencies import QUEUE
from gpulab.tables import Kind
from gpulab.virtual.cost_model.copies import copy_ns
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.operators import kernels
from gpulab.virtual.cost_model.spin import spin_kernel
from gpulab.virtual.loading.arrivals import Arrivals
from gpulab.virtual.op_log.events import AUTOGRAD, MAIN, Log
from gpulab.virtual.op_log.ops import (
    Copy,
    Fetch,
    Hold,
    HostOp,
    Op,
    Phase,
    Range,
    Record,
    Signal,
    Spin,
    Stepped,
    Wait,
    Way,
)

if TYPE_CHECKING:
    from gpulab.virtual.host.costs import Host

AHEAD = 2  # steps: no host gets further ahead of its GPU here
START_NS = 1_500.0  # from the return of a launch call to the start of its kernel on an idle GPU
RETURN_NS = 9_000.0  # from the end of a copy to pageable memory to the return of its call: A100 and H100 traces
STAGED_BYTES = 64 * 1024  # a copy from pageable memory up to this size is in a buffer when the call returns
BEFORE_FRAC = 0.6  # of an operator's dispatch lies before its launches
# What makes a tensor and fills it shows as the profiler shows it: with the operator that fills, inside.
FILLED_BY = {
    "aten::randn": "aten::normal_",
    "aten::rand": "aten::uniform_",
    "aten::randint": "aten::random_",
    "aten::zeros": "aten::zero_",
    "aten::ones": "aten::fill_",
    "aten::full": "aten::fill_",
}
LOADING = "enumerate(DataLoader)#"
LOADER = LOADING + "_{}DataLoaderIter.__next__"


class Clock:
    """Takes records in the order of the program and tells the time; keeps what happened in its log."""

    def __init__(
        self,
        spec: GpuSpec,
        host: Host,
        feeding: Callable[[int], Arrivals] | None = None,
        scale: Mapping[OpClass, float] | None = None,
    ) -> None:
        self.log = Log()
        self.cpu_ns = 0.0  # what the host thread computed so far
        self._spec = spec
        self._host = host
        self._now = 0.0
        self._free_ns: dict[int, float] = defaultdict(float)  # when each stream will have done what it was given
        self.queue = QUEUE  # launches that may be outstanding
        self._queued: deque[float] = deque()  # when each launch that may still be outstanding is done
        self._begun: dict[type, int] = {}  # launches before the last step that such a record ended
        self._events: dict[int, tuple[float, int, int]] = {}  # when done, in which stream, by which call
        self._ranges: list[int] = []  # rows of the ranges that are open
        self._feeding = feeding
        self._loaders: dict[tuple[int, int], Arrivals] = {}
        self._correlation = 0
        self._scale = scale or {}
        self._takes: dict[type, Callable[[Any], None]] = {
            Op: self._op,
            HostOp: self._host_op,
            Spin: self._spin,
            Copy: self._copy,
            Wait: self._wait,
            Signal: self._signal,
            Hold: self._hold,
            Range: self._range,
            Fetch: self._fetch,
            Stepped: lambda record: self._settle(Stepped),
        }

    @property
    def now_ns(self) -> int:
        """Where the host is."""
        return int(self._now)

    def done_ns(self, event: int) -> int | None:
        """When an event is done; None for one that was never recorded."""
        return int(self._events[event][0]) if event in self._events else None

    @property
    def device_done_ns(self) -> int:
        """When the GPU has done all it was given so far."""
        return int(self._all_done_ns())

    def take(self, record: Record) -> None:
        """The next thing the program does."""
        self._busy(record.python_ns)
        self._takes[type(record)](record)

    def asked_for_memory(self, call: str) -> None:
        """The allocator went to the driver: cudaMalloc, or cudaFree, which waits for the GPU."""
        start = self._now
        self._busy(self._host.alloc_ns)
        if call == "cudaFree":
            self._until(self._all_done_ns())
        self.log.host(Kind.ALLOC, call, start, self._now, thread=MAIN)

    def _all_done_ns(self) -> float:
        return max(self._free_ns.values(), default=0.0)

    def _busy(self, ns: float) -> None:
        self._now += ns
        self.cpu_ns += ns

    def _until(self, at_ns: float) -> None:
        self._now = max(self._now, at_ns)

    def _op(self, op: Op) -> None:
        if op.view:
            self._busy(self._host.dispatch_ns(op))
            return
        thread = AUTOGRAD if op.phase is Phase.BACKWARD else MAIN
        outer = None
        if thread == AUTOGRAD:
            node = f"autograd::engine::evaluate_function: {op.name.removeprefix('aten::')}"
            outer = self.log.open(Kind.OP, node, self._now, thread=thread)
        row = self.log.open(Kind.OP, op.name, self._now, thread=thread)
        self.log.shapes(row, op.inputs)
        dispatch = self._host.dispatch_ns(op)
        self._busy(dispatch * BEFORE_FRAC)
        for kernel in kernels(op, self._spec):
            self._launch(kernel, op.stream, thread)
        self._busy(dispatch * (1 - BEFORE_FRAC))
        self.log.close(row, self._now)
        if outer is not None:
            self.log.close(outer, self._now)

    def _host_op(self, op: HostOp) -> None:
        thread = AUTOGRAD if op.phase is Phase.BACKWARD else MAIN
        start = self._now
        self._busy(op.ns)
        for name in (op.name, FILLED_BY.get(op.name)):
            if name is not None:
                row = self.log.host(Kind.OP, name, start, self._now, thread=thread)
                self.log.shapes(row, op.inputs)

    def _spin(self, spin: Spin) -> None:
        thread = AUTOGRAD if spin.phase is Phase.BACKWARD else MAIN
        self._launch(spin_kernel(spin.cycles, self._spec), spin.stream, thread)  # no operator of PyTorch is around it

    def _launch(self, kernel: Kernel, stream: int, thread: int) -> None:
        call = "cudaLaunchKernel"
        kind = Kind.LAUNCH
        if kernel.name.startswith(("Memcpy", "Memset")):
            call, kind = f"cuda{kernel.name[:6]}Async", Kind.COPY_CALL
        start, correlation = self._now, self._called()
        self._room()
        self._busy(self._host.launch_ns)
        self.log.host(kind, call, start, self._now, thread=thread, correlation=correlation)
        begins = max(self._now + START_NS, self._free_ns[stream])
        ends = begins + kernel.ns * self._scale.get(kernel.of, 1.0)
        self.log.kernel(kernel, begins, ends, stream=stream, correlation=correlation)
        self._given(stream, ends)

    def _room(self) -> None:
        """Wait until the queue of launches takes one more."""
        queued = self._queued
        while queued and queued[0] <= self._now:
            queued.popleft()
        if len(queued) >= self.queue:
            self._until(queued[len(queued) - self.queue])

    def _settle(self, of: type) -> None:
        """A step has ended, as a record of this type tells; an optimizer's tells it better than a loader's."""
        if of is Fetch and Stepped in self._begun:
            return
        if of in self._begun and self._correlation > self._begun[of]:
            self.queue = min(self.queue, AHEAD * (self._correlation - self._begun[of]))
        self._begun[of] = self._correlation

    def _given(self, stream: int, done_ns: float) -> None:
        self._free_ns[stream] = done_ns
        self._queued.append(max(done_ns, self._queued[-1]) if self._queued else done_ns)

    def _called(self) -> int:
        self._correlation += 1
        return self._correlation

    def _copy(self, copy: Copy) -> None:
        thread = AUTOGRAD if copy.phase is Phase.BACKWARD else MAIN
        outer = None
        if copy.name == "aten::_local_scalar_dense":
            outer = self.log.open(Kind.OP, "aten::item", self._now, thread=thread)
        row = self.log.open(Kind.OP, copy.name, self._now, thread=thread)
        self._busy(self._host.copy_dispatch_ns)
        to_device = copy.way is Way.TO_DEVICE
        staged = to_device and not copy.pinned  # the driver reads the memory before the call returns
        start, correlation = self._now, self._called()
        self._room()
        self._busy(self._host.copy_call_ns)
        begins = max(self._now + START_NS, self._free_ns[copy.stream])
        done = begins + copy_ns(copy, self._spec)
        if staged and copy.bytes > STAGED_BYTES:
            self._until(done)
        elif copy.way is Way.TO_HOST and not copy.pinned:
            self._until(done + RETURN_NS)
        self.log.host(Kind.COPY_CALL, "cudaMemcpyAsync", start, self._now, thread=thread, correlation=correlation)
        name = f"Memcpy {copy.way.value} ({_sides(copy)})"
        self.log.device(Kind.MEMCPY, name, begins, done, stream=copy.stream, correlation=correlation, size=copy.bytes)
        self._given(copy.stream, done)
        if not (copy.non_blocking and (copy.pinned or to_device)):
            self._synchronize("cudaStreamSynchronize", done, thread)
        self.log.close(row, self._now)
        if outer is not None:
            self.log.close(outer, self._now)

    def _wait(self, wait: Wait) -> None:
        thread = AUTOGRAD if wait.phase is Phase.BACKWARD else MAIN
        done = self._all_done_ns()
        if wait.event is not None:
            done = self._events[wait.event][0] if wait.event in self._events else self._now
        elif wait.stream is not None:
            done = self._free_ns[wait.stream]
        self._synchronize(wait.call, done, thread)

    def _synchronize(self, call: str, done_ns: float, thread: int) -> None:
        start = self._now
        self._busy(self._host.sync_call_ns)
        waits = done_ns > self._now
        self._until(done_ns + (START_NS if waits else 0.0))
        self.log.host(Kind.SYNC, call, start, self._now, thread=thread, correlation=self._called())

    def _signal(self, signal: Signal) -> None:
        start, correlation = self._now, self._called()
        self._busy(self._host.event_ns)
        self.log.host(Kind.RUNTIME, "cudaEventRecord", start, self._now, thread=MAIN, correlation=correlation)
        done = max(self._now, self._free_ns[signal.stream])
        self._events[signal.event] = (done, signal.stream, correlation)

    def _hold(self, hold: Hold) -> None:
        start, correlation = self._now, self._called()
        self._busy(self._host.event_ns)
        self.log.host(Kind.RUNTIME, "cudaStreamWaitEvent", start, self._now, thread=MAIN, correlation=correlation)
        if hold.event not in self._events:
            return
        done, of, recorded = self._events[hold.event]
        self._free_ns[hold.stream] = max(self._free_ns[hold.stream], done)
        self.log.held(self._now, stream=hold.stream, correlation=correlation, on_stream=of, on_correlation=recorded)

    def _range(self, record: Range) -> None:
        if record.name.startswith(LOADING):  # PyTorch's own, around what a Fetch tells
            return
        if record.open:
            self._ranges.append(self.log.open(Kind.ANNOTATION, record.name, self._now, thread=MAIN))
        elif self._ranges:
            self.log.close(self._ranges.pop(), self._now)

    def _fetch(self, fetch: Fetch) -> None:
        arrivals, start = self._arrivals(fetch), self._now
        self._until(arrivals.goes_on_ns(self.now_ns, fetch))
        if not arrivals.workers:
            self.cpu_ns += fetch.built_cpu_ns
        self._settle(Fetch)
        name = LOADER.format("MultiProcessing" if arrivals.workers else "SingleProcess")
        self.log.host(Kind.LOADER, name, start, self._now, thread=MAIN)

    def _arrivals(self, fetch: Fetch) -> Arrivals:
        key = fetch.loader, fetch.epoch
        if key not in self._loaders:
            self._loaders[key] = self._feeding(fetch.loader) if self._feeding else Arrivals(0)
        return self._loaders[key]


def _sides(copy: Copy) -> str:
    host = "Pinned" if copy.pinned else "Pageable"
    return f"{host} -> Device" if copy.way is Way.TO_DEVICE else f"Device -> {host}"
