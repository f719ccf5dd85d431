"""Asynchronous checkpoints: the main thread only copies the state to host memory, and another thread writes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Mask
from gpulab.analysis.steps.pauses import pauses
from gpulab.intervals import Spans, covered_ns, nothing, union
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.sweep import host_step_ns
from gpulab.run import Run
from gpulab.wording import duration

SAVING = ("torch.serialization.", "pickle.", "safetensors.", "torch.distributed.checkpoint", "torch._utils_internal")
# Time to copy the state, relative to saving it: a core copies 4-12 GB/s, files take 0.3-3 GB/s.
STATE_COPY = (0.03, 0.30)
# Share of the saved main-thread time by which the step gets shorter: the writer needs the GIL, and a core.
REALISED, REALISED_ON_CPU = (1.0, 0.6), (1.0, 0.2)
MIN_SAMPLES = 5  # minimum number of samples inside a save to estimate its share
MAX_SAMPLE_GAP_NS = 1_000_000_000  # samples further apart than this do not represent the time between them


@dataclass(frozen=True, eq=False)
class Saving:
    """Time in which the main thread writes checkpoints, estimated from samples of its current line."""

    spans: Spans
    usual: bool  # whether most interior steps save; then the typical step includes it
    share: float  # share of samples in steady-state steps, if saves are short and spread evenly; else 0
    error: float  # standard deviation of `share`


@once
def saving(graph: Graph) -> Saving:
    """Return when samples of the main thread were inside a call that saves."""
    run, steps = graph.run, graph.steps
    spans = _saving_spans(run)
    step_start, step_end = graph.host.start_ns[graph.step_first], graph.host.start_ns[graph.step_last]
    saving_ns = covered_ns(spans, step_start.astype(np.int64), step_end.astype(np.int64))
    if 2 * (saving_ns > 0).sum() > len(saving_ns):
        return Saving(spans, True, 0.0, 0.0)
    warm = union(steps.start_ns[steps.plain | steps.interior], steps.end_ns[steps.plain | steps.interior])
    rows = run.host_rows
    in_steps = covered_ns(warm, rows["at_ns"], rows["at_ns"] + 1) > 0
    saving_samples = int((in_steps & _saves(run)).sum())
    stalls = pauses(run, steps)
    if saving_samples < MIN_SAMPLES or stalls is not None:
        return Saving(spans, False, 0.0, 0.0)
    share = saving_samples / int(in_steps.sum())
    return Saving(spans, False, share, float(np.sqrt(share * (1 - share) / int(in_steps.sum()))))


def _saves(run: Run) -> Mask:
    saves: Mask = run.host_rows.matching(lambda word: word.startswith(SAVING), "called")
    return saves


def _saving_spans(run: Run) -> Spans:
    """Spans around each saving sample, up to half-way to the samples before and after it."""
    rows = run.host_rows
    if len(rows) < 2:
        return nothing()
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
    checkpoint = saving(graph)
    share = draw.between(
        "share of saving", checkpoint.share + checkpoint.error, max(0.0, checkpoint.share - checkpoint.error)
    )
    realised = draw.between("writing beside", *(REALISED if graph.on_gpu else REALISED_ON_CPU))
    return _write_in_thread(graph, 1 - realised * (1 - draw.ratio("copying the state", *STATE_COPY)), share)


def _write_in_thread(graph: Graph, remaining: float, share: float) -> Graph:
    if saving(graph).usual:
        return graph.scaled_before(
            {part: 1 - share_saving * (1 - remaining) for part, share_saving in _share_saving_by_part(graph).items()}
        )
    removed_ns = share * (1 - remaining) * (graph.steps.step_ns or 0)
    python_ns = host_step_ns(graph, graph.host.before_ns["python"])
    return graph.scaled_before({"python": 1 - min(1.0, removed_ns / max(1.0, python_ns))})


def _free(graph: Graph, value: Value) -> Graph:
    checkpoint = saving(graph)
    return _write_in_thread(graph, 0.0, checkpoint.share + 2 * checkpoint.error)


@once
def _share_saving_by_part(graph: Graph) -> dict[str, Floats]:
    """Share of the host work before each node that is saving; loading is never counted."""
    return {part: share for part, share in graph.within(saving(graph).spans).items() if part != "loader"}


def _refusal(graph: Graph, value: Value) -> str | None:
    checkpoint = saving(graph)
    if checkpoint.usual or checkpoint.share:
        return None
    pause = pauses(graph.run, graph.steps)
    if pause is not None and (pause.called or "").startswith(SAVING):
        return (
            f"only {pause.count} of {pause.steps} steps save, for {duration(pause.each_ns)} each: the typical step "
            f"does not change, the average step would be {duration(pause.total_ns / pause.steps)} shorter"
        )
    if not len(graph.run.host_rows):
        return "the main thread was not sampled, so its checkpoints are unknown"
    return "most of its steps do not save a checkpoint"


CODE = """state = copied(model.state_dict())  # a copy in host memory
threading.Thread(target=torch.save, args=(state, path)).start()"""

CHECKPOINTING = (
    Rewrite(
        name="async_checkpoint",
        edit=async_checkpoint,
        ceiling=_free,
        grade="B",
        about="checkpoints written by a separate thread",
        ceiling_means="checkpoints at no cost",
        lacking=_refusal,
        price="host memory for one copy of the state",
        code=lambda graph, value: CODE,
    ),
)
