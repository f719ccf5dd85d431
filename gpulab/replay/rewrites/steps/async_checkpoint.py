"""Asynchronous checkpoints: the main thread only copies the state to host memory, and another thread writes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Mask
from gpulab.analysis.steps.pauses import find_pauses
from gpulab.intervals import Spans, covered_ns, no_spans, union
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.sweep import host_step_ns
from gpulab.run import Run
from gpulab.wording import duration, plural

SAVE_CALLS = (
    "torch.serialization.",
    "pickle.",
    "safetensors.",
    "torch.distributed.checkpoint",
    "torch._utils_internal",
)
# Time to copy the state, relative to saving it: a core copies 4-12 GB/s, files take 0.3-3 GB/s.
STATE_COPY = (0.03, 0.30)
# Share of the saved main-thread time by which the step gets shorter: the writer needs the GIL, and a core.
REALISED, REALISED_ON_CPU = (1.0, 0.6), (1.0, 0.2)
MIN_SAMPLES = 5  # minimum number of samples inside a save to estimate its share
MAX_SAMPLE_GAP_NS = 1_000_000_000  # samples further apart than this do not represent the time between them


@dataclass(frozen=True, eq=False)
class CheckpointTime:
    """Time in which the main thread writes checkpoints, estimated from samples of its current line."""

    spans: Spans
    in_most_steps: bool  # whether most interior steps save; then the typical step includes it
    share: float  # share of samples in steady-state steps, if saves are short and spread evenly; else 0
    error: float  # standard deviation of `share`


@cached_per_run
def checkpoint_time(graph: Graph) -> CheckpointTime:
    """Return when samples of the main thread were inside a call that saves."""
    run, steps = graph.run, graph.steps
    spans = _saving_spans(run)
    step_start, step_end = graph.host.start_ns[graph.step_start_node], graph.host.start_ns[graph.step_end_node]
    saving_ns = covered_ns(spans, step_start.astype(np.int64), step_end.astype(np.int64))
    if 2 * (saving_ns > 0).sum() > len(saving_ns):
        return CheckpointTime(spans, True, 0.0, 0.0)
    warm = union(steps.start_ns[steps.unprofiled | steps.interior], steps.end_ns[steps.unprofiled | steps.interior])
    rows = run.host_rows
    in_steps = covered_ns(warm, rows["at_ns"], rows["at_ns"] + 1) > 0
    saving_samples = int((in_steps & _saves(run)).sum())
    stalls = find_pauses(run, steps)
    if saving_samples < MIN_SAMPLES or stalls is not None:
        return CheckpointTime(spans, False, 0.0, 0.0)
    share = saving_samples / int(in_steps.sum())
    return CheckpointTime(spans, False, share, float(np.sqrt(share * (1 - share) / int(in_steps.sum()))))


def _saves(run: Run) -> Mask:
    saves: Mask = run.host_rows.matching(lambda word: word.startswith(SAVE_CALLS), "called")
    return saves


def _saving_spans(run: Run) -> Spans:
    """Spans around each saving sample, up to half-way to the samples before and after it."""
    rows = run.host_rows
    if len(rows) < 2:
        return no_spans()
    at = rows["at_ns"]
    middles = (at[1:] + at[:-1]) // 2
    is_far = np.diff(at) > MAX_SAMPLE_GAP_NS
    starts = np.append(at[:1], np.where(is_far, at[1:], middles))
    ends = np.append(np.where(is_far, at[:-1], middles), at[-1:])
    is_saving = _saves(run)
    return union(starts[is_saving], ends[is_saving])


def async_checkpoint(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A separate thread writes the checkpoint; before that, the main thread only copies the state to host memory.

    Models: the host work during which samples found the main thread inside `torch.save` or similar is removed, except
    for the copy: 3 to 30 % of it, because a core copies 4-12 GB/s and writes files at 0.3-3 GB/s. If saving is shorter
    than the sampling interval, its time is the share of samples inside it, within the sampling error, and is removed
    from the Python outside PyTorch. Waits for the GPU inside remain: the state must be ready. The writing thread slows
    the step down again, because pickling needs the GIL, and a core: by 0 to 40 % of the gain, and 0 to 80 % if the
    model computes on the CPU. The typical step changes only if most steps save; otherwise see the finding about
    periodic stalls.

    Cannot know: how busy the cores are.
    """
    checkpoint = checkpoint_time(graph)
    share = draw.between(
        "share of saving", checkpoint.share + checkpoint.error, max(0.0, checkpoint.share - checkpoint.error)
    )
    realised = draw.between("writing beside", *(REALISED if graph.on_gpu else REALISED_ON_CPU))
    return _write_in_thread(graph, 1 - realised * (1 - draw.ratio("copying the state", *STATE_COPY)), share)


def _write_in_thread(graph: Graph, remaining: float, share: float) -> Graph:
    if checkpoint_time(graph).in_most_steps:
        return graph.scaled_before(
            {part: 1 - share_saving * (1 - remaining) for part, share_saving in _share_saving_by_part(graph).items()}
        )
    removed_ns = share * (1 - remaining) * (graph.steps.step_ns or 0)
    python_ns = host_step_ns(graph, graph.host.before_ns["python"])
    return graph.scaled_before({"python": 1 - min(1.0, removed_ns / max(1.0, python_ns))})


def _free(graph: Graph, value: Value) -> Graph:
    checkpoint = checkpoint_time(graph)
    return _write_in_thread(graph, 0.0, checkpoint.share + 2 * checkpoint.error)


@cached_per_run
def _share_saving_by_part(graph: Graph) -> dict[str, Floats]:
    """Share of the host work before each node that is saving; loading is never counted."""
    return {part: share for part, share in graph.share_inside(checkpoint_time(graph).spans).items() if part != "loader"}


def _refusal(graph: Graph, value: Value) -> str | None:
    checkpoint = checkpoint_time(graph)
    if checkpoint.in_most_steps or checkpoint.share:
        return None
    pause = find_pauses(graph.run, graph.steps)
    if pause is not None and (pause.library_call or "").startswith(SAVE_CALLS):
        return (
            f"only {pause.count} of {pause.steps} steps {plural(pause.count, 'saves', 'save')}, for "
            f"{duration(pause.typical_cost_ns)} each: the typical step does not change, the average step would be "
            f"{duration(pause.total_ns / pause.steps)} shorter"
        )
    if not len(graph.run.host_rows):
        return "the main thread was not sampled, so its checkpoints are unknown"
    return "most of its steps do not save a checkpoint"


CODE = """state = copied(model.state_dict())  # a copy in host memory
threading.Thread(target=torch.save, args=(state, path)).start()"""

CHECKPOINT_REWRITES = (
    Rewrite(
        name="async_checkpoint",
        edit=async_checkpoint,
        best_case=_free,
        grade="B",
        about="checkpoints written by a separate thread",
        bound_label="checkpoints at no cost",
        refusal_reason=_refusal,
        cost="host memory for one copy of the state",
        code=lambda graph, value: CODE,
    ),
)
