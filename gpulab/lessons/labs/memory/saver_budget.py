"""A training step with memory savers to choose from: its peak, counted on the meta device, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpulab.errors import GpulabError
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.memory.live_bytes import MIB, count_live_bytes
from gpulab.views.sheet.view import View
from gpulab.wording import percent, size

if TYPE_CHECKING:
    from torch import Tensor

SAVERS = {
    "checkpoint": "recompute each block in the backward pass",
    "selective": "recompute all but the matrix products",
    "halves": "two micro-batches instead of one batch",
    "8bit": "Adam's state in 8 bits",
    "sgd": "SGD with momentum instead of Adam",
}
WIDTH, BLOCKS, ROWS = 256, 12, 2048
BUDGET_MIB = 160


@dataclass(frozen=True, kw_only=True)
class SaverOutcome:
    """The peak of a step with some savers, and its arithmetic relative to the step without any."""

    savers: tuple[str, ...]
    peak_bytes: int  # with weights and optimizer state
    flops: int
    plain_flops: int

    @property
    def cost(self) -> int:
        """Arithmetic of the step in per cent of the step without savers."""
        return round(100 * self.flops / self.plain_flops)

    @property
    def fits(self) -> bool:
        """Whether the peak is within the budget."""
        return self.peak_bytes <= BUDGET_MIB * MIB


def try_savers(savers: Sequence[str]) -> SaverOutcome:
    """Count a step with these savers. Raises GpulabError for an unknown one."""
    unknown = [name for name in savers if name not in SAVERS]
    if unknown:
        raise GpulabError(
            f"There is no memory saver {unknown[0]!r}.", why=f"they are {', '.join(SAVERS)}", fix="choose from these"
        )
    peak, weights = _peak(savers)
    states = {"8bit": 2 + 2 * 4 / 64, "sgd": 4.0}  # bytes per weight
    state_bytes = min([states[name] for name in savers if name in states], default=8.0)
    return SaverOutcome(
        savers=tuple(savers),
        peak_bytes=round(peak + weights * (4 + state_bytes)),
        flops=_flops(savers),
        plain_flops=_flops(()),
    )


def saver_table(outcomes: Sequence[SaverOutcome]) -> View:
    """Compare outcomes."""
    lines = [
        (
            ", ".join(each.savers) or "none",
            size(each.peak_bytes),
            "yes" if each.fits else "no",
            percent(each.cost / 100),
        )
        for each in outcomes
    ]
    return tables.table_view(("savers", "peak", f"fits {BUDGET_MIB} MiB", "arithmetic"), lines)


def keep_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Policy of selective checkpointing: the results of matrix products are stored, all others computed again."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    products = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


def make_blocks(count: int = BLOCKS, width: int = WIDTH) -> Any:
    """Return blocks of LayerNorm, Linear, GELU and Linear, each with a residual connection."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            narrowed: Tensor = self.narrow(functional.gelu(self.widen(self.norm(x))))
            return x + narrowed

    return nn.ModuleList(Block() for _ in range(count))


def _step(savers: Sequence[str], blocks: Any) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    call: Callable[..., Any] = lambda block, x: block(x)  # noqa: E731
    if "checkpoint" in savers:
        call = partial(checkpoint, use_reentrant=False)
    elif "selective" in savers:
        policy = partial(create_selective_checkpoint_contexts, keep_products)
        call = partial(checkpoint, use_reentrant=False, context_fn=policy)
    parts = 2 if "halves" in savers else 1
    for _ in range(parts):
        x = torch.randn(ROWS // parts, WIDTH, requires_grad=True)
        for block in blocks:
            x = call(block, x)
        x.square().mean().backward()


def _peak(savers: Sequence[str]) -> tuple[int, int]:
    """Return the peak of what the step allocates, and the number of weights."""
    import torch

    with torch.device("meta"):
        blocks = make_blocks()
        with count_live_bytes() as live:
            _step(savers, blocks)
    return live.peak_bytes, sum(each.numel() for each in blocks.parameters())


def _flops(savers: Sequence[str]) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        blocks = make_blocks()
        with FlopCounterMode(display=False) as counter:
            _step(savers, blocks)
    return int(counter.get_total_flops())
