"""Kernel launches in notebook 12: launch statistics of a run, a decoder of one token at a time, and a kernel grid.

The grid runs a kernel program by program in Python and counts; it has no clock. The launch statistics come from a run,
and are measured or estimated like the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpulab.analysis.host.launches import launch_stats, rows_in_interior
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import GPU_PARTS, build_ledger
from gpulab.capture.active_session import step
from gpulab.errors import RunError
from gpulab.hardware.lookup import resolve
from gpulab.lessons.labs import tables
from gpulab.questions import prediction_history, prepare_scene
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict
from gpulab.run import Run
from gpulab.tables import EventKind
from gpulab.views.sheet.view import View
from gpulab.wording import percent, scale

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

H100_MULTIPROCESSORS = resolve("h100").multiprocessors
T = TypeVar("T")


# Read from a run.


@dataclass(frozen=True, kw_only=True)
class LaunchSignature:
    """Statistics that show whether the GPU waits for launches (launch-bound) or for something else."""

    kernels: int  # per step
    calls: int  # launch calls per step
    median_us: float  # median kernel duration
    small_frac: float  # kernels shorter than 10 us / all kernels
    idle_frac: float  # GPU idle time / step time
    loader_frac: float  # GPU idle time during data loading / step time
    step_ms: float


def launch_signature(run: Run) -> LaunchSignature:
    """Compute the launch statistics of a run. Raises RunError if it has no step with GPU work."""
    run_steps = find_steps(run)
    step_ledger = build_ledger(run, run_steps)
    kernel_launches = None if step_ledger is None else launch_stats(run, run_steps, step_ledger)
    if step_ledger is None or kernel_launches is None or kernel_launches.unit != "kernel" or run_steps.step_ns is None:
        raise RunError(
            f"The kernel launches of run {run.name} are unknown.",
            why="it has no complete step with GPU work",
            fix='record at least three steps with `with L.gpu("name"):`',
        )
    busy = float(step_ledger.total_frac(*(part.key for part in GPU_PARTS if part.busy)))
    calls = rows_in_interior(run.event_rows.of_kind(EventKind.LAUNCH), run_steps)
    return LaunchSignature(
        kernels=kernel_launches.per_step,
        calls=round(len(calls) / int(run_steps.interior.sum())),
        median_us=kernel_launches.median_ns / 1e3,
        small_frac=kernel_launches.small_frac,
        idle_frac=1.0 - busy,
        loader_frac=float(step_ledger.total_frac("loader")),
        step_ms=run_steps.step_ns / 1e6,
    )


def signature_table(signatures: Mapping[str, LaunchSignature], below: str = "") -> View:
    """Tabulate launch statistics, one row per run; `below`: a sentence under the table."""
    header = ("", "kernels per step", "median, us", "under 10 us", "GPU idle", "waiting for data")
    lines = [
        (
            name,
            each.kernels,
            f"{each.median_us:.1f}",
            *(percent(share) for share in (each.small_frac, each.idle_frac, each.loader_frac)),
        )
        for name, each in signatures.items()
    ]
    return tables.table_view(header, lines, below=below)


def predicted_step(run: Run, change: str) -> str:
    """Format the step time that gpulab predicts with a change; the reason if it cannot predict."""
    try:
        prediction = predict(prepare_scene(run), parse_changes(change), history=prediction_history(run))
    except RunError as error:
        return f"no prediction: {error.why}"
    unit = scale(prediction.worst_ns)
    return f"{unit(prediction.likely_ns)} ({unit.number(prediction.best_ns)} to {unit.number(prediction.worst_ns)})"


# Programs with long kernels.


@dataclass(frozen=True)
class SlowTokenBatches:
    """Batches of tokens from slow storage."""

    pause_s: float
    count: int = 12

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        import torch

        time.sleep(self.pause_s)
        return torch.full((32768,), index)


def run_wide_layers(pause_s: float) -> None:
    """Run five wide layers on each batch; CUDA code. With a pause each batch is late; without, all are preloaded."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    embed = nn.Embedding(256, 1024, device="cuda", dtype=torch.bfloat16)
    linears = (nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(5))
    layers = nn.Sequential(*(nn.Sequential(each, nn.GELU()) for each in linears))
    dataset = SlowTokenBatches(pause_s)
    preloaded = [dataset[index].cuda() for index in range(len(dataset))] if not pause_s else []
    with torch.no_grad():
        for tokens in preloaded or DataLoader(dataset, batch_size=None):  # type: ignore[arg-type]
            layers(embed(tokens.cuda()))
            step()


