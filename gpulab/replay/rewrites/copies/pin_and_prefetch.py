"""H2D copies: from pinned memory without waiting, or overlapped with kernels on a separate stream."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction, host_memory
from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.machine.link import best_link_bytes_per_s
from gpulab.analysis.steps.detection import Mask
from gpulab.hardware.architectures import usual_pcie_generation
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph, NodeKind
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.sweep import device_step_ns
from gpulab.run_facts import is_from_gpulab
from gpulab.tables import EventKind

DEFAULT_LANES = 16  # if the run does not record the link
CALL_NS = (5_000.0, 12_000.0)  # of an asynchronous copy call
PINNING_BYTES_PER_S = (12e9, 4e9)  # rate at which a core copies from pageable to pinned memory
# Share of that copy which every step pays if there is no DataLoader: none if batches are pinned once, when they are
# created, as the fix says; the worse half of the range assumes that batches are created in each step.
REPEATED_PINNING = (-1.0, 1.0)
COPY_LIMIT = "the copies to the GPU"


@dataclass(frozen=True, eq=False)
class H2DCopies:
    """H2D copies and the host nodes that wait for them."""

    ops: Ints  # indices of device ops
    call: Ints  # the host node that launched each
    pageable: Mask
    bytes: Ints  # -1 if not recorded
    recorded_ns: Floats  # recorded duration
    possible_waits: Ints  # host nodes that may wait for one: its call, and a synchronisation right after it

    def __len__(self) -> int:
        return len(self.ops)


@cached_per_run
def h2d_copies(graph: Graph) -> H2DCopies:
    """Return all H2D copies whose launch was recorded."""
    events, device = graph.run.event_rows, graph.device
    names = events.text("name")
    is_h2d = np.array([copy_direction(name) == "HtoD" for name in names.vocabulary] + [False])
    is_pageable = np.array([host_memory(name) == "pageable" for name in names.vocabulary] + [False])
    name_code = events["name"][device.event]
    copies = np.flatnonzero(events.is_kind(EventKind.MEMCPY)[device.event] & is_h2d[name_code] & (device.call >= 0))
    return H2DCopies(
        ops=copies,
        call=device.call[copies],
        pageable=is_pageable[name_code[copies]],
        bytes=events["bytes"][device.event[copies]],
        recorded_ns=events["dur_ns"][device.event[copies]].astype(float),
        possible_waits=_possible_waits(graph, copies),
    )


def _possible_waits(graph: Graph, copies: Ints) -> Ints:
    kind = np.append(graph.host.kind, [NodeKind.MARK, NodeKind.MARK])
    calls = np.unique(graph.device.call[copies])
    # One of the two nodes after the call: PyTorch synchronises in the same operator. A later wait is the user's.
    after = np.concatenate([calls + 1, calls[kind[calls + 1] != NodeKind.LAUNCH] + 2])
    return np.union1d(calls, after[kind[after] == NodeKind.SYNC])


def copy_waits(graph: Graph) -> Ints:
    """Return the host nodes that wait for an H2D copy in this graph."""
    copies = h2d_copies(graph)
    is_copy = np.zeros(len(graph.device) + 1, bool)  # one more, for those that wait for nothing
    is_copy[copies.ops] = True
    return copies.possible_waits[is_copy[graph.host.awaited_op[copies.possible_waits]]]


def pin_memory(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Batches are in pinned memory and are copied with `non_blocking=True`.

    Models: a copy from pageable memory goes through a pinned buffer of the driver, part by part; from pinned memory the
    GPU copies on its own, at the rate of the link. Each copy from pageable memory takes its bytes over that rate, never
    more than recorded; its call takes about 8 us, and the host does not wait. The rate is what large copies reach on
    the link that driver and slot negotiated (75-80 % of its lanes, 0.75 GB/s per lane of PCIe 3). If the link was not
    recorded, the usual link of such GPUs is assumed, and the range is wider. Each batch must be copied into pinned
    memory at 4-12 GB/s: by a thread if the DataLoader has workers, otherwise by the main thread, whose loading time
    grows accordingly. If a loop recorded by gpulab has no DataLoader, its data are assumed to be pinned once, when they
    are created, at no cost per step; at the worse end of the range, batches are created and pinned in each step.
    Locking pages costs another 0.1 to 0.4 ms per MB for the first batches only: PyTorch reuses pinned memory. After the
    wait is removed, the next wait in the loop, if any, waits for the same work; the replay models that.

    Cannot know: whether the host has enough memory to pin, and what else uses the link.
    """
    copies = h2d_copies(graph)
    faster = _durations_if_pinned(graph, copies, _rate(graph, draw))
    latency_ns = graph.device.latency_ns.copy()
    pageable = copies.ops[copies.pageable]
    latency_ns[pageable] = np.minimum(latency_ns[pageable], graph.usual_delays.latency_ns)
    unblocked = _without_waits(graph, copies, draw.between("copy call", *CALL_NS))
    growth = graph.device.dur_ns[copies.ops] / np.maximum(copies.recorded_ns, 1.0)  # a larger batch has more bytes
    rate = draw.ratio("pinning", *PINNING_BYTES_PER_S)
    pinning_ns = np.where(copies.pageable, np.maximum(copies.bytes, 0) * growth, 0.0) / rate * 1e9
    if _has_no_loader(graph):
        pinning_ns *= max(0.0, draw.between("pinned anew", *REPEATED_PINNING))
    return _add_pinning(unblocked.with_device(dur_ns=faster, latency_ns=latency_ns), copies, pinning_ns)


