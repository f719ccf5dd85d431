"""What notebook 12 tells of starting work: a decoder of one token at a time, what a run says of its launches, a grid.

The grid runs a kernel program by program, in Python, and counts: it knows no time. A signature is read from a run, and
is as good as the run: measured, or worked out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpulab.analysis.host.launches import in_interior, launching
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import GPU_PARTS, ledger
from gpulab.capture.active_session import step
from gpulab.errors import RunError
from gpulab.lessons.labs import tables
from gpulab.questions import learned, ready
from gpulab.replay.parsing import chosen
from gpulab.replay.prediction import predict
from gpulab.run import Run
from gpulab.tables import Kind
from gpulab.views.sheet.view import View

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MULTIPROCESSORS = 132  # of an H100 or H200 in SXM form
T = TypeVar("T")


# Read from a run.


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What tells a GPU that waits for launches from one that waits for something else."""

    kernels: int  # in a step
    calls: int  # that started them, in a step
    median_us: float  # length of a kernel
    small_frac: float  # kernels shorter than 10 us
    idle_frac: float  # of a step
    loader_frac: float  # of a step, in which the GPU waits for data
    step_ms: float


def signature(run: Run) -> Signature:
    """The signature of a run. Raises RunError where it holds no step with work of a GPU in it."""
    found = steps(run)
    accounts = ledger(run, found)
    pieces = None if accounts is None else launching(run, found, accounts)
    if accounts is None or pieces is None or pieces.unit != "kernel" or found.step_ns is None:
        raise RunError(
            f"Run {run.name} tells nothing of launches.",
            why="it holds no complete step in which a GPU worked",
            fix='record it with `with L.gpu("name"):`, three steps at least',
        )
    busy = float(accounts.frac(*(part.key for part in GPU_PARTS if part.busy)))
    calls = in_interior(run.event_rows.of_kind(Kind.LAUNCH), found)
    return Signature(
        kernels=pieces.per_step,
        calls=round(len(calls) / int(found.interior.sum())),
        median_us=pieces.median_ns / 1e3,
        small_frac=pieces.small_frac,
        idle_frac=1.0 - busy,
        loader_frac=float(accounts.frac("loader")),
        step_ms=found.step_ns / 1e6,
    )


def beside(seen: Mapping[str, Signature], below: str = "") -> View:
    """Signatures, a row each; `below`: a sentence under them."""
    header = ("", "kernels a step", "median, us", "under 10 us", "GPU idle", "of a step for data")
    lines = [
        (
            name,
            each.kernels,
            f"{each.median_us:.1f}",
            *(f"{100 * share:.0f} %" for share in (each.small_frac, each.idle_frac, each.loader_frac)),
        )
        for name, each in seen.items()
    ]
    return tables.rows(header, lines, below=below)


def forecast(run: Run, change: str) -> str:
    """A step as gpulab forecasts it with a change, in words; where it refuses, why."""
    try:
        told = predict(ready(run), chosen(change), history=learned(run))
    except RunError as error:
        return f"none: {error.why}"
    return f"{told.likely_ns / 1e6:.2f} ms ({told.best_ns / 1e6:.2f} to {told.worst_ns / 1e6:.2f})"


# Programs with long kernels.


@dataclass(frozen=True)
class Late:
    """Batches of tokens that take a while to come."""

    pause_s: float
    count: int = 12

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Tensor:
        import torch

        time.sleep(self.pause_s)
        return torch.full((32768,), place)


