"""torch.cuda.Stream and torch.cuda.Event on virtual time."""

from __future__ import annotations

from typing import Any, Protocol

from gpulab.virtual.device.recorder import DEFAULT_STREAM, Recorder


class Clock(Protocol):
    """Virtual time, as streams and events ask for it."""

    @property
    def now_ns(self) -> int:
        """The host's time."""

    def done_ns(self, event: int) -> int | None:
        """When an event that was recorded is done; None for one that never was."""


class Streams:
    """The streams of the one GPU, and the classes that programs see."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self.recorder, self.clock = recorder, clock
        self._streams = DEFAULT_STREAM
        self._events = 0
        self.Stream, self.Event = _stream_type(self), _event_type(self)
        self.default = self.Stream(_number=DEFAULT_STREAM)
        self.current = self.default

    def next_stream(self) -> int:
        """The number of a new stream; CUDA's start at 13 in traces, after the default's 7."""
        self._streams = 13 if self._streams == DEFAULT_STREAM else self._streams + 4
        return self._streams

    def next_event(self) -> int:
        """The number of a new event."""
        self._events += 1
        return self._events

    def make_current(self, stream: Any) -> None:
        """Launch into this stream from now on."""
        if stream is not None:
            self.current = stream
            self.recorder.stream = stream.number


class StreamContext:
    """`with torch.cuda.stream(stream):`."""

    def __init__(self, streams: Streams, stream: Any) -> None:
        self._streams, self.stream = streams, stream
        self._before: list[Any] = []

    def __enter__(self) -> Any:
        self._before.append(self._streams.current)
        self._streams.make_current(self.stream)
        return self.stream

    def __exit__(self, *error: object) -> None:
        self._streams.make_current(self._before.pop())


class _Stream:
    """A queue of work on the GPU."""

    streams: Streams

    def __init__(self, device: Any = None, priority: int = 0, *, _number: int | None = None, **given: Any) -> None:
        self.number = self.streams.next_stream() if _number is None else _number
        self.priority = priority
        self._context: list[StreamContext] = []

    @property
    def device(self) -> Any:
        """cuda:0."""
        from gpulab.virtual.device.tensors.fake_tensors import gpu

        return gpu()

    device_index = 0

    @property
    def stream_id(self) -> int:
        """0 for the default stream."""
        return 0 if self.number == DEFAULT_STREAM else self.number

    cuda_stream = stream_id

    def record_event(self, event: Any = None) -> Any:
        """Record an event in this stream."""
        event = self.streams.Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Let what comes in this stream wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let what comes in this stream wait for what another has now."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Let the host wait for this stream."""
        recorder = self.streams.recorder
        recorder.entered()
        recorder.wait("cudaStreamSynchronize", stream=self.number)
        recorder.left()

    def is_capturing(self) -> bool:
        """Never: there are no CUDA graphs here."""
        return False

    def query(self) -> bool:
        """Whether all in this stream is done."""
        return bool(self.record_event().query())

    def __enter__(self) -> Any:
        self._context.append(StreamContext(self.streams, self))
        return self._context[-1].__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x}>"


class _Event:
    """A mark in a stream, done when all before it is."""

    streams: Streams

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **given: Any
    ) -> None:
        self.enable_timing = enable_timing
        self.number: int | None = None

    def record(self, stream: Any = None) -> None:
        """Put the mark at the end of a stream."""
        where = self.streams.current if stream is None else stream
        recorder = self.streams.recorder
        recorder.entered()
        self.number = self.streams.next_event()
        recorder.signal(self.number, where.number)
        recorder.left()

    def wait(self, stream: Any = None) -> None:
        """Let what comes in a stream wait for the mark."""
        where = self.streams.current if stream is None else stream
        if self.number is not None:
            recorder = self.streams.recorder
            recorder.entered()
            recorder.hold(self.number, where.number)
            recorder.left()

    def synchronize(self) -> None:
        """Let the host wait for the mark."""
        if self.number is not None:
            recorder = self.streams.recorder
            recorder.entered()
            recorder.wait("cudaEventSynchronize", event=self.number)
            recorder.left()

    def query(self) -> bool:
        """Whether the mark is done."""
        done_ns = self._done_ns()
        return done_ns is None or done_ns <= self.streams.clock.now_ns

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this mark to another, in virtual time."""
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        begun_ns, ended_ns = self._done_ns(), end._done_ns()
        if begun_ns is None or ended_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return float(ended_ns - begun_ns) / 1e6

    def _done_ns(self) -> int | None:
        return None if self.number is None else self.streams.clock.done_ns(self.number)

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self.number is None else f"<torch.cuda.Event {self.number:#x}>"


def _stream_type(streams: Streams) -> Any:
    return type("Stream", (_Stream,), {"streams": streams, "__module__": "torch.cuda"})


def _event_type(streams: Streams) -> Any:
    return type("Event", (_Event,), {"streams": streams, "__module__": "torch.cuda"})
