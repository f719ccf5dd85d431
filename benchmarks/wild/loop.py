"""A training loop as a notebook cell, and the changes that an expert would try on it."""

import contextlib
import dataclasses
import gc
import linecache
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import numpy as np
import torch

KINDS = frozenset(
    {
        "num_workers",
        "persistent_workers",
        "batch_whole",  # index or collate whole batches as tensors instead of item by item
        "vectorize_items",  # a cheaper __getitem__
        "cache_items",  # compute once, use in every epoch
        "storage_format",
        "padding",  # fewer padded positions: dynamic padding, batches of similar length
        "selected_positions",  # scores only where the loss uses them
        "remove_syncs",
        "fewer_logs",  # logging, printing, metrics, checkpoints less often
        "remove_python",  # hoist or vectorize Python code of the loop
        "fused_optimizer",
        "foreach_optimizer",
        "sparse_gradients",
        "compile",
        "channels_last",
        "dropout",  # another mask of the same distribution
        "precision",
        "threads",
        "larger_batch",  # the same samples in total
        "gc",
        "no_grad",  # no graph, or no gradients, where nothing uses them
        "kv_cache",
        "checkpointing_off",
        "sdpa",
        "static_shapes",
        "zero_grad",
        "clip_grad",
        "eval_less_often",
        "ddp_buckets",
        "rebalance_ranks",
        "other",
    }
)

Namespace = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of a cell that leaves the training as it is.

    Either `cell` replaces the whole source, or each key of `edits`, which occurs exactly once, gives way to its value.
    """

    name: str
    kind: str
    cell: str | None = None
    edits: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is not a kind of change; the kinds are {', '.join(sorted(KINDS))}")
        if (self.cell is None) == (not self.edits):
            raise ValueError(f"change {self.name!r} needs a cell or edits, and not both")


@dataclasses.dataclass(frozen=True)
class Loop:
    """A cell, the names that it uses, and its changes.

    `prepare(scale)` returns these names; `scale` 1.0 is the full size, and smaller scales have fewer steps. `samples`
    and `loss` are expressions over the names that the cell leaves. `seconds` is the expected duration at full size.
    """

    description: str
    prepare: Callable[[float], Namespace]
    cell: str
    changes: tuple[Change, ...]
    samples: str
    seconds: float
    loss: str = "loss.item()"
    name: str = "unnamed"
    same_steps: bool = True  # every change but a larger batch takes the same number of optimizer steps
    warm: bool = True  # run the cell at WARM_SCALE before it is timed: imports, kernel caches, compilation

    def change(self, name: str) -> Change:
        """The change of this name."""
        for change in self.changes:
            if change.name == name:
                return change
        raise ValueError(f"{self.name} has no change {name!r}; it has {', '.join(c.name for c in self.changes)}")


WARM_SCALE = 0.1


def mask_dropout(line: str, model: str = "model") -> Change:
    """The change of a cell in which this line creates the model: its dropout compares uniform random numbers."""
    from gpulab.rules.kernels.dropout_on_cpu import mask_dropout_code

    return Change("dropout by uniform numbers", "dropout", edits={line: f"{line}\n{mask_dropout_code(model)}\n"})


def scaled(count: int, scale: float, multiple: int = 1) -> int:
    """`count` times `scale`, rounded to a positive multiple of `multiple`."""
    return max(1, round(count * scale / multiple)) * multiple


def cell_source(loop: Loop, change: Change | None = None) -> str:
    """The source of the cell with the change applied."""
    if change is None:
        return loop.cell.strip("\n") + "\n"
    if change.cell is not None:
        return change.cell.strip("\n") + "\n"
    source = loop.cell
    for old, new in change.edits.items():
        if source.count(old) != 1:
            raise ValueError(f"{loop.name}: {change.name}: {old!r} occurs {source.count(old)} times, not once")
        source = source.replace(old, new)
    return source.strip("\n") + "\n"


def cell_code(loop: Loop, change: Change | None = None) -> CodeType:
    """The compiled cell, under a name like that of a notebook cell; `linecache` knows its source."""
    source = cell_source(loop, change)
    file_name = f"<ipython-input-1-{loop.name} {change.name if change else 'unchanged'}>"
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    return compile(source, file_name, "exec", dont_inherit=True)


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """A temporary working directory: data and checkpoints have relative paths."""
    previous = os.getcwd()  # noqa: PTH109  (as `os.chdir` wants it)
    with tempfile.TemporaryDirectory(prefix="wild-", ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(previous)


def seed_everything(seed: int = 0) -> None:
    """Seed Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def prepared_cell(loop: Loop, change: Change | None = None, scale: float = 1.0) -> Iterator[tuple[CodeType, Namespace]]:
    """The compiled cell and its namespace, in a scratch folder; `exec(code, namespace)` runs the training."""
    with scratch_folder():
        seed_everything()
        namespace: Namespace = {"__name__": "__main__", **loop.prepare(scale)}
        code = cell_code(loop, change)
        seed_everything()
        gc.collect()
        yield code, namespace


def run_cell(loop: Loop, change: Change | None = None, scale: float = 1.0) -> float:
    """Run the cell once, without a warm run before it, and return its seconds."""
    with prepared_cell(loop, change, scale) as (code, namespace):
        start = time.perf_counter()
        exec(code, namespace)
        return time.perf_counter() - start
