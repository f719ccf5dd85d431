"""Build the graph of a run. Delays are set so that a replay without changes reproduces the recorded times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import stream_keys
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, no_spans
from gpulab.replay.graph.cpu_exchanges import awaited_exchanges
from gpulab.replay.graph.dependencies import (
    awaited_device_ops,
    launch_queue_capacity,
    launch_queue_waits,
    no_queue,
    stream_waits,
)
from gpulab.replay.graph.graph import NONE, DeviceOps, Floats, Graph, HostNodes, NodeKind, UsualDelays
from gpulab.replay.graph.host_track import HostTrack, build_host_track
from gpulab.run import Run

CALL_NS = 5_000.0  # a synchronising call that has nothing to wait for
LATENCY_NS, GAP_NS = 7_000.0, 1_000.0  # defaults if the run shows none: medians of V100 to B200
MAX_GAP_NS = 8_000.0  # a longer gap on a stream has another cause than the usual gap between kernels
UNEXPLAINED_NS = 20_000.0  # a start this much later than its dependencies allow is unexplained


def build_graph(run: Run, steps: Steps, ledger: Ledger) -> Graph:
    """Return the graph of the recorded part of a run."""
    track = build_host_track(run, steps, ledger.device)
    before = _previous_on_stream(track)
    usual = _usual_delays(track, before)
    on_gpu = ledger.device == "gpu"
    device, guessed, unexplained_ns = _device(run, track, before, usual, on_gpu)
    waits = _waits_for_gpu(run, track) if on_gpu else _waits_for_ranks(track)
    host = HostNodes(
        kind=track.kind,
        event=track.event,
        previous_end_ns=np.append(track.at_ns[:1], track.end_ns[:-1]).astype(float),
        start_ns=track.at_ns.astype(float),
        before_ns=waits.before_ns,
        call_ns=waits.call_ns,
        awaited_op=waits.awaited_op,
        return_delay_ns=waits.return_delay_ns,
        queue_op=waits.queue_op,
        queue_delay_ns=waits.queue_delay_ns,
        first_op=track.first,
    )
    return Graph(
        run=run,
        steps=steps,
        ledger=ledger,
        host=host,
        device=device,
        usual_delays=usual,
        step_start_node=track.step_first,
        step_end_node=track.step_last,
        part_spans=track.part_spans,
        unexplained_ns=unexplained_ns,
        waits_inferred=guessed,
        concurrent_calls_ns=float(track.concurrent_calls_ns),
    )


@dataclass(frozen=True, eq=False)
class _Waits:
    """What the host nodes wait for, and what they cost without waiting; the columns of HostNodes."""

    before_ns: Mapping[str, Floats]
    call_ns: Floats
    awaited_op: Ints
    return_delay_ns: Floats
    queue_op: Ints
    queue_delay_ns: Floats


def _waits_for_gpu(run: Run, track: HostTrack) -> _Waits:
    """Calls wait for device work, and for a free slot in the launch queue."""
    awaited_op, return_delay_ns = awaited_device_ops(run, track)
    queue_op, queue_delay_ns, call_ns = launch_queue_waits(track, launch_queue_capacity(run))
    call_ns = np.where(awaited_op >= 0, np.minimum(call_ns, CALL_NS), call_ns)
    return _Waits(track.before_ns, call_ns, awaited_op, return_delay_ns, queue_op, queue_delay_ns)


def _waits_for_ranks(track: HostTrack) -> _Waits:
    """The main thread of a CPU rank waits for exchanges, in time that is no host work then."""
    waiting = track.part_spans.get("communication", no_spans())
    awaited_op, return_delay_ns = awaited_exchanges(waiting, track.at_ns, track.kind, track.work)
    before_ns = dict(track.before_ns)
    if "communication" in before_ns:
        before_ns["communication"] = np.where(awaited_op >= 0, 0.0, before_ns["communication"])
    count = len(track.kind)
    call_ns = track.dur_ns.astype(float)
    return _Waits(before_ns, call_ns, awaited_op, return_delay_ns, no_queue(count), np.zeros(count))


def _previous_on_stream(track: HostTrack) -> Ints:
    """For each device op, the previously launched op of the same stream, or -1."""
    stream = stream_keys(track.work)
    order = np.argsort(stream, kind="stable")
    follows = stream[order][1:] == stream[order][:-1]
    previous_op = np.full(len(stream), NONE, np.int64)
    previous_op[order[1:][follows]] = order[:-1][follows]
    return previous_op


def _usual_delays(track: HostTrack, previous_op: Ints) -> UsualDelays:
    start, end = track.work.start_ns, track.work.end_ns
    is_launched = track.call >= 0
    stream_free = np.where(previous_op >= 0, end[previous_op], np.iinfo(np.int64).min // 2)
    launched_at = np.where(is_launched, track.at_ns[track.call], 0)
    unqueued = is_launched & (launched_at > stream_free)
    gaps = (start - stream_free)[(previous_op >= 0) & (start - stream_free > 0) & (start - stream_free < MAX_GAP_NS)]
    return UsualDelays(
        latency_ns=float(np.median((start - launched_at)[unqueued])) if unqueued.any() else LATENCY_NS,
        gap_ns=float(np.median(gaps)) if len(gaps) else GAP_NS,
    )


def _device(
    run: Run, track: HostTrack, previous_op: Ints, usual: UsualDelays, on_gpu: bool
) -> tuple[DeviceOps, bool, float]:
    """Device ops with delays: the dependency that bound an op keeps its delay, the others get at most the usual one."""
    start, end = track.work.start_ns.astype(float), track.work.end_ns.astype(float)
    awaited_op, waits_recorded = np.full(len(start), NONE, np.int64), True  # threads of a backend wait for no other
    if on_gpu:
        awaited_op, waits_recorded = stream_waits(run, track, previous_op, usual.latency_ns)
    is_launched = track.call >= 0
    at = track.at_ns[track.call] if len(track.at_ns) else start
    sources = (
        np.where(is_launched, at, -np.inf),
        np.where(previous_op >= 0, end[previous_op], -np.inf),
        np.where(awaited_op >= 0, end[awaited_op], -np.inf),
    )
    usual_ns = (usual.latency_ns, usual.gap_ns, usual.gap_ns)
    recorded = [start - source for source in sources]
    delays = [np.minimum(delay, usual_delay) for delay, usual_delay in zip(recorded, usual_ns, strict=True)]
    reach = np.stack([source + delay for source, delay in zip(sources, delays, strict=True)])
    binding = reach.argmax(axis=0)
    unexplained = np.where(is_launched & np.isfinite(reach.max(axis=0)), start - reach.max(axis=0), 0.0)
    unexplained[_started_inside_call(track)] = 0.0
    delays = [np.where(binding == index, recorded[index], delay) for index, delay in enumerate(delays)]
    latency_ns, gap_ns, awaited_delay_ns = (np.where(np.isfinite(delay), delay, 0.0) for delay in delays)
    device = DeviceOps(
        event=track.work.event_rows,
        dur_ns=end - start,
        call=track.call,
        latency_ns=latency_ns,
        previous_op=previous_op,
        gap_ns=gap_ns,
        awaited_op=awaited_op,
        awaited_delay_ns=awaited_delay_ns,
        start_ns=start,
    )
    return device, not waits_recorded, float(unexplained[unexplained > UNEXPLAINED_NS].sum())


def _started_inside_call(track: HostTrack) -> Mask:
    """Copies that started while their call was running: the host prepared them first, as from pageable memory."""
    call = np.maximum(track.call, 0)
    copies = (track.call >= 0) & (track.kind[call] == NodeKind.COPY_CALL) if len(track.kind) else track.call >= 0
    return np.asarray(copies & (track.work.start_ns < track.end_ns[call]), bool)


def with_usual_delays(graph: Graph) -> Graph:
    """Return the graph with the usual delays for all device work, to test how much depends on recorded delays."""
    device, usual = graph.device, graph.usual_delays

    def usual_or_unexplained(delay: Floats, usual_delay: float) -> Floats:
        # Unexplained delays stay: they are counted separately.
        return np.where(delay > usual_delay + UNEXPLAINED_NS, delay, usual_delay)

    return graph.with_device(
        latency_ns=usual_or_unexplained(device.latency_ns, usual.latency_ns),
        gap_ns=usual_or_unexplained(device.gap_ns, usual.gap_ns),
        awaited_delay_ns=usual_or_unexplained(device.awaited_delay_ns, usual.gap_ns),
    )
