"""What stands for a class of torch.cuda is a class, and instances belong to the class that was imported before."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch.cuda import CUDAGraph, Event, Stream  # noqa: E402 - imported before any virtual GPU

from gpulab.errors import CaptureError  # noqa: E402
from tests.support.virtual.cuda_programs import device  # noqa: E402
from tests.support.virtual.device_programs import patched_owners  # noqa: E402


def _classes():
    owners = patched_owners()
    return {(owner, name) for owner in owners for name, value in vars(owner).items() if issubclass(type(value), type)}


def test_every_patched_class_stays_a_class():
    before = _classes()
    with device():
        torch.ones(1, device="cuda")
        changed = [(owner, name) for owner, name in before if not inspect.isclass(getattr(owner, name))]
        assert changed == []
        for owner, name in before:
            if not name.startswith("_") and getattr(owner, "__name__", "").startswith("torch.cuda"):
                assert getattr(owner, name) | None is not None


def test_instances_belong_to_the_classes_imported_before():
    with device():
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        assert isinstance(stream, Stream)
        assert isinstance(stream, torch.cuda.Stream)
        assert isinstance(event, Event)
        assert not isinstance(event, Stream)
        assert isinstance(torch.cuda.current_stream(), Stream)
        assert isinstance(torch.Generator("cuda"), torch.Generator)
        assert isinstance(Stream(), torch.cuda.Stream)


def test_a_subclass_of_a_stream_has_its_methods():
    class Labelled(torch.cuda.Stream):
        def __init__(self, label):
            super().__init__()
            self.label = label

        def twice(self):
            return self.label * 2

    with device() as gpu:
        stream = Labelled("a")
        assert isinstance(stream, Labelled)
        assert stream.twice() == "aa"
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream().twice() == "aa"
        stream.synchronize()
    assert gpu.assumptions == ()


def test_a_name_imported_inside_one_block_works_in_the_next():
    with device():
        from torch.cuda import Event as EventInside
        from torch.cuda import Stream as StreamInside
    with device():
        event = EventInside()
        event.record(StreamInside())
        event.synchronize()
        assert event.query()
    with pytest.raises(RuntimeError):
        StreamInside()


@pytest.mark.parametrize("name", ["CUDAGraph", "graph"])
def test_a_graph_is_a_class_that_refuses_instances(name):
    with device():
        graph = getattr(torch.cuda, name)
        assert CUDAGraph | None == torch.cuda.CUDAGraph | None
        assert issubclass(type("Graph", (graph,), {}), graph)
        assert not isinstance(3, graph)
        with pytest.raises(CaptureError, match="CUDA graph"):
            graph(*[None] * (name == "graph"))


def test_devices_are_contexts():
    with device():
        tensor = torch.ones(1, device="cuda")
        with torch.cuda.device(0), torch.cuda.device_of(tensor), torch.cuda.device("cuda:0"):
            assert torch.cuda.current_device() == 0
        with pytest.raises(ValueError, match="Expected a cuda device"):
            torch.cuda.device("cpu")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.device(1)
