"""Copies to the device: from pinned memory and without waiting, or beside the kernels on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpulab.analysis.copies.table import direction, host_memory
from gpulab.analysis.data.loader import leading_loader
from gpulab.analysis.machine.link import practical_bytes_per_s
from gpulab.analysis.steps.detection import Mask
from gpulab.hardware.architectures import usual_pcie_generation
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph, Stop
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.sweep import device_step_ns
from gpulab.tables import Kind

USUAL_LANES = 16  # where the run does not tell the link
CALL_NS = (5_000.0, 12_000.0)  # an asynchronous copy call
PINNING_BYTES_PER_S = (12e9, 4e9)  # what a core copies from ordinary to pinned memory
# How much of that each step pays where no loader builds its batches: nothing if they are pinned once, where they are
# made, as the fix says; the worse half of the range has more and more of them made anew.
PINNED_ANEW = (-1.0, 1.0)
COPIES = "the copies to the GPU"


@dataclass(frozen=True, eq=False)
class Writes:
    """Copies from host to device, and who waits for them."""

    work: Ints  # which device work
    call: Ints  # the stop that called for each
    pageable: Mask
    bytes: Ints  # -1 where the trace does not tell
    recorded_ns: Floats  # how long each took
    asking: Ints  # stops that may wait for one: its call, and a synchronisation right after that

    def __len__(self) -> int:
        return len(self.work)


@once
def writes(graph: Graph) -> Writes:
    """Every copy from host to device whose call is in the run."""
    events, device = graph.run.event_rows, graph.device
    words = events.words("name")
    towards = np.array([direction(word) == "HtoD" for word in words.vocabulary] + [False])
    paged = np.array([host_memory(word) == "pageable" for word in words.vocabulary] + [False])
    code = events["name"][device.event]
    copies = np.flatnonzero((events["kind"][device.event] == Kind.MEMCPY) & towards[code] & (device.call >= 0))
    return Writes(
        work=copies,
        call=device.call[copies],
        pageable=paged[code[copies]],
        bytes=events["bytes"][device.event[copies]],
        recorded_ns=events["dur_ns"][device.event[copies]].astype(float),
        asking=_asking(graph, copies),
    )


def _asking(graph: Graph, copies: Ints) -> Ints:
    stop = np.append(graph.host.stop, [Stop.MARK, Stop.MARK])
    calls = np.unique(graph.device.call[copies])
    # Within the two stops after the call: PyTorch synchronises in the same operator. A later wait is the user's.
    after = np.concatenate([calls + 1, calls[stop[calls + 1] != Stop.LAUNCH] + 2])
    return np.union1d(calls, after[stop[after] == Stop.SYNC])


def waiting(graph: Graph) -> Ints:
    """The stops that wait for a copy to the device, as things are in this graph."""
    found = writes(graph)
    is_copy = np.zeros(len(graph.device) + 1, bool)  # one more, for those that wait for nothing
    is_copy[found.work] = True
    return found.asking[is_copy[graph.host.wait[found.asking]]]


def pin_memory(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Batches lie in pinned memory and are copied with `non_blocking=True`.

    Models: a copy from pageable memory is done in pieces, through a pinned buffer of the driver's; from pinned memory
    the GPU fetches it alone, at the rate of the link. Each copy from pageable memory takes its bytes over that rate,
    never more than was recorded, its call about 8 us, and the host waits for none. The rate is what large copies reach
    on the link that driver and slot agree on (75-80 % of its lanes, 0.75 GB/s a lane of PCIe 3); where that was not
    recorded, on the link such GPUs are sold with, and the range is wider. Somebody must copy each batch into pinned
    memory, at 4-12 GB/s: a thread beside the loop if the DataLoader has workers, else the main thread, whose loading
    is then longer by it. Where a loop recorded by gpulab has no DataLoader, its data are pinned once, where they are
    made, and no step pays; batches made anew in each step would, up to all of it at the worse end of the range. To lock
    pages costs 0.1 to 0.4 ms a MB on top, for the first batches: PyTorch keeps locked memory and gives it out again.
    Without the wait the next one, if there is any, waits for the same work: the replay sees to that.

    Cannot know: whether the host has enough memory to pin, and what else uses the link.
    """
    found = writes(graph)
    faster = _pinned(graph, found, _rate(graph, draw))
    begins = graph.device.latency_ns.copy()
    paged = found.work[found.pageable]
    begins[paged] = np.minimum(begins[paged], graph.usual.latency_ns)
    calls = _unblocked(graph, found, draw.between("copy call", *CALL_NS))
    grown = graph.device.dur_ns[found.work] / np.maximum(found.recorded_ns, 1.0)  # a larger batch has more bytes
    rate = draw.ratio("pinning", *PINNING_BYTES_PER_S)
    pinning_ns = np.where(found.pageable, np.maximum(found.bytes, 0) * grown, 0.0) / rate * 1e9
    if _made_outside(graph):
        pinning_ns *= max(0.0, draw.between("pinned anew", *PINNED_ANEW))
    return _pinning(calls.with_device(dur_ns=faster, latency_ns=begins), found, pinning_ns)


