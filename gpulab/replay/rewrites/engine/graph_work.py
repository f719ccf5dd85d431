"""The device ops of a graph, classified for rewrites: kernel families, GPU, and the calls that launch them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction
from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import ClassifiedWork, KernelFamily, classify_work
from gpulab.analysis.kernels.optimizers import mask_inside, optimizer_steps
from gpulab.analysis.steps.ledger import main_device
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.intervals import Ints, Spans
from gpulab.replay.graph.graph import CALL_PARTS, Floats, Graph, NodeKind
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.run import Gpu
from gpulab.tables import EventKind

DISPATCH_PARTS = (*CALL_PARTS, "overlap")  # with "overlap", nested calls count once
KERNEL_START_NS = 2_000.0  # part of a kernel's time that faster arithmetic does not shorten: start and end


@cached_per_run
def is_host_device_copy(graph: Graph) -> Mask:
    """Mask of the device ops that are copies between host and device."""
    return graph.run.event_rows.matching(lambda word: copy_direction(word) in ("HtoD", "DtoH"))[graph.device.event]


@cached_per_run
def classified_ops(graph: Graph) -> ClassifiedWork:
    """Return the classification of the graph's device ops."""
    gpu = gpu_of(graph)
    call = graph.device.call
    caller = np.where(call >= 0, graph.host.event[np.maximum(call, 0)], -1) if len(graph.host) else call
    return classify_work(graph.run, graph.device.event, caller, gpu)


def gpu_of(graph: Graph) -> Gpu | None:
    """Return the GPU that did the work, named after the run's source if no GPU is listed; None on a CPU."""
    if not graph.on_gpu:
        return None
    gpus = graph.run.machine.gpus
    gpu = next((each for each in gpus if each.index == main_device(graph.run)), gpus[0] if gpus else None)
    return gpu or Gpu(index=0, name=graph.run.source.device)


def gpu_spec_of(graph: Graph) -> GpuSpec | None:
    """Return the specification of that GPU; None if it is not in the table."""
    return spec_of(gpu_of(graph))


@dataclass(frozen=True, eq=False)
class CallRoles:
    """Masks over host nodes, by role."""

    updates: Mask  # inside an optimizer's step
    clears: Mask  # inside an optimizer's zero_grad
    update_starts: Ints  # the first node of each optimizer step that launches work
    single_launches: Mask  # launches one kernel
    model: Mask  # launches kernels of the forward or backward pass
    kernels: Mask  # launches kernels
    h2d_copies: Mask  # copies to the device
    host_device_copies: Mask  # copies between device and host, in either direction
    d2d_copies: Mask  # copies within the device


@cached_per_run
def call_roles(graph: Graph) -> CallRoles:
    """Return the roles of the host nodes."""
    run, host = graph.run, graph.host
    events = run.event_rows
    updates = mask_inside(events, host.event, optimizer_steps(run))
    names = events.text("name")
    clearing = events.matching(lambda word: word.startswith("Optimizer.zero_grad#"))
    clears = mask_inside(
        events, host.event, events.select(np.flatnonzero(clearing & events.is_kind(EventKind.ANNOTATION)))
    )
    count = np.diff(host.first_op)
    launching = np.flatnonzero(updates & (count > 0))
    first_nodes = launching[np.flatnonzero(np.diff(_optimizer_step_of(graph, launching), prepend=-2) != 0)]
    first = np.minimum(host.first_op[:-1], max(0, len(graph.device) - 1))
    family = classified_ops(graph).family
    node_family = family[first] if len(family) else np.zeros(len(host), np.int64)
    kernel = (count > 0) & ~np.isin(node_family, (KernelFamily.COPY, KernelFamily.FILL, KernelFamily.COLLECTIVE))
    directions = [copy_direction(word) for word in names.vocabulary]
    work = graph.device.event[first] if len(family) else np.full(len(host), -1)
    has_work = (count > 0) & (len(family) > 0)
    across = {
        way: has_work & names.matching(copy_direction == way for copy_direction in directions)[work]
        for way in ("HtoD", "DtoH", "DtoD")
    }
    return CallRoles(
        updates=updates,
        clears=clears,
        update_starts=first_nodes,
        single_launches=kernel & (count == 1),
        model=kernel & ~updates & ~clears,
        kernels=kernel,
        h2d_copies=across["HtoD"] & (host.kind == NodeKind.COPY_CALL),
        host_device_copies=across["HtoD"] | across["DtoH"],
        d2d_copies=across["DtoD"],
    )


def _optimizer_step_of(graph: Graph, stops: Ints) -> Ints:
    """Return the index of the optimizer step that each of these nodes is in, counted by start times."""
    starts = np.sort(optimizer_steps(graph.run)["start_ns"])
    return np.asarray(np.searchsorted(starts, graph.host.start_ns[stops], side="right"), np.int64)


@cached_per_run
def optimizer_spans(graph: Graph) -> Spans:
    """Spans in which the host is inside `Optimizer.step`."""
    return optimizer_steps(graph.run).spans()


@cached_per_run
def update_spans(graph: Graph) -> Spans:
    """Spans in which the host is inside `Optimizer.step` or `zero_grad`."""
    events = graph.run.event_rows
    inside = events.matching(lambda word: word.startswith("Optimizer.")) & events.is_kind(EventKind.ANNOTATION)
    return events.select(np.flatnonzero(inside)).spans()


def call_cost_ns(graph: Graph) -> Floats:
    """Return the host cost of each node: the operators before it, and its own call."""
    before = sum((graph.host.before_ns.get(part, 0.0) for part in DISPATCH_PARTS), np.zeros(len(graph.host)))
    return np.asarray(np.maximum(before, 0.0) + graph.host.call_ns, np.float64)


def scale_kernels(dur_ns: Floats, factor: Floats) -> Floats:
    """Scale kernel durations, except for the time it takes to start a kernel."""
    least = np.minimum(dur_ns, KERNEL_START_NS)
    return np.asarray(least + (dur_ns - least) * factor, np.float64)


def is_training(graph: Graph) -> bool:
    """Return whether an optimizer step was recorded."""
    return bool(call_roles(graph).updates.any())