def tower(pause_s: float) -> None:
    """Run five wide layers on each batch; CUDA code. With a pause each batch comes late, else all are there before."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    embed = nn.Embedding(256, 1024, device="cuda", dtype=torch.bfloat16)
    wide = (nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(5))
    layers = nn.Sequential(*(nn.Sequential(each, nn.GELU()) for each in wide))
    late = Late(pause_s)
    here = [late[place].cuda() for place in range(len(late))] if not pause_s else []
    with torch.no_grad():
        for tokens in here or DataLoader(late, batch_size=None):  # type: ignore[arg-type]
            layers(embed(tokens.cuda()))
            step()


# A model that writes one token at a time.


def decoder(device: str, width: int = 128, depth: int = 6, room: int = 64, growing: bool = False) -> nn.Module:
    """A small transformer that is called with one token and gives the next, its keys and values kept inside.

    `growing`: what is kept is joined anew for each token and so has another size every time; else it has room for
    `room` tokens from the start, and never changes its address.
    """
    import torch
    from torch import nn

    class Decoder(nn.Module):
        place: Tensor  # of the token to come
        places: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(256, width)
            self.blocks = nn.ModuleList(_block(width, 0 if growing else room) for _ in range(depth))
            self.head = nn.Linear(width, 256)
            self.register_buffer("place", torch.zeros(1, dtype=torch.long))
            self.register_buffer("places", torch.arange(room))

        def forward(self, token: Tensor) -> Tensor:
            state, seen = self.embed(token), (self.places <= self.place)[None, None]
            for block in self.blocks:
                state = block(state, self.place, seen)
            self.place.add_(1)
            written: Tensor = self.head(state).argmax(dim=-1)
            return written

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Decoder().to(device).eval()


def _block(width: int, room: int) -> nn.Module:
    """Attention to the tokens so far, and a wide layer; without `room` for them, what is kept grows."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        kept: Tensor  # keys, and values

        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.ask, self.keep = nn.Linear(width, width), nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.register_buffer("kept", torch.zeros(2, room, width))

        def forward(self, state: Tensor, place: Tensor, seen: Tensor) -> Tensor:
            calm = self.before(state)
            fresh = self.keep(calm).view(2, 1, width)
            if room:
                self.kept.index_copy_(1, place, fresh)
            else:
                self.kept = torch.cat((self.kept, fresh), dim=1)
            keys, values, mask = self.kept[:1], self.kept[1:], seen if room else None
            found = functional.scaled_dot_product_attention(self.ask(calm)[None], keys, values, attn_mask=mask)
            state = state + self.out(found[0])
            result: Tensor = state + self.narrow(functional.gelu(self.wide(self.after(state))))
            return result

    return Block()


def captured(step: Callable[[], T]) -> Callable[[], T]:
    """A step on the GPU as one CUDA graph: each call of what comes back starts all of its kernels at once.

    The result is the tensor of the capture, written anew by each call. The step runs three times before.
    """
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # what is made once, such as workspaces, is made here
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> T:
        graph.replay()
        return result

    return replay


def tensors(count: int, side: int, device: str) -> list[torch.nn.Parameter]:
    """So many square parameters with gradients, the same values every time."""
    import torch

    made = []
    for number in range(count):
        values = torch.linspace(-1, 1 + number, side * side, device=device).view(side, side)
        made.append(torch.nn.Parameter(values))
        made[-1].grad = torch.ones_like(values)
    return made


def adam_way(keywords: Any) -> dict[str, bool]:
    """These keywords of Adam, if they are such and a step runs with them; else none."""
    import torch

    try:
        torch.optim.Adam(tensors(1, 2, "cpu"), **keywords).step()
    except (TypeError, ValueError, AssertionError, RuntimeError):
        return {}
    return dict(keywords)


# A grid of programs, run one after the other.


@dataclass
class Grid:
    """Runs kernels program by program, and counts."""

    table: np.ndarray = field(repr=False)  # in the GPU's memory, for all programs
    launches: int = 0
    programs: int = 0
    loads: int = 0  # times that a program fetched the table

    def launch(self, kernel: Callable[..., None], programs: int, *arguments: Any) -> None:
        """Start a kernel as so many programs; each is told which it is, and of how many."""
        self.launches += 1
        self.programs += programs
        for place in range(programs):
            kernel(Program(place, programs, self), *arguments)


@dataclass(frozen=True)
class Program:
    """One program of a grid: a block of threads on a multiprocessor."""

    place: int
    programs: int
    grid: Grid

    def load(self) -> np.ndarray:
        """Fetch the table into this program's own, fast memory; it is counted."""
        self.grid.loads += 1
        return self.grid.table.copy()
