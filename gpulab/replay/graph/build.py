"""Build the graph of a run. Delays are set so that a replay without changes reproduces the recorded times."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.replay.graph.dependencies import host_waits, queue_of, room, stream_waits
from gpulab.replay.graph.graph import NONE, Device, Floats, Graph, Host, Stop, Usual
from gpulab.replay.graph.host_track import Track, track_of
from gpulab.run import Run

CALL_NS = 5_000.0  # a synchronising call that has nothing to wait for
LATENCY_NS, TURN_NS = 7_000.0, 1_000.0  # defaults if the run shows none: medians of V100 to B200
TURN_AT_MOST_NS = 8_000.0  # a longer gap on a stream has another cause than the usual gap between kernels
STILL_NS = 20_000.0  # a start this much later than its dependencies allow is unexplained


def graph_of(run: Run, steps: Steps, ledger: Ledger) -> Graph:
    """Return the graph of the recorded part of a run."""
    track = track_of(run, steps, ledger.device)
    before = _previous_on_stream(track)
    usual = _usual_delays(track, before)
    device, guessed, unexplained_ns = _device(run, track, before, usual)
    wait, wait_ns = host_waits(run, track)
    queue_wait, room_ns, own = room(track, queue_of(run))
    own = np.where(wait >= 0, np.minimum(own, CALL_NS), own)
    host = Host(
        stop=track.stop,
        event=track.event,
        from_ns=np.append(track.at_ns[:1], track.end_ns[:-1]).astype(float),
        at_ns=track.at_ns.astype(float),
        before_ns=track.before_ns,
        own_ns=own,
        wait=wait,
        wait_ns=wait_ns,
        room=queue_wait,
        room_ns=room_ns,
        first=track.first,
    )
    return Graph(
        run=run,
        steps=steps,
        ledger=ledger,
        host=host,
        device=device,
        usual=usual,
        step_first=track.step_first,
        step_last=track.step_last,
        part_spans=track.part_spans,
        unexplained_ns=unexplained_ns,
        guessed=guessed,
        crossed_ns=float(track.crossed_ns),
    )


def _previous_on_stream(track: Track) -> Ints:
    """For each device op, the previously launched op of the same stream, or -1."""
    device, stream = track.work["device"], track.work["stream"]
    order = np.lexsort((np.arange(len(stream)), stream, device))
    follows = (stream[order][1:] == stream[order][:-1]) & (device[order][1:] == device[order][:-1])
    before = np.full(len(stream), NONE, np.int64)
    before[order[1:][follows]] = order[:-1][follows]
    return before


def _usual_delays(track: Track, before: Ints) -> Usual:
    start, end = track.work.start_ns, track.work.end_ns
    called = track.call >= 0
    stream_free = np.where(before >= 0, end[before], np.iinfo(np.int64).min // 2)
    launched_at = np.where(called, track.at_ns[track.call], 0)
    unqueued = called & (launched_at > stream_free)
    gaps = (start - stream_free)[(before >= 0) & (start - stream_free > 0) & (start - stream_free < TURN_AT_MOST_NS)]
    return Usual(
        latency_ns=float(np.median((start - launched_at)[unqueued])) if unqueued.any() else LATENCY_NS,
        turn_ns=float(np.median(gaps)) if len(gaps) else TURN_NS,
    )


def _device(run: Run, track: Track, before: Ints, usual: Usual) -> tuple[Device, bool, float]:
    """Device ops with delays: the dependency that bound an op keeps its delay, the others get at most the usual one."""
    start, end = track.work.start_ns.astype(float), track.work.end_ns.astype(float)
    after, waits_recorded = stream_waits(run, track, before, usual.latency_ns)
    called = track.call >= 0
    at = track.at_ns[track.call] if len(track.at_ns) else start
    sources = (
        np.where(called, at, -np.inf),
        np.where(before >= 0, end[before], -np.inf),
        np.where(after >= 0, end[after], -np.inf),
    )
    usual_ns = (usual.latency_ns, usual.turn_ns, usual.turn_ns)
    recorded = [start - source for source in sources]
    delays = [np.minimum(delay, usual_delay) for delay, usual_delay in zip(recorded, usual_ns, strict=True)]
    reach = np.stack([source + delay for source, delay in zip(sources, delays, strict=True)])
    binding = reach.argmax(axis=0)
    unexplained = np.where(called & np.isfinite(reach.max(axis=0)), start - reach.max(axis=0), 0.0)
    unexplained[_started_inside_call(track)] = 0.0
    delays = [np.where(binding == index, recorded[index], delay) for index, delay in enumerate(delays)]
    latency, turn, lag = (np.where(np.isfinite(delay), delay, 0.0) for delay in delays)
    device = Device(
        event=track.work.event,
        dur_ns=end - start,
        call=track.call,
        latency_ns=latency,
        before=before,
        turn_ns=turn,
        after=after,
        lag_ns=lag,
        start_ns=start,
    )
    return device, not waits_recorded, float(unexplained[unexplained > STILL_NS].sum())


def _started_inside_call(track: Track) -> Mask:
    """Copies that started while their call was running: the host prepared them first, as from pageable memory."""
    call = np.maximum(track.call, 0)
    copies = (track.call >= 0) & (track.stop[call] == Stop.COPY_CALL) if len(track.stop) else track.call >= 0
    return np.asarray(copies & (track.work.start_ns < track.end_ns[call]), bool)


def generic(graph: Graph) -> Graph:
    """Return the graph with the usual delays for all device work, to test how much depends on recorded delays."""
    device, usual = graph.device, graph.usual

    def usual_or_unexplained(delay: Floats, usual_delay: float) -> Floats:
        # Unexplained delays stay: they are counted separately.
        return np.where(delay > usual_delay + STILL_NS, delay, usual_delay)

    return graph.with_device(
        latency_ns=usual_or_unexplained(device.latency_ns, usual.latency_ns),
        turn_ns=usual_or_unexplained(device.turn_ns, usual.turn_ns),
        lag_ns=usual_or_unexplained(device.lag_ns, usual.turn_ns),
    )