def prefetch(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The next batch is copied on a separate stream while the GPU computes the current one; implies `pin_memory`.

    Models: H2D copies no longer occupy the stream of the kernels. A step cannot be shorter than its copies: if they
    take longer than everything else, they set the pace. Costs as in `pin_memory`.

    Cannot know: how much copies and kernels slow each other down in GPU memory (a few per cent at most, because a link
    is much slower than that memory), and whether the next batch is ready in time, which the replay models only for the
    present loader.
    """
    return _off_stream(pin_memory(graph, value, draw))


def _off_stream(graph: Graph) -> Graph:
    """Remove copies from their stream; their total per step becomes a lower limit of the step."""
    copies = h2d_copies(graph)
    limits_ns = {**graph.limits_ns, COPY_LIMIT: device_step_ns(graph, copies.ops)}
    return replace(graph, limits_ns=limits_ns).without_work(copies.ops)


def free_copies(graph: Graph, value: Value) -> Graph:
    """Return the graph with H2D copies that take no time and delay nothing."""
    copies = h2d_copies(graph)
    latency = graph.device.latency_ns.copy()
    latency[copies.ops] = np.minimum(latency[copies.ops], graph.usual_delays.latency_ns)
    return _without_waits(graph, copies, 0.0).without_work(copies.ops).with_device(latency_ns=latency)


def link_bytes_per_s(graph: Graph) -> tuple[float, bool]:
    """Return the rate of a large pinned copy, and whether the run recorded its link."""
    rate = best_link_bytes_per_s(graph.run)
    if rate is not None:
        return rate, True
    gpu = next(iter(graph.run.machine.gpus), None)
    return pinned_copy_bytes_per_s(usual_pcie_generation(gpu), DEFAULT_LANES) or 0.0, False


def _rate(graph: Graph, draw: Draw) -> float:
    usual, is_known = link_bytes_per_s(graph)
    return usual * draw.ratio("link", *((1.1, 0.85) if is_known else (1.2, 0.65)))


def _durations_if_pinned(graph: Graph, copies: H2DCopies, rate: float) -> Floats:
    """Return the durations of all device work, with copies from pageable memory at this rate."""
    link_ns = copies.bytes / rate * 1e9
    share = np.clip(link_ns / np.maximum(copies.recorded_ns, 1.0), 0.0, 1.0)
    share = np.where(copies.pageable & (copies.bytes >= 0), share, 1.0)
    dur = graph.device.dur_ns.copy()
    dur[copies.ops] *= share
    return dur


def _without_waits(graph: Graph, copies: H2DCopies, call_ns: float) -> Graph:
    """Return the graph where nothing waits for the copies; calls that only waited cost nothing."""
    host = graph.host
    host_call_ns, awaited_op, return_delay_ns = host.call_ns.copy(), host.awaited_op.copy(), host.return_delay_ns.copy()
    waits = copy_waits(graph)
    awaited_op[waits], return_delay_ns[waits] = -1, 0.0
    host_call_ns[waits[host.kind[waits] == NodeKind.SYNC]] = 0.0
    calls = copies.call[copies.pageable]
    host_call_ns[calls] = np.minimum(host_call_ns[calls], call_ns)
    return graph.with_host(call_ns=host_call_ns, awaited_op=awaited_op, return_delay_ns=return_delay_ns)


def _add_pinning(graph: Graph, copies: H2DCopies, pinning_ns: Floats) -> Graph:
    """Without worker processes, and so without a pinning thread, the main thread copies each batch to pinned memory."""
    loader = training_loader(graph.run)
    if loader is not None and (loader.workers is None or loader.workers > 0):
        return graph
    loader_ns = graph.host.before_ns["loader"].copy()
    np.add.at(loader_ns, copies.call, pinning_ns)
    return graph.with_host(before_ns={**graph.host.before_ns, "loader": loader_ns})


def _has_no_loader(graph: Graph) -> bool:
    """Return whether no DataLoader loads the batches; foreign traces may not show the one they had."""
    return training_loader(graph.run) is None and is_from_gpulab(graph.run)


def _prefetch_refusal(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run contains no GPU work"
    copies = h2d_copies(graph)
    inside = graph.step_of[copies.call] >= 0
    if not inside.any():
        return "no step copies data from the host to the GPU"
    if (copies.pageable & inside & (copies.bytes < 0)).any():
        return "the sizes of its copies were not recorded"
    return None


def _pin_refusal(graph: Graph, value: Value) -> str | None:
    reason = _prefetch_refusal(graph, value)
    if reason is not None:
        return reason
    copies = h2d_copies(graph)
    inside = graph.step_of[copies.call] >= 0
    if not (copies.pageable & inside).any() and not (graph.step_of[copy_waits(graph)] >= 0).any():
        return "no H2D copy comes from pageable memory or makes the host wait"
    return None


PIN_CODE = '# in your DataLoader(...): pin_memory=True\nbatch = batch.to("cuda", non_blocking=True)'
PREFETCH_CODE = """copying = torch.cuda.Stream()
with torch.cuda.stream(copying):  # copies the next batch while the current one is computed
    following = batch.to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(copying)
following.record_stream(torch.cuda.current_stream())"""

COPY_REWRITES = (
    Rewrite(
        name="pin_memory",
        edit=pin_memory,
        best_case=free_copies,
        grade="B",
        about="batches in pinned memory, copied with non_blocking=True",
        bound_label="copies at no cost",
        refusal_reason=_pin_refusal,
        cost="host memory for the pinned batches, which the system cannot swap out",
        code=lambda graph, value: PIN_CODE,
    ),
    Rewrite(
        name="prefetch",
        edit=prefetch,
        best_case=free_copies,
        grade="B",
        about="the next batch copied while kernels run (a separate CUDA stream)",
        bound_label="copies at no cost",
        refusal_reason=_prefetch_refusal,
        cost="GPU memory for one more batch, and pinned host memory",
        code=lambda graph, value: PREFETCH_CODE,
    ),
)
