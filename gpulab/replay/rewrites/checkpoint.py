"""Checkpoints written by a thread beside the loop: the main thread only copies the state to host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.pauses import pauses
from gpulab.analysis.steps import Mask
from gpulab.intervals import Spans, covered_ns, nothing, union
from gpulab.replay.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.once import once
from gpulab.run import Run

SAVING = ("torch.serialization.", "pickle.", "safetensors.", "torch.distributed.checkpoint", "torch._utils_internal")
COPYING = (0.03, 0.30)  # of the time of saving, what copying the state takes: a core copies 4-12 GB/s, files take 0.3-3
MOST_APART_NS = 1_000_000_000  # samples further apart than this do not speak for the time between them


@dataclass(frozen=True, eq=False)
class Saving:
    """When the main thread was writing a checkpoint, by samples of its line."""

    spans: Spans
    usual: bool  # in most of the steps that count: then the typical step has it


@once
def saving(graph: Graph) -> Saving:
    """Where samples of the main thread found it inside a call that saves."""
    spans = _sampled(graph.run)
    opens, closes = graph.host.at_ns[graph.step_first], graph.host.at_ns[graph.step_last]
    held = covered_ns(spans, opens.astype(np.int64), closes.astype(np.int64))
    return Saving(spans, bool(2 * (held > 0).sum() > len(held)))


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
    words = rows.words("called")
    mine: Mask = words.matching(word.startswith(SAVING) for word in words.vocabulary)
    return union(opens[mine], closes[mine])


def async_checkpoint(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A thread beside the loop writes the checkpoint; the main thread only copies the state to host memory before.

    The host's work in the stretches in which samples found the main thread inside `torch.save` and its like goes, but
    for the copy: 3 to 30 % of it, as a core copies 4-12 GB/s and writes files at 0.3-3 GB/s. Waits for the GPU in there
    stay: the state must be ready. Samples are 25 to 100 ms apart, so the ends of such a stretch are known no better.
    Not known: how much the writing thread slows the loop, with which it shares Python's lock while it pickles. Only
    where most steps save does the typical step change; else see the finding about pauses.
    """
    return _written_beside(graph, draw.ratio("copying the state", *COPYING))


def _written_beside(graph: Graph, left: float) -> Graph:
    spans = saving(graph).spans
    return graph.scaled_before(
        {part: 1 - share * (1 - left) for part, share in graph.within(spans).items() if part != "loader"}
    )


def _lacking(graph: Graph, value: Value) -> str | None:
    found = saving(graph)
    if found.usual:
        return None
    rare = pauses(graph.run, graph.steps)
    if rare is not None and (rare.called or "").startswith(SAVING):
        each, mean = rare.each_ns / 1e6, rare.total_ns / rare.steps / 1e6
        return (
            f"{rare.count} of {rare.steps} steps save, for {each:.0f} ms each: the typical step does not change, "
            f"the average one would be {mean:.1f} ms shorter"
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
        ceiling=lambda graph, value: _written_beside(graph, 0.0),
        grade="B",
        about="checkpoints written by a thread beside the loop",
        ceiling_means="even free checkpoints",
        lacking=_lacking,
        price="host memory for one copy of the state",
        code=lambda graph, value: CODE,
    ),
)
