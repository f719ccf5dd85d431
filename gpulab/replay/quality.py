"""Quality of a replay: does it reproduce the recording, and must it refuse to predict?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.analysis.events.device_work import device_work, stream_keys
from gpulab.analysis.steps.detection import Steps, burst_means
from gpulab.analysis.steps.ledger import Ledger
from gpulab.errors import RunError
from gpulab.replay.graph.build import build_graph, with_usual_delays
from gpulab.replay.graph.dependencies import has_stream_waits
from gpulab.replay.graph.graph import Graph
from gpulab.replay.sweep import Schedule, burst_median, sweep
from gpulab.run import Run
from gpulab.run_facts import is_of_pytorch
from gpulab.wording import percent

MAX_REPLAY_ERROR = 0.02  # maximum error of an unchanged replay, as a fraction of the step
MAX_UNEXPLAINED_FRAC = 0.10  # of the time: device work idle for no recorded reason
MAX_CONCURRENT_FRAC = 0.05  # of the time: two threads in device calls at once
MAX_LOST_FRAC = 0.10  # of device work: its launch was not recorded, so it cannot be moved
MIN_OTHER_STREAMS_FRAC = 0.01  # of device work: less than this on other streams has no effect
MAX_STEP_ERROR = 0.20  # of the median step: its own uncertainty
FEW_STEPS = 3
_AGAIN = "record again, because the profiler may lose events"


@dataclass(frozen=True, eq=False)
class Quality:
    """Errors of a replay without changes; fractions are 0-1.

    The graph and its replay are computed when they are asked for: some recordings are refused without them.
    """

    run: Run
    steps: Steps
    ledger: Ledger

    @classmethod
    def of(cls, graph: Graph) -> Quality:
        """Return the quality of this graph."""
        quality = cls(graph.run, graph.steps, graph.ledger)
        vars(quality)["graph"] = graph
        return quality

    @cached_property
    def graph(self) -> Graph:
        """The graph of the recording."""
        return build_graph(self.run, self.steps, self.ledger)

    @cached_property
    def replayed(self) -> Schedule:
        """The graph, replayed with all delays as recorded."""
        return sweep(self.graph)

    @cached_property
    def replay_error(self) -> float:
        """Error of that replay, of the step; of a GPU, also of the end of its last work."""
        graph, replayed = self.graph, self.replayed
        burst = graph.steps.burst
        recorded = (graph.host.start_ns[graph.step_end_node] - graph.host.start_ns[graph.step_start_node]).astype(float)
        error = burst_median(replayed.host_steps_ns, burst) / max(1.0, burst_median(recorded, burst)) - 1
        if len(graph.device):
            late_ns = replayed.device_end_ns.max() - graph.device.end_ns.max()
            error = max(error, late_ns / max(1.0, self._span_ns), key=abs)
        return float(error)

    @cached_property
    def generic_error(self) -> float:
        """Error of a replay with the usual delays for all device work, of the step."""
        return sweep(with_usual_delays(self.graph)).step_ns / max(1.0, self.replayed.step_ns) - 1

    @cached_property
    def unexplained_frac(self) -> float:
        """Share of the time in which device work was idle for no recorded reason."""
        return self.graph.unexplained_ns / max(1.0, self._span_ns)

    @cached_property
    def concurrent_calls_frac(self) -> float:
        """Share of the time in which two threads were in device calls at once."""
        return self.graph.concurrent_calls_ns / max(1.0, self._span_ns)

    @cached_property
    def step_error(self) -> float:
        """95 % half-width of the median step, as a fraction of it."""
        return _median_error(self.steps)

    @property
    def step_count(self) -> int:
        """Number of steps behind these values."""
        return len(self.graph.step_start_node)

    @property
    def refusal_reason(self) -> str | None:
        """Why no prediction is possible; None if it is."""
        return self._refusal[0]

    @property
    def fix(self) -> str:
        """What to record instead; "" without a refusal."""
        return self._refusal[1]

    @property
    def refusal(self) -> RunError | None:
        """The error of a prediction that this recording does not allow; None if it does."""
        if self.refusal_reason is None:
            return None
        return RunError(
            "No change can be predicted from this run. Its report may still show gains or upper bounds.",
            why=self.refusal_reason,
            fix=f"{self.fix}; or make the change, record it as another run, and compare the two runs",
        )

    @cached_property
    def widening(self) -> float:
        """Factor by which a range must be wider because the replay is not exact."""
        uncertainty = abs(self.generic_error) + self.unexplained_frac / 2 + self.step_error / 2
        return 1.0 + uncertainty + (0.25 if self.step_count < FEW_STEPS else 0.0)

    @cached_property
    def _span_ns(self) -> float:
        host, device = self.graph.host, self.graph.device
        return float(max(host.start_ns[-1], device.end_ns.max(initial=0.0)) - host.start_ns[0])

    @cached_property
    def _refusal(self) -> tuple[str | None, str]:
        return _refusal_of_recording(self.run, self.ledger) or _refusal_of_replay(self) or (None, "")


def _median_error(steps: Steps) -> float:
    """Return the 95 % half-width of the median step as a fraction of it, from the quartiles: 1.57 IQR / sqrt(n)."""
    durations = steps.dur_ns[steps.unprofiled if steps.unprofiled_ns is not None else steps.interior]
    values = burst_means(durations, steps.burst)
    if len(values) < 2:
        return 0.0
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float(1.57 * (high - low) / np.sqrt(len(values)) / max(1.0, middle))


def _refusal_of_recording(run: Run, ledger: Ledger) -> tuple[str, str] | None:
    """Return why this recording cannot be replayed at all, and what to record instead; None if it can."""
    if not is_of_pytorch(run):
        return "the program is not of PyTorch, and the changes that gpulab predicts are", "read its report and timeline"
    if ledger.device == "gpu" and _unknown_waits_frac(run) > MIN_OTHER_STREAMS_FRAC:
        return (
            "the GPU uses several streams, and the waits between them were not recorded",
            "record again with a PyTorch whose profiler has synchronisation events (%%gpuprofile turns them on)",
        )
    return None


def _refusal_of_replay(quality: Quality) -> tuple[str, str] | None:
    """Return why a replay of this recording cannot be trusted, and what to record instead; None if it can."""
    if abs(quality.replay_error) > MAX_REPLAY_ERROR:
        error, direction = quality.replay_error, "longer" if quality.replay_error > 0 else "shorter"
        return (
            f"the replay does not reproduce the recording: its step is {percent(abs(error), 1)} {direction}, "
            f"more than {percent(MAX_REPLAY_ERROR)}",
            "record again, with more steps and without other programs",
        )
    if quality.unexplained_frac > MAX_UNEXPLAINED_FRAC:
        share = percent(quality.unexplained_frac)
        return f"GPU work was idle for {share} of the time, and the recording does not show why", _AGAIN
    if (lost := lost_launches_frac(quality.graph)) > MAX_LOST_FRAC:
        if lost == 1.0:
            return "no launches were recorded", _AGAIN
        return f"the launches of {percent(lost)} of the GPU work were not recorded", _AGAIN
    if quality.concurrent_calls_frac > MAX_CONCURRENT_FRAC:
        return (
            "several threads called the GPU at the same time, and their order is unknown",
            "record one process at a time",
        )
    # Virtual steps differ only by this host's Python time: the range is wider, but there is no refusal.
    if quality.step_error > MAX_STEP_ERROR and quality.run.source.how != "virtual":
        share = percent(quality.step_error)
        most = percent(MAX_STEP_ERROR)
        return (
            f"the steps differ so much that their median time is uncertain by {share}, more than {most}",
            "record again, with more steps and without other programs",
        )
    return None


def _unknown_waits_frac(run: Run) -> float:
    """Return the share of device work that is not on the busiest stream, if waits between streams are unknown."""
    work = device_work(run)
    streams, stream_index = np.unique(stream_keys(work), return_inverse=True)
    if len(streams) < 2 or has_stream_waits(run):
        return 0.0
    busy = np.bincount(stream_index, weights=work["dur_ns"])
    return float(1 - busy.max() / max(1.0, busy.sum()))


def lost_launches_frac(graph: Graph) -> float:
    """Return the share of device work whose launch was not recorded; it cannot be moved."""
    dur = graph.device.dur_ns
    return float(dur[graph.device.call < 0].sum() / max(1.0, dur.sum()))