def prefetch(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The next batch is copied on a stream of its own while the GPU computes the current one; implies `pin_memory`.

    Models: copies to the GPU then take no turn on the stream of the kernels. A step cannot be shorter than its copies:
    where they take longer than all else, they set the pace. Priced as `pin_memory`.

    Cannot know: how much copies and kernels slow one another in the GPU's memory (a few per cent at most: a link is
    much slower than that memory), and whether the next batch is there in time, which the replay of loading tells only
    for the loader as it is.
    """
    return _aside(pin_memory(graph, value, draw))


def _aside(graph: Graph) -> Graph:
    """Copies off the stream they stand on; their sum per step becomes what a step cannot be shorter than."""
    found = writes(graph)
    limits_ns = {**graph.limits_ns, COPIES: device_step_ns(graph, found.work)}
    return replace(graph, limits_ns=limits_ns).without_work(found.work)


def free_copies(graph: Graph, value: Value) -> Graph:
    """Copies to the device that take no time and hold nobody up."""
    found = writes(graph)
    latency = graph.device.latency_ns.copy()
    latency[found.work] = np.minimum(latency[found.work], graph.usual.latency_ns)
    return _unblocked(graph, found, 0.0).without_work(found.work).with_device(latency_ns=latency)


def link_bytes_per_s(graph: Graph) -> tuple[float, bool]:
    """What a large pinned copy reaches, and whether the run tells its link."""
    told = practical_bytes_per_s(graph.run)
    if told is not None:
        return told, True
    gpu = next(iter(graph.run.machine.gpus), None)
    return pinned_copy_bytes_per_s(usual_pcie_generation(gpu), USUAL_LANES) or 0.0, False


def _rate(graph: Graph, draw: Draw) -> float:
    usual, known = link_bytes_per_s(graph)
    return usual * draw.ratio("link", *((1.1, 0.85) if known else (1.2, 0.65)))


def _pinned(graph: Graph, found: Writes, rate: float) -> Floats:
    """How long all device work takes, with copies from pageable memory at this rate."""
    alone = found.bytes / rate * 1e9
    share = np.clip(alone / np.maximum(found.recorded_ns, 1.0), 0.0, 1.0)
    share = np.where(found.pageable & (found.bytes >= 0), share, 1.0)
    dur = graph.device.dur_ns.copy()
    dur[found.work] *= share
    return dur


def _unblocked(graph: Graph, found: Writes, call_ns: float) -> Graph:
    """Nobody waits for the copies; calls that only did so are not made."""
    host = graph.host
    own, wait, wait_ns = host.own_ns.copy(), host.wait.copy(), host.wait_ns.copy()
    freed = waiting(graph)
    wait[freed], wait_ns[freed] = -1, 0.0
    own[freed[host.stop[freed] == Stop.SYNC]] = 0.0
    calls = found.call[found.pageable]
    own[calls] = np.minimum(own[calls], call_ns)
    return graph.with_host(own_ns=own, wait=wait, wait_ns=wait_ns)


def _pinning(graph: Graph, found: Writes, each_ns: Floats) -> Graph:
    """Where no worker process is there to need a thread for it, the main thread copies each batch to pinned memory."""
    loader = leading_loader(graph.run)
    if loader is not None and (loader.workers is None or loader.workers > 0):
        return graph
    spent = graph.host.before_ns["loader"].copy()
    np.add.at(spent, found.call, each_ns)
    return graph.with_host(before_ns={**graph.host.before_ns, "loader": spent})


def _made_outside(graph: Graph) -> bool:
    """Whether no loader builds the batches; a trace of others' may have had one that it does not show."""
    return leading_loader(graph.run) is None and graph.run.source.how in ("measured", "virtual")


def _lacking(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run holds no work of a GPU"
    found = writes(graph)
    inside = graph.step_of[found.call] >= 0
    if not inside.any():
        return "no step of it copies anything from the host to the GPU"
    if (found.pageable & inside & (found.bytes < 0)).any():
        return "it does not tell how many bytes were copied"
    return None


def _lacking_pageable(graph: Graph, value: Value) -> str | None:
    why = _lacking(graph, value)
    if why is not None:
        return why
    found = writes(graph)
    inside = graph.step_of[found.call] >= 0
    if not (found.pageable & inside).any() and not (graph.step_of[waiting(graph)] >= 0).any():
        return "no copy to the GPU comes from pageable memory, or is waited for"
    return None


PIN_CODE = '# in your DataLoader(...): pin_memory=True\nbatch = batch.to("cuda", non_blocking=True)'
PREFETCH_CODE = """copying = torch.cuda.Stream()
with torch.cuda.stream(copying):  # the next batch, while the current one is computed
    following = batch.to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(copying)
following.record_stream(torch.cuda.current_stream())"""

COPYING = (
    Rewrite(
        name="pin_memory",
        edit=pin_memory,
        ceiling=free_copies,
        grade="B",
        about="batches in pinned memory, copied without waiting",
        ceiling_means="even free copies",
        lacking=_lacking_pageable,
        price="host memory for the pinned batches, which nothing else can use",
        code=lambda graph, value: PIN_CODE,
    ),
    Rewrite(
        name="prefetch",
        edit=prefetch,
        ceiling=free_copies,
        grade="B",
        about="the next batch copied beside the kernels",
        ceiling_means="even free copies",
        lacking=_lacking,
        price="GPU memory for one batch more, and pinned host memory",
        code=lambda graph, value: PREFETCH_CODE,
    ),
)