# A model that generates one token at a time.


def token_decoder(
    device: str, width: int = 128, depth: int = 6, capacity: int = 64, growing_cache: bool = False
) -> nn.Module:
    """Return a small transformer with an internal key-value cache; a call takes one token and returns the next.

    `growing_cache`: the cache is concatenated for each token, so its size always changes; else it is preallocated for
    `capacity` tokens and never changes its address.
    """
    import torch
    from torch import nn

    class Decoder(nn.Module):
        place: Tensor  # index of the next token
        places: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(256, width)
            self.blocks = nn.ModuleList(_block(width, 0 if growing_cache else capacity) for _ in range(depth))
            self.head = nn.Linear(width, 256)
            self.register_buffer("place", torch.zeros(1, dtype=torch.long))
            self.register_buffer("places", torch.arange(capacity))

        def forward(self, token: Tensor) -> Tensor:
            state, mask = self.embed(token), (self.places <= self.place)[None, None]
            for block in self.blocks:
                state = block(state, self.place, mask)
            self.place.add_(1)
            next_token: Tensor = self.head(state).argmax(dim=-1)
            return next_token

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Decoder().to(device).eval()


def _block(width: int, capacity: int) -> nn.Module:
    """Return a block: attention to the tokens so far, and a wide layer. With `capacity` 0 its cache grows."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        cache: Tensor  # keys and values

        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.register_buffer("cache", torch.zeros(2, capacity, width))

        def forward(self, state: Tensor, position: Tensor, mask: Tensor) -> Tensor:
            normalised = self.before(state)
            new_entries = self.key_value(normalised).view(2, 1, width)
            if capacity:
                self.cache.index_copy_(1, position, new_entries)
            else:
                self.cache = torch.cat((self.cache, new_entries), dim=1)
            keys, values, visible = self.cache[:1], self.cache[1:], mask if capacity else None
            attended = functional.scaled_dot_product_attention(
                self.query(normalised)[None], keys, values, attn_mask=visible
            )
            state = state + self.out(attended[0])
            result: Tensor = state + self.narrow(functional.gelu(self.wide(self.after(state))))
            return result

    return Block()


def capture_graph(step: Callable[[], T]) -> Callable[[], T]:
    """Capture a step as a CUDA graph; each call of the returned function launches all of its kernels at once.

    Each call overwrites and returns the tensor of the capture. The step runs three times before the capture.
    """
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # warm-up: allocates workspaces
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> T:
        graph.replay()
        return result

    return replay


def square_parameters(count: int, side: int, device: str) -> list[torch.nn.Parameter]:
    """Return `count` square parameters with gradients; the values are always the same."""
    import torch

    parameters = []
    for number in range(count):
        values = torch.linspace(-1, 1 + number, side * side, device=device).view(side, side)
        parameters.append(torch.nn.Parameter(values))
        parameters[-1].grad = torch.ones_like(values)
    return parameters


def valid_adam_options(keywords: Any) -> dict[str, bool]:
    """Return these keyword arguments of Adam if a step runs with them; else an empty dict."""
    import torch

    try:
        torch.optim.Adam(square_parameters(1, 2, "cpu"), **keywords).step()
    except (TypeError, ValueError, AssertionError, RuntimeError):
        return {}
    return dict(keywords)


# A kernel grid, run one program after the other.


@dataclass
class KernelGrid:
    """Runs kernels program by program, and counts launches, programs and loads."""

    table: np.ndarray = field(repr=False)  # in the GPU's memory, shared by all programs
    launches: int = 0
    programs: int = 0
    loads: int = 0  # times that a program loaded the table

    def launch(self, kernel: Callable[..., None], programs: int, *arguments: Any) -> None:
        """Launch a kernel as `programs` programs; each gets its index and the grid."""
        self.launches += 1
        self.programs += programs
        for index in range(programs):
            kernel(GridProgram(index, programs, self), *arguments)


@dataclass(frozen=True)
class GridProgram:
    """One program of a grid: a block of threads on a multiprocessor."""

    index: int
    programs: int
    grid: KernelGrid

    def load(self) -> np.ndarray:
        """Load the table into this program's fast memory (shared memory), and count the load."""
        self.grid.loads += 1
        return self.grid.table.copy()
