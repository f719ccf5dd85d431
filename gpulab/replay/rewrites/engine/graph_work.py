"""The device work of a graph as rewrites see it: what each piece is, on which GPU, and what its calls are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.table import direction
from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family, Pieces, pieces
from gpulab.analysis.kernels.optimizers import ranges, within
from gpulab.analysis.steps.ledger import main_device
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.intervals import Ints, Spans
from gpulab.replay.graph.graph import CALLING, Floats, Graph, Stop
from gpulab.replay.rewrites.engine.cache import once
from gpulab.run import Gpu
from gpulab.tables import Kind

CALLED = (*CALLING, "overlap")  # a call inside another is counted once
LEAST_NS = 2_000.0  # of a kernel's time no faster arithmetic takes away: to start and to finish


@once
def across(graph: Graph) -> Mask:
    """Which device work is a copy between host and device."""
    return graph.run.event_rows.matching(lambda word: direction(word) in ("HtoD", "DtoH"))[graph.device.event]


@once
def pieces_of(graph: Graph) -> Pieces:
    """What each piece of the graph's device work is."""
    gpu = gpu_of(graph)
    call = graph.device.call
    caller = np.where(call >= 0, graph.host.event[np.maximum(call, 0)], -1) if len(graph.host) else call
    return pieces(graph.run, graph.device.event, caller, gpu)


def gpu_of(graph: Graph) -> Gpu | None:
    """The GPU that did the work; by the name of the source where no GPU is listed; None on a CPU."""
    if not graph.on_gpu:
        return None
    gpus = graph.run.machine.gpus
    found = next((gpu for gpu in gpus if gpu.index == main_device(graph.run)), gpus[0] if gpus else None)
    return found or Gpu(index=0, name=graph.run.source.device)


def gpu_spec_of(graph: Graph) -> GpuSpec | None:
    """What that GPU can do; None where it is not listed."""
    return spec_of(gpu_of(graph))


@dataclass(frozen=True, eq=False)
class Calls:
    """Which stops are what."""

    updates: Mask  # inside an optimizer's step
    clears: Mask  # inside an optimizer's zero_grad
    opens: Ints  # the first stop of each optimizer's step that calls for work
    launches: Mask  # it starts one kernel
    model: Mask  # it starts kernels of the forward or backward pass
    kernels: Mask  # it starts kernels
    copies_in: Mask  # it copies to the device
    copies_across: Mask  # between device and host, either way
    copies_within: Mask  # within the device


@once
def calls(graph: Graph) -> Calls:
    """What the stops of the host's track are."""
    run, host = graph.run, graph.host
    events = run.event_rows
    updates = within(events, host.event, ranges(run))
    names = events.words("name")
    clearing = events.matching(lambda word: word.startswith("Optimizer.zero_grad#"))
    clears = within(events, host.event, events.where(np.flatnonzero(clearing & (events["kind"] == Kind.ANNOTATION))))
    count = np.diff(host.first)
    working = np.flatnonzero(updates & (count > 0))
    opens = working[np.flatnonzero(np.diff(_range_of(graph, working), prepend=-2) != 0)]
    first = np.minimum(host.first[:-1], max(0, len(graph.device) - 1))
    family = pieces_of(graph).family
    of = family[first] if len(family) else np.zeros(len(host), np.int64)
    kernel = (count > 0) & ~np.isin(of, (Family.COPY, Family.FILL, Family.COLLECTIVE))
    ways = [direction(word) for word in names.vocabulary]
    work = graph.device.event[first] if len(family) else np.full(len(host), -1)
    some = (count > 0) & (len(family) > 0)
    across = {way: some & names.matching(told == way for told in ways)[work] for way in ("HtoD", "DtoH", "DtoD")}
    return Calls(
        updates=updates,
        clears=clears,
        opens=opens,
        launches=kernel & (count == 1),
        model=kernel & ~updates & ~clears,
        kernels=kernel,
        copies_in=across["HtoD"] & (host.stop == Stop.COPY_CALL),
        copies_across=across["HtoD"] | across["DtoH"],
        copies_within=across["DtoD"],
    )


def _range_of(graph: Graph, stops: Ints) -> Ints:
    """In which of the optimizer's steps each of these stops is, counted by their beginnings."""
    begun = np.sort(ranges(graph.run)["start_ns"])
    return np.asarray(np.searchsorted(begun, graph.host.at_ns[stops], side="right"), np.int64)


@once
def optimizer_spans(graph: Graph) -> Spans:
    """When the host was inside an optimizer's step."""
    return ranges(graph.run).spans()


@once
def no_model_spans(graph: Graph) -> Spans:
    """When the host was inside an optimizer's step or its zero_grad."""
    events = graph.run.event_rows
    inside = events.matching(lambda word: word.startswith("Optimizer.")) & (events["kind"] == Kind.ANNOTATION)
    return events.where(np.flatnonzero(inside)).spans()


def calling_ns(graph: Graph) -> Floats:
    """What each stop costs by calling: the operators before it, and its own call."""
    before = sum((graph.host.before_ns.get(part, 0.0) for part in CALLED), np.zeros(len(graph.host)))
    return np.asarray(np.maximum(before, 0.0) + graph.host.own_ns, np.float64)


def faster(dur_ns: Floats, factor: Floats) -> Floats:
    """Kernels made faster: all of their time but what it takes to start one."""
    least = np.minimum(dur_ns, LEAST_NS)
    return np.asarray(least + (dur_ns - least) * factor, np.float64)


def training(graph: Graph) -> bool:
    """Whether an optimizer's step was recorded."""
    return bool(calls(graph).updates.any())
