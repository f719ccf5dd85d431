"""Quality of a replay: does it reproduce the recording, and must it refuse to predict?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import stream_keys
from gpulab.analysis.steps.detection import burst_means
from gpulab.replay.graph.build import with_usual_delays
from gpulab.replay.graph.graph import Graph
from gpulab.replay.sweep import burst_median, sweep
from gpulab.run_facts import is_of_pytorch
from gpulab.wording import percent

MAX_REPLAY_ERROR = 0.02  # maximum error of an unchanged replay, as a fraction of the step
MAX_UNEXPLAINED_FRAC = 0.10  # of the time: device work idle for no recorded reason
MAX_CONCURRENT_FRAC = 0.05  # of the time: two threads in device calls at once
MAX_LOST_FRAC = 0.10  # of device work: its launch was not recorded, so it cannot be moved
MIN_OTHER_STREAMS_FRAC = 0.01  # of device work: less than this on other streams has no effect
MAX_STEP_ERROR = 0.20  # of the median step: its own uncertainty
FEW_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Errors of a replay without changes; fractions are 0-1."""

    replay_error: float  # of the step, with all delays as recorded
    generic_error: float  # of the step, with the usual delays for all device work
    unexplained_frac: float
    concurrent_calls_frac: float
    step_error: float  # 95 % half-width of the median step
    steps: int  # number of steps behind these values
    refusal_reason: str | None  # why no prediction is possible; None if it is
    fix: str = ""  # what to record instead

    @property
    def widening(self) -> float:
        """Factor by which a range must be wider because the replay is not exact."""
        uncertainty = abs(self.generic_error) + self.unexplained_frac / 2 + self.step_error / 2
        return 1.0 + uncertainty + (0.25 if self.steps < FEW_STEPS else 0.0)


def assess_quality(graph: Graph) -> Quality:
    """Replay the graph unchanged and with usual delays, and compare both with the recording."""
    replayed, usual = sweep(graph), sweep(with_usual_delays(graph))
    burst = graph.steps.burst
    first, last = graph.step_start_node, graph.step_end_node
    recorded = (graph.host.start_ns[last] - graph.host.start_ns[first]).astype(float)
    error = burst_median(replayed.host_steps_ns, burst) / max(1.0, burst_median(recorded, burst)) - 1
    span = max(graph.host.start_ns[-1], graph.device.end_ns.max(initial=0.0)) - graph.host.start_ns[0]
    if len(graph.device):
        error = max(error, (replayed.device_end_ns.max() - graph.device.end_ns.max()) / max(1.0, span), key=abs)
    errors = {
        "replay_error": float(error),
        "generic_error": usual.step_ns / max(1.0, replayed.step_ns) - 1,
        "unexplained_frac": graph.unexplained_ns / max(1.0, span),
        "concurrent_calls_frac": graph.concurrent_calls_ns / max(1.0, span),
        "step_error": _median_error(graph),
    }
    refusal, fix = _refusal(graph, errors)
    return Quality(**errors, steps=len(first), refusal_reason=refusal, fix=fix)


def _median_error(graph: Graph) -> float:
    """Return the 95 % half-width of the median step as a fraction of it, from the quartiles: 1.57 IQR / sqrt(n)."""
    steps = graph.steps
    durations = steps.dur_ns[steps.unprofiled if steps.unprofiled_ns is not None else steps.interior]
    values = burst_means(durations, steps.burst)
    if len(values) < 2:
        return 0.0
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float(1.57 * (high - low) / np.sqrt(len(values)) / max(1.0, middle))


def _refusal(graph: Graph, errors: dict[str, float]) -> tuple[str | None, str]:
    if not is_of_pytorch(graph.run):
        return "the program is not of PyTorch, and the changes that gpulab predicts are", "read its report and timeline"
    if graph.waits_inferred and _other_streams_share(graph) > MIN_OTHER_STREAMS_FRAC:
        return (
            "the GPU uses several streams, and the waits between them were not recorded",
            "record again with a PyTorch whose profiler has synchronisation events (%%gpuprofile turns them on)",
        )
    if abs(errors["replay_error"]) > MAX_REPLAY_ERROR:
        error, direction = errors["replay_error"], "longer" if errors["replay_error"] > 0 else "shorter"
        return (
            f"the replay does not reproduce the recording: its step is {percent(abs(error), 1)} {direction}",
            "record more steps, with no other programs running",
        )
    if errors["unexplained_frac"] > MAX_UNEXPLAINED_FRAC:
        share = percent(errors["unexplained_frac"])
        return f"GPU work was idle for {share} of the time, and the recording does not show why", "record again"
    if (lost := lost_launches_frac(graph)) > MAX_LOST_FRAC:
        if lost == 1.0:
            return "no launches were recorded", "record again"
        return f"the launches of {percent(lost)} of the GPU work were not recorded", "record again"
    if errors["concurrent_calls_frac"] > MAX_CONCURRENT_FRAC:
        return (
            "several threads called the GPU at the same time, and their order is unknown",
            "record one process at a time",
        )
    # Virtual steps differ only by this host's Python time: the range is wider, but there is no refusal.
    if errors["step_error"] > MAX_STEP_ERROR and graph.run.source.how != "virtual":
        share = percent(errors["step_error"])
        return f"the step time itself is uncertain by {share}", "record more steps, on a quieter machine"
    return None, ""


def _other_streams_share(graph: Graph) -> float:
    """Return the share of device work that is not on the busiest stream."""
    if not len(graph.device):
        return 0.0
    _, stream_index = np.unique(stream_keys(graph.work), return_inverse=True)
    busy = np.bincount(stream_index, weights=graph.device.dur_ns)
    return float(1 - busy.max() / max(1.0, busy.sum()))


def lost_launches_frac(graph: Graph) -> float:
    """Return the share of device work whose launch was not recorded; it cannot be moved."""
    dur = graph.device.dur_ns
    return float(dur[graph.device.call < 0].sum() / max(1.0, dur.sum()))
