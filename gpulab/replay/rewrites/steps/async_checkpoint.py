"""Checkpoints written by a thread beside the loop: the main thread only copies the state to host memory."""

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
COPYING = (0.03, 0.30)  # of the time of saving, what copying the state takes: a core copies 4-12 GB/s, files take 0.3-3
# Of what the main thread no longer does, the share that the step gets back: the writer wants Python's lock, and a core.
REALISED, REALISED_ON_CPU = (1.0, 0.6), (1.0, 0.2)
ENOUGH = 5  # samples that found it saving; fewer tell no share
MOST_APART_NS = 1_000_000_000  # samples further apart than this do not speak for the time between them


@dataclass(frozen=True, eq=False)
class Saving:
    """When the main thread was writing a checkpoint, by samples of its line."""

    spans: Spans
    usual: bool  # in most of the steps that count: then the typical step has it
    share: float  # of all samples in warm steps, where saving is short and in no step more than in others; else 0
    error: float  # of that, one standard deviation


@once
def saving(graph: Graph) -> Saving:
    """Where samples of the main thread found it inside a call that saves."""
    run, steps = graph.run, graph.steps
    spans = _sampled(run)
    opens, closes = graph.host.at_ns[graph.step_first], graph.host.at_ns[graph.step_last]
    held = covered_ns(spans, opens.astype(np.int64), closes.astype(np.int64))
    if 2 * (held > 0).sum() > len(held):
        return Saving(spans, True, 0.0, 0.0)
    warm = union(steps.start_ns[steps.plain | steps.interior], steps.end_ns[steps.plain | steps.interior])
    rows = run.host_rows
    there = covered_ns(warm, rows["at_ns"], rows["at_ns"] + 1) > 0
    found = int((there & _saves(run)).sum())
    rare = pauses(run, steps)
    if found < ENOUGH or rare is not None:
        return Saving(spans, False, 0.0, 0.0)
    share = found / int(there.sum())
    return Saving(spans, False, share, float(np.sqrt(share * (1 - share) / int(there.sum()))))


def _saves(run: Run) -> Mask:
    saves: Mask = run.host_rows.matching(lambda word: word.startswith(SAVING), "called")
    return saves


def _sampled(run: Run) -> Spans:
    """Around each such sample, half the way to the one before and after it."""
    rows = run.host_rows
    if len(rows) < 2:
        return nothing()
    at = rows["at_ns"]
    middles = (at[1:] + at[:-1]) // 2
    far = np.diff(at) > MOST_APART_NS
    opens = np.append(at[:1], np.where(far, at[1:], middles))
    closes = np.append(np.where(far, at[:-1], middles), at[-1:])
    mine = _saves(run)
    return union(opens[mine], closes[mine])


def async_checkpoint(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A thread beside the loop writes the checkpoint; the main thread only copies the state to host memory before.

    Models: the host's work in the stretches in which samples found the main thread inside `torch.save` and its like
    goes, but for the copy: 3 to 30 % of it, as a core copies 4-12 GB/s and writes files at 0.3-3 GB/s. Where saving is
    shorter than the time between samples, it is the share of samples that found it, give or take what so many samples
    leave open, and it goes from the Python outside PyTorch. Waits for the GPU in there stay: the state must be ready.
    The writing thread takes some of it back, as it needs Python's lock to pickle, and a core: 0 to 40 %, and 0 to 80 %
    where the model computes on the CPU. Only where most steps save does the typical step change; else see the finding
    about pauses.

    Cannot know: how busy the cores are.
    """
    found = saving(graph)
    share = draw.between("share of saving", found.share + found.error, max(0.0, found.share - found.error))
    realised = draw.between("writing beside", *(REALISED if graph.on_gpu else REALISED_ON_CPU))
    return _written_beside(graph, 1 - realised * (1 - draw.ratio("copying the state", *COPYING)), share)


def _written_beside(graph: Graph, left: float, share: float) -> Graph:
    if saving(graph).usual:
        return graph.scaled_before({part: 1 - held * (1 - left) for part, held in _held(graph).items()})
    gone_ns = share * (1 - left) * (graph.steps.step_ns or 0)
    python_ns = host_step_ns(graph, graph.host.before_ns["python"])
    return graph.scaled_before({"python": 1 - min(1.0, gone_ns / max(1.0, python_ns))})


def _free(graph: Graph, value: Value) -> Graph:
    found = saving(graph)
    return _written_beside(graph, 0.0, found.share + 2 * found.error)


@once
def _held(graph: Graph) -> dict[str, Floats]:
    """The share of the host's work before each stop that was saving, but for loading, which is never that."""
    return {part: share for part, share in graph.within(saving(graph).spans).items() if part != "loader"}


def _lacking(graph: Graph, value: Value) -> str | None:
    found = saving(graph)
    if found.usual or found.share:
        return None
    rare = pauses(graph.run, graph.steps)
    if rare is not None and (rare.called or "").startswith(SAVING):
        return (
            f"{rare.count} of {rare.steps} steps save, for {duration(rare.each_ns)} each: the typical step does not "
            f"change, the average one would be {duration(rare.total_ns / rare.steps)} shorter"
        )
    if not len(graph.run.host_rows):
        return "the main thread was not sampled, so what it saved is not known"
    return "no sample found the main thread saving in most of its steps"


CODE = """state = copied(model.state_dict())  # in host memory, which training does not change any more
threading.Thread(target=torch.save, args=(state, path)).start()"""

CHECKPOINTING = (
    Rewrite(
        name="async_checkpoint",
        edit=async_checkpoint,
        ceiling=_free,
        grade="B",
        about="checkpoints written by a thread beside the loop",
        ceiling_means="even free checkpoints",
        lacking=_lacking,
        price="host memory for one copy of the state",
        code=lambda graph, value: CODE,
    ),
)
