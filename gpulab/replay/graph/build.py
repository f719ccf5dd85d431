"""From a run to its graph: every delay is set so that replaying an unchanged graph gives the recorded times."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.replay.graph.dependencies import host_waits, queue_of, room, stream_waits
from gpulab.replay.graph.graph import NONE, Device, Floats, Graph, Host, Stop, Usual
from gpulab.replay.graph.host_track import Track, track_of
from gpulab.run import Run

CALL_NS = 5_000.0  # a synchronising call that finds nothing to wait for
LATENCY_NS, TURN_NS = 7_000.0, 1_000.0  # where the run shows none of its own: medians of V100 to B200
TURN_AT_MOST_NS = 8_000.0  # a longer gap between two pieces of work of a stream is no mere turn
STILL_NS = 20_000.0  # device work that begins so much later than anything explains


def graph_of(run: Run, steps: Steps, ledger: Ledger) -> Graph:
    """The graph of a run's recorded part."""
    track = track_of(run, steps, ledger.device)
    before = _before_on_stream(track)
    usual = _usual(track, before)
    device, guessed, unexplained_ns = _device(run, track, before, usual)
    wait, wait_ns = host_waits(run, track)
    target, room_ns, own = room(track, queue_of(run))
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
        room=target,
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


def _before_on_stream(track: Track) -> Ints:
    """For each piece of work the one called for before it on the same stream."""
    device, stream = track.work["device"], track.work["stream"]
    order = np.lexsort((np.arange(len(stream)), stream, device))
    follows = (stream[order][1:] == stream[order][:-1]) & (device[order][1:] == device[order][:-1])
    before = np.full(len(stream), NONE, np.int64)
    before[order[1:][follows]] = order[:-1][follows]
    return before


def _usual(track: Track, before: Ints) -> Usual:
    start, end = track.work.start_ns, track.work.end_ns
    called = track.call >= 0
    free = np.where(before >= 0, end[before], np.iinfo(np.int64).min // 2)
    at = np.where(called, track.at_ns[track.call], 0)
    alone = called & (at > free)
    turns = (start - free)[(before >= 0) & (start - free > 0) & (start - free < TURN_AT_MOST_NS)]
    return Usual(
        latency_ns=float(np.median((start - at)[alone])) if alone.any() else LATENCY_NS,
        turn_ns=float(np.median(turns)) if len(turns) else TURN_NS,
    )


def _device(run: Run, track: Track, before: Ints, usual: Usual) -> tuple[Device, bool, float]:
    """Device work with its delays: what bound it in the recording keeps its own, all others could have been shorter."""
    start, end = track.work.start_ns.astype(float), track.work.end_ns.astype(float)
    after, told = stream_waits(run, track, before, usual.latency_ns)
    called = track.call >= 0
    at = track.at_ns[track.call] if len(track.at_ns) else start
    sources = (
        np.where(called, at, -np.inf),
        np.where(before >= 0, end[before], -np.inf),
        np.where(after >= 0, end[after], -np.inf),
    )
    usuals = (usual.latency_ns, usual.turn_ns, usual.turn_ns)
    seen = [start - source for source in sources]
    delays = [np.minimum(delay, most) for delay, most in zip(seen, usuals, strict=True)]
    reach = np.stack([source + delay for source, delay in zip(sources, delays, strict=True)])
    binding = reach.argmax(axis=0)
    still = np.where(called & np.isfinite(reach.max(axis=0)), start - reach.max(axis=0), 0.0)
    still[_inside_its_call(track)] = 0.0
    delays = [np.where(binding == place, seen[place], delay) for place, delay in enumerate(delays)]
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
    return device, not told, float(still[still > STILL_NS].sum())


def _inside_its_call(track: Track) -> Mask:
    """Copies that began while their call lasted: until then the host prepared them, as from pageable memory."""
    call = np.maximum(track.call, 0)
    copies = (track.call >= 0) & (track.stop[call] == Stop.COPY_CALL) if len(track.stop) else track.call >= 0
    return np.asarray(copies & (track.work.start_ns < track.end_ns[call]), bool)


def generic(graph: Graph) -> Graph:
    """The same graph with the usual delays for all device work: how much rests on delays read from each event?"""
    device, usual = graph.device, graph.usual

    def plain(delay: Floats, most: float) -> Floats:
        # What the recording does not explain stays: it is judged by itself, and no usual delay is meant by it.
        return np.where(delay > most + STILL_NS, delay, most)

    return graph.with_device(
        latency_ns=plain(device.latency_ns, usual.latency_ns),
        turn_ns=plain(device.turn_ns, usual.turn_ns),
        lag_ns=plain(device.lag_ns, usual.turn_ns),
    )
