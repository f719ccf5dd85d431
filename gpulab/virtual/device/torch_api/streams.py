"""torch.cuda.Stream and torch.cuda.Event on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

from gpulab.virtual.device.recorder import DEFAULT_STREAM, OpRecorder
from gpulab.virtual.device.torch_api.patches import patch_attributes


class VirtualTime(Protocol):
    """Virtual time as streams and events read it."""

    @property
    def now_ns(self) -> int:
        """The host's time."""

    def event_done_ns(self, event: int) -> int | None:
        """Return when an event completes; None if it was never recorded."""


class Streams:
    """The streams of the GPU, and the classes torch.cuda.Stream and torch.cuda.Event."""

    def __init__(self, recorder: OpRecorder, clock: VirtualTime) -> None:
        self.recorder, self.clock = recorder, clock
        self._streams = DEFAULT_STREAM
        self._events = 0
        self.Stream, self.Event = _stream_type(self), _event_type(self)
        self.default = self.Stream(_number=DEFAULT_STREAM)
        self.current = self.default

    def install(self, stack: ExitStack) -> None:
        """Make the classes of torch.cuda create these streams and events until the stack is closed."""
        import torch

        cuda: Any = torch.cuda
        stand_ins = {cuda.Stream: self.Stream, cuda.ExternalStream: self.Stream, cuda.Event: self.Event}
        for original, stand_in in stand_ins.items():
            patch_attributes(stack, original, __new__=_new_instance(original, stand_in), __init__=_no_init)
        streams = self

        def init(context: Any, stream: Any) -> None:
            context.stream, context.entered = stream, []

        def enter(context: Any) -> Any:
            context.entered.append(StreamContext(streams, context.stream))
            return context.entered[-1].__enter__()

        def leave(context: Any, *error: object) -> None:
            context.entered.pop().__exit__(*error)

        patch_attributes(stack, torch.cuda.StreamContext, __init__=init, __enter__=enter, __exit__=leave)

    def next_stream(self) -> int:
        """Return the number of a new stream; in traces they start at 13, and the default stream is 7."""
        self._streams = 13 if self._streams == DEFAULT_STREAM else self._streams + 4
        return self._streams

    def next_event(self) -> int:
        """Return the number of a new event."""
        self._events += 1
        return self._events

    def set_current(self, stream: Any) -> None:
        """Make this the current stream."""
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
        self._streams.set_current(self.stream)
        return self.stream

    def __exit__(self, *error: object) -> None:
        self._streams.set_current(self._before.pop())


class _Stream:
    """torch.cuda.Stream: a queue of work on the GPU."""

    streams: Streams

    def __init__(self, device: Any = None, priority: int = 0, *, _number: int | None = None, **kwargs: Any) -> None:
        self.number = self.streams.next_stream() if _number is None else _number
        self.priority = priority
        self._context: list[StreamContext] = []

    @property
    def device(self) -> Any:
        """cuda:0."""
        from gpulab.virtual.device.tensors.fake_tensors import virtual_device

        return virtual_device()

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
        """Let later work in this stream wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let later work in this stream wait for the work now in another stream."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Let the host wait for this stream."""
        recorder = self.streams.recorder
        recorder.entered()
        recorder.wait("cudaStreamSynchronize", stream=self.number)
        recorder.left()

    def is_capturing(self) -> bool:
        """Return False: CUDA graphs are not supported."""
        return False

    def query(self) -> bool:
        """Return whether all work in this stream is done."""
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
    """torch.cuda.Event: completes when all earlier work in its stream is done."""

    streams: Streams

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **kwargs: Any
    ) -> None:
        self.enable_timing = enable_timing
        self.number: int | None = None

    def record(self, stream: Any = None) -> None:
        """Record the event at the end of a stream."""
        target = self.streams.current if stream is None else stream
        recorder = self.streams.recorder
        recorder.entered()
        self.number = self.streams.next_event()
        recorder.record_event(self.number, target.number)
        recorder.left()

    def wait(self, stream: Any = None) -> None:
        """Let later work in a stream wait for the event."""
        target = self.streams.current if stream is None else stream
        if self.number is not None:
            recorder = self.streams.recorder
            recorder.entered()
            recorder.stream_wait(self.number, target.number)
            recorder.left()

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        if self.number is not None:
            recorder = self.streams.recorder
            recorder.entered()
            recorder.wait("cudaEventSynchronize", event=self.number)
            recorder.left()

    def query(self) -> bool:
        """Return whether the event is complete."""
        done_ns = self._done_ns()
        return done_ns is None or done_ns <= self.streams.clock.now_ns

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to another, in virtual time."""
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        start_ns, end_ns = self._done_ns(), end._done_ns()
        if start_ns is None or end_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return float(end_ns - start_ns) / 1e6

    def _done_ns(self) -> int | None:
        return None if self.number is None else self.streams.clock.event_done_ns(self.number)

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self.number is None else f"<torch.cuda.Event {self.number:#x}>"


def _stream_type(streams: Streams) -> Any:
    import torch

    return _stand_in("Stream", _Stream, torch.cuda.Stream, streams)


def _event_type(streams: Streams) -> Any:
    import torch

    return _stand_in("Event", _Event, torch.cuda.Event, streams)


def _stand_in(name: str, virtual_type: type, original: type, streams: Streams) -> Any:
    """Return a class with these streams; isinstance takes its instances for those of the original class."""
    attributes = {"streams": streams, "__module__": "torch.cuda", "__class__": property(lambda self: original)}
    return type(name, (virtual_type,), attributes)


def _new_instance(original: type, stand_in: Any) -> Callable[..., Any]:
    """Return `__new__` of a class of torch.cuda; subclasses of the program keep their methods."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is original:
            return stand_in(*args, **kwargs)
        program_types = cls.__mro__[: cls.__mro__.index(original)]
        attributes = {name: value for each in reversed(program_types) for name, value in vars(each).items()}
        for name in ("__dict__", "__weakref__"):
            attributes.pop(name, None)
        instance: Any = type(cls.__name__, (stand_in,), {**attributes, "__class__": property(lambda self: cls)})
        created = instance.__new__(instance)
        stand_in.__init__(created)
        created.__init__(*args, **kwargs)
        return created

    return new


def _no_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: `__new__` has initialised the instance."""
