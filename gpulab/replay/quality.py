"""How far a replay may be trusted: whether it reproduces the recording, and where it must refuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import streams
from gpulab.analysis.steps.detection import grouped
from gpulab.replay.graph.build import generic
from gpulab.replay.graph.graph import Graph
from gpulab.replay.sweep import swept, typical
from gpulab.wording import percent

REPLAY_ERROR = 0.02  # a replay that misses its own recording by more knows too little of it
UNEXPLAINED_FRAC = 0.10  # of the time, device work that stood still for no reason that was seen
CROSSED_FRAC = 0.05  # of the time, two threads inside the device's calls at once
LOST_FRAC = 0.10  # of the device's work, what cannot be moved as nobody knows who called for it
SECOND_STREAM_FRAC = 0.01  # of all device work: less on other streams decides nothing
UNSURE_FRAC = 0.20  # the median step itself is known no better than this
FEW = 3


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What a replay without any change says of itself; fractions are 0-1."""

    replay_error: float  # of the step, with every delay as recorded
    generic_error: float  # the same with the usual delays for all device work
    unexplained_frac: float
    crossed_frac: float
    step_error: float  # how well the median step is known: its 95 % half-width
    steps: int  # how many steps it rests on
    refusal: str | None  # why nothing may be predicted; None where it may
    fix: str = ""  # what to record so that it can

    @property
    def widening(self) -> float:
        """By which factor a range must be wider for what the replay does not reproduce."""
        doubt = abs(self.generic_error) + self.unexplained_frac / 2 + self.step_error / 2
        return 1.0 + doubt + (0.25 if self.steps < FEW else 0.0)


def quality(graph: Graph) -> Quality:
    """Replay the graph unchanged, and again with the usual delays, and compare with the recording."""
    replayed, usual = swept(graph), swept(generic(graph))
    burst = graph.steps.burst
    first, last = graph.step_first, graph.step_last
    recorded = (graph.host.at_ns[last] - graph.host.at_ns[first]).astype(float)
    error = typical(replayed.host_steps_ns, burst) / max(1.0, typical(recorded, burst)) - 1
    span = max(graph.host.at_ns[-1], graph.device.end_ns.max(initial=0.0)) - graph.host.at_ns[0]
    if len(graph.device):
        error = max(error, (replayed.device_end_ns.max() - graph.device.end_ns.max()) / max(1.0, span), key=abs)
    told = {
        "replay_error": float(error),
        "generic_error": usual.step_ns / max(1.0, replayed.step_ns) - 1,
        "unexplained_frac": graph.unexplained_ns / max(1.0, span),
        "crossed_frac": graph.crossed_ns / max(1.0, span),
        "step_error": _median_error(graph),
    }
    refusal, fix = _refusal(graph, told)
    return Quality(**told, steps=len(first), refusal=refusal, fix=fix)


def _median_error(graph: Graph) -> float:
    """The 95 % half-width of the median step as a share of it, from the quartiles: 1.57 IQR / sqrt(n)."""
    steps = graph.steps
    chosen = steps.dur_ns[steps.plain if steps.plain_ns is not None else steps.interior]
    values = grouped(chosen, steps.burst)
    if len(values) < 2:
        return 0.0
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float(1.57 * (high - low) / np.sqrt(len(values)) / max(1.0, middle))


def _refusal(graph: Graph, told: dict[str, float]) -> tuple[str | None, str]:
    if graph.guessed and _second_stream(graph) > SECOND_STREAM_FRAC:
        return (
            "the GPU works on several streams, and which waited for which was not recorded",
            "record it again with a PyTorch whose profiler has synchronisation events (%%gpuprofile turns them on)",
        )
    if abs(told["replay_error"]) > REPLAY_ERROR:
        error, direction = told["replay_error"], "longer" if told["replay_error"] > 0 else "shorter"
        return (
            f"replayed without any change, a step is {percent(abs(error), 1)} {direction} than the recorded one",
            "record more steps, without other programs beside it",
        )
    if told["unexplained_frac"] > UNEXPLAINED_FRAC:
        share = percent(told["unexplained_frac"])
        return f"for {share} of the time GPU work stood still and nothing recorded says why", "record it again"
    if (lost := launches_lost(graph)) > LOST_FRAC:
        return f"of {percent(lost)} of the GPU's work the call that started it is not recorded", "record it again"
    if told["crossed_frac"] > CROSSED_FRAC:
        return "several threads called the GPU at once, and their order is not known", "record one process at a time"
    # A virtual step is an estimate, and its steps differ by this host's Python alone: the range is wider for it.
    if told["step_error"] > UNSURE_FRAC and graph.run.source.how != "virtual":
        share = percent(told["step_error"])
        return f"the step time itself is known no better than {share}", "record more steps, on a quieter machine"
    return None, ""


def _second_stream(graph: Graph) -> float:
    """The share of device work that is not on the busiest stream."""
    if not len(graph.device):
        return 0.0
    _, place = np.unique(streams(graph.work), return_inverse=True)
    busy = np.bincount(place, weights=graph.device.dur_ns)
    return float(1 - busy.max() / max(1.0, busy.sum()))


def launches_lost(graph: Graph) -> float:
    """The share of device work whose call is not in the run: it cannot be moved."""
    dur = graph.device.dur_ns
    return float(dur[graph.device.call < 0].sum() / max(1.0, dur.sum()))
