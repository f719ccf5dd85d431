"""Virtual time: give each record of the op log the time that it would take with this GPU, while the program runs.

The host processes one record after the other. Python between operators counts as measured; dispatch and launches cost
what the host cost model says. Each GPU stream runs its kernels in order. A kernel starts after its launch, after the
previous work in its stream, and after the events that the stream waits for. The host blocks where a real one would:
when it reads a value, copies from pageable memory, fetches a batch, or when the launch queue is full. A real queue
holds about a thousand launches. This one holds at most those of two steps: a virtual run records only a few steps, and
they should look like steps of a long run, where the host of a busy GPU runs a few steps ahead and no further.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.replay.graph.dependencies import LAUNCH_QUEUE_CAPACITY
from gpulab.tables import EventKind
from gpulab.virtual.cost_model.copies import copy_class, copy_ns
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.operators import kernels_of
from gpulab.virtual.cost_model.spin import spin_kernel
from gpulab.virtual.loading.arrivals import BatchArrivals
from gpulab.virtual.op_log.events import AUTOGRAD, MAIN, EventLog
from gpulab.virtual.op_log.ops import (
    BatchFetch,
    Copy,
    CopyDirection,
    EventRecord,
    HostOp,
    HostWait,
    Op,
    Phase,
    Range,
    Record,
    Spin,
    StepEnd,
    StreamWait,
)

if TYPE_CHECKING:
    from gpulab.virtual.host.costs import HostCosts

MAX_STEPS_AHEAD = 2  # steps that the host may run ahead of the GPU
LAUNCH_LATENCY_NS = 1_500.0  # from the return of a launch call to the start of its kernel on an idle GPU
PAGEABLE_RETURN_NS = (
    9_000.0  # from the end of a copy to pageable memory to the return of its call: A100 and H100 traces
)
STAGING_BUFFER_BYTES = (
    64 * 1024
)  # up to this size, a copy from pageable memory is in the driver's buffer when the call returns
DISPATCH_BEFORE_LAUNCH_FRAC = 0.6  # fraction of an operator's dispatch time that comes before its launches
# Factory functions contain the operator that fills the tensor, as in traces of the profiler.
FILL_OPS = {
    "aten::randn": "aten::normal_",
    "aten::rand": "aten::uniform_",
    "aten::randint": "aten::random_",
    "aten::zeros": "aten::zero_",
    "aten::ones": "aten::fill_",
    "aten::full": "aten::fill_",
}
DATALOADER_RANGE_PREFIX = "enumerate(DataLoader)#"
NEXT_BATCH_RANGE = DATALOADER_RANGE_PREFIX + "_{}DataLoaderIter.__next__"


class VirtualClock:
    """The virtual clock: takes records in program order, advances time, and writes events to `log`."""

    def __init__(
        self,
        spec: GpuSpec,
        host: HostCosts,
        loader_arrivals: Callable[[int], BatchArrivals] | None = None,
        scale: Mapping[OpClass, float] | None = None,
    ) -> None:
        self.log = EventLog()
        self.cpu_ns = 0.0  # CPU time of the host thread so far
        self.busy_ns = 0.0  # time with work on the GPU so far; a little low where streams overlap
        self._spec = spec
        self._host = host
        self._now = 0.0
        self._stream_end_ns: dict[int, float] = defaultdict(float)  # when each stream finishes its work
        self.busy_until_ns = 0.0  # end of the latest work so far
        self.queue_length = LAUNCH_QUEUE_CAPACITY  # most launches that may be outstanding
        self._queued: deque[float] = deque()  # end times of the outstanding launches
        self._launches_at_step_end: dict[type, int] = {}  # by the type of the step's last record
        self._events: dict[int, tuple[float, int, int]] = {}  # (end time, stream, correlation), by event number
        self._ranges: list[int] = []  # log rows of the open ranges
        self._feeding = loader_arrivals
        self._loaders: dict[tuple[int, int], BatchArrivals] = {}
        self._correlation = 0
        self._scale = scale or {}
        self._processors: dict[type, Callable[[Any], None]] = {
            Op: self._op,
            HostOp: self._host_op,
            Spin: self._spin,
            Copy: self._copy,
            HostWait: self._wait,
            EventRecord: self._record_event,
            StreamWait: self._stream_wait,
            Range: self._range,
            BatchFetch: self._fetch,
            StepEnd: lambda record: self._end_step(StepEnd),
        }

    @property
    def now_ns(self) -> int:
        """The host's time."""
        return int(self._now)

    def event_done_ns(self, event: int) -> int | None:
        """Return when an event completes; None if it was never recorded."""
        return int(self._events[event][0]) if event in self._events else None

    @property
    def device_done_ns(self) -> int:
        """When the GPU finishes all work launched so far."""
        return int(self._gpu_idle_ns())

    def process(self, record: Record) -> None:
        """Process the next record of the program."""
        self._advance(record.python_ns)
        self._processors[type(record)](record)

    def charge_driver_call(self, call: str) -> None:
        """Charge a driver call of the allocator: cudaMalloc, or cudaFree, which synchronises."""
        start = self._now
        self._advance(self._host.alloc_ns)
        if call == "cudaFree":
            self._block_until(self._gpu_idle_ns())
        self.log.add_host_event(EventKind.ALLOC, call, start, self._now, thread=MAIN)

    def _gpu_idle_ns(self) -> float:
        return max(self._stream_end_ns.values(), default=0.0)

    def _advance(self, ns: float) -> None:
        self._now += ns
        self.cpu_ns += ns

    def _block_until(self, at_ns: float) -> None:
        self._now = max(self._now, at_ns)

    def _op(self, op: Op) -> None:
        if op.is_view:
            self._advance(self._host.dispatch_ns(op))
            return
        thread = AUTOGRAD if op.phase is Phase.BACKWARD else MAIN
        outer = None
        if thread == AUTOGRAD:
            node = f"autograd::engine::evaluate_function: {op.name.removeprefix('aten::')}"
            outer = self.log.open_host_event(EventKind.OP, node, self._now, thread=thread)
        row = self.log.open_host_event(EventKind.OP, op.name, self._now, thread=thread)
        self.log.add_shapes(row, op.inputs)
        dispatch = self._host.dispatch_ns(op)
        self._advance(dispatch * DISPATCH_BEFORE_LAUNCH_FRAC)
        for kernel in kernels_of(op, self._spec):
            self._launch(kernel, op.stream, thread)
        self._advance(dispatch * (1 - DISPATCH_BEFORE_LAUNCH_FRAC))
        self.log.close_host_event(row, self._now)
        if outer is not None:
            self.log.close_host_event(outer, self._now)

    def _host_op(self, op: HostOp) -> None:
        thread = AUTOGRAD if op.phase is Phase.BACKWARD else MAIN
        start = self._now
        self._advance(op.elapsed_ns)
        for name in (op.name, FILL_OPS.get(op.name)):
            if name is not None:
                row = self.log.add_host_event(EventKind.OP, name, start, self._now, thread=thread)
                self.log.add_shapes(row, op.inputs)

    def _spin(self, spin: Spin) -> None:
        thread = AUTOGRAD if spin.phase is Phase.BACKWARD else MAIN
        # torch.cuda._sleep has no operator around it.
        self._launch(spin_kernel(spin.cycles, self._spec), spin.stream, thread)

    def _launch(self, kernel: Kernel, stream: int, thread: int) -> None:
        call = "cudaLaunchKernel"
        kind = EventKind.LAUNCH
        if kernel.name.startswith(("Memcpy", "Memset")):
            call, kind = f"cuda{kernel.name[:6]}Async", EventKind.COPY_CALL
        call_ns, correlation = self._now, self._next_correlation()
        self._wait_for_queue_slot()
        self._advance(self._host.launch_ns)
        self.log.add_host_event(kind, call, call_ns, self._now, thread=thread, correlation=correlation)
        start_ns = max(self._now + LAUNCH_LATENCY_NS, self._stream_end_ns[stream])
        end_ns = start_ns + kernel.ns * self._scale.get(kernel.op_class, 1.0)
        self.log.add_kernel(kernel, start_ns, end_ns, stream=stream, correlation=correlation)
        self._enqueue(stream, start_ns, end_ns)

    def _wait_for_queue_slot(self) -> None:
        """Block the host until the launch queue has a free slot."""
        queued = self._queued
        while queued and queued[0] <= self._now:
            queued.popleft()
        if len(queued) >= self.queue_length:
            self._block_until(queued[len(queued) - self.queue_length])

    def _end_step(self, record_type: type) -> None:
        """End a step and limit the launch queue to `AHEAD` steps of launches.

        `record_type` is the type of record that ended it. Once an optimizer has stepped, batch fetches no longer count.
        """
        if record_type is BatchFetch and StepEnd in self._launches_at_step_end:
            return
        if record_type in self._launches_at_step_end and self._correlation > self._launches_at_step_end[record_type]:
            self.queue_length = min(
                self.queue_length, MAX_STEPS_AHEAD * (self._correlation - self._launches_at_step_end[record_type])
            )
        self._launches_at_step_end[record_type] = self._correlation

    def _enqueue(self, stream: int, start_ns: float, done_ns: float) -> None:
        self._stream_end_ns[stream] = done_ns
        self.busy_ns += max(0.0, done_ns - max(start_ns, self.busy_until_ns))
        self.busy_until_ns = max(self.busy_until_ns, done_ns)
        self._queued.append(max(done_ns, self._queued[-1]) if self._queued else done_ns)

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _copy(self, copy: Copy) -> None:
        thread = AUTOGRAD if copy.phase is Phase.BACKWARD else MAIN
        outer = None
        if copy.name == "aten::_local_scalar_dense":
            outer = self.log.open_host_event(EventKind.OP, "aten::item", self._now, thread=thread)
        row = self.log.open_host_event(EventKind.OP, copy.name, self._now, thread=thread)
        self._advance(self._host.copy_dispatch_ns)
        to_device = copy.direction is CopyDirection.HOST_TO_DEVICE
        staged = to_device and not copy.pinned  # the driver reads the host memory before the call returns
        call_ns, correlation = self._now, self._next_correlation()
        self._wait_for_queue_slot()
        self._advance(self._host.copy_call_ns)
        start_ns = max(self._now + LAUNCH_LATENCY_NS, self._stream_end_ns[copy.stream])
        end_ns = start_ns + copy_ns(copy, self._spec) * self._scale_of_copy(copy)
        if staged and copy.bytes > STAGING_BUFFER_BYTES:
            self._block_until(end_ns)
        elif copy.direction is CopyDirection.DEVICE_TO_HOST and not copy.pinned:
            self._block_until(end_ns + PAGEABLE_RETURN_NS)
        self.log.add_host_event(
            EventKind.COPY_CALL, "cudaMemcpyAsync", call_ns, self._now, thread=thread, correlation=correlation
        )
        name = f"Memcpy {copy.direction.value} ({_endpoints(copy)})"
        self.log.add_device_event(
            EventKind.MEMCPY, name, start_ns, end_ns, stream=copy.stream, correlation=correlation, size=copy.bytes
        )
        self._enqueue(copy.stream, start_ns, end_ns)
        if not (copy.non_blocking and (copy.pinned or to_device)):
            self._synchronize("cudaStreamSynchronize", end_ns, thread)
        self.log.close_host_event(row, self._now)
        if outer is not None:
            self.log.close_host_event(outer, self._now)

    def _scale_of_copy(self, copy: Copy) -> float:
        kind = copy_class(copy)
        if kind is None:
            return 1.0
        self.log.kernel_classes.add(kind)
        return self._scale.get(kind, 1.0)

    def _wait(self, wait: HostWait) -> None:
        thread = AUTOGRAD if wait.phase is Phase.BACKWARD else MAIN
        end_ns = self._gpu_idle_ns()
        if wait.event is not None:
            end_ns = self._events[wait.event][0] if wait.event in self._events else self._now
        elif wait.stream is not None:
            end_ns = self._stream_end_ns[wait.stream]
        self._synchronize(wait.call, end_ns, thread)

    def _synchronize(self, call: str, done_ns: float, thread: int) -> None:
        start = self._now
        self._advance(self._host.sync_call_ns)
        is_blocked = done_ns > self._now
        self._block_until(done_ns + (LAUNCH_LATENCY_NS if is_blocked else 0.0))
        self.log.add_host_event(
            EventKind.SYNC, call, start, self._now, thread=thread, correlation=self._next_correlation()
        )

    def _record_event(self, signal: EventRecord) -> None:
        start, correlation = self._now, self._next_correlation()
        self._advance(self._host.event_ns)
        self.log.add_host_event(
            EventKind.RUNTIME, "cudaEventRecord", start, self._now, thread=MAIN, correlation=correlation
        )
        end_ns = max(self._now, self._stream_end_ns[signal.stream])
        self._events[signal.event] = (end_ns, signal.stream, correlation)

    def _stream_wait(self, hold: StreamWait) -> None:
        start, correlation = self._now, self._next_correlation()
        self._advance(self._host.event_ns)
        self.log.add_host_event(
            EventKind.RUNTIME, "cudaStreamWaitEvent", start, self._now, thread=MAIN, correlation=correlation
        )
        if hold.event not in self._events:
            return
        end_ns, event_stream, event_correlation = self._events[hold.event]
        self._stream_end_ns[hold.stream] = max(self._stream_end_ns[hold.stream], end_ns)
        self.log.add_stream_wait(
            self._now,
            stream=hold.stream,
            correlation=correlation,
            on_stream=event_stream,
            on_correlation=event_correlation,
        )

    def _range(self, record: Range) -> None:
        if record.name.startswith(
            DATALOADER_RANGE_PREFIX
        ):  # PyTorch's own range around the batch fetch, which Fetch covers
            return
        if record.is_start:
            self._ranges.append(self.log.open_host_event(EventKind.ANNOTATION, record.name, self._now, thread=MAIN))
        elif self._ranges:
            self.log.close_host_event(self._ranges.pop(), self._now)

    def _fetch(self, fetch: BatchFetch) -> None:
        arrivals, start = self._arrivals(fetch), self._now
        self._block_until(arrivals.continues_ns(self.now_ns, fetch))
        if not arrivals.workers:
            self.cpu_ns += fetch.build_cpu_ns
        self._end_step(BatchFetch)
        name = NEXT_BATCH_RANGE.format("MultiProcessing" if arrivals.workers else "SingleProcess")
        self.log.add_host_event(EventKind.LOADER, name, start, self._now, thread=MAIN)

    def _arrivals(self, fetch: BatchFetch) -> BatchArrivals:
        key = fetch.loader, fetch.epoch
        if key not in self._loaders:
            self._loaders[key] = self._feeding(fetch.loader) if self._feeding else BatchArrivals(0)
        return self._loaders[key]


def _endpoints(copy: Copy) -> str:
    host = "Pinned" if copy.pinned else "Pageable"
    return f"{host} -> Device" if copy.direction is CopyDirection.HOST_TO_DEVICE else f"Device -> {host}"
