"""What notebook 07 shows of ways to the GPU, as tables, and a small training whose losses are there to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.lessons.labs.copies.copying import ROUTES, Moved, route_ms
from gpulab.wording import size

if TYPE_CHECKING:
    import pandas as pd
    import torch


def rates(pageable: Mapping[int, float], pinned: Mapping[int, float], here: Mapping[int, float]) -> pd.DataFrame:
    """GB/s by the size of a copy: from both kinds of memory to the GPU, and for some sizes within this CPU's memory."""
    import pandas as pd

    columns = {"from pageable": pageable, "from pinned": pinned, "this CPU, one core": here}
    return pd.DataFrame(
        {name: [f"{told[key]:.2f}" if key in told else "-" for key in pinned] for name, told in columns.items()},
        index=pd.Index([size(bytes_) for bytes_ in pinned], name="GB/s"),
    )


def beside(ways: Mapping[str, Moved]) -> pd.DataFrame:
    """What a batch costs by each way to the GPU, in ms."""
    import pandas as pd

    rows = [(way.pinning_ms, way.held_ms, way.copying_ms, way.there_ms) for way in ways.values()]
    return pd.DataFrame(
        [[f"{each:.2f}" for each in row] for row in rows],
        columns=["pinning", "held", "on the link", "in all"],
        index=pd.Index(list(ways), name="ms a batch"),
    )


def times_as_long(size: int, host_bytes_per_s: float) -> dict[str, float]:
    """By route of a batch of so many bytes: how many times as long as a plain copy it takes, by arithmetic."""
    plain_ms = route_ms(size, "plain", host_bytes_per_s)
    return {route: route_ms(size, route, host_bytes_per_s) / plain_ms for route in ROUTES}


def losses(steps: int, seed: int = 0) -> Iterator[torch.Tensor]:
    """Train a small model on the CPU; gives the loss of each step, apart from its graph, while it goes on."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        inputs = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def typed(given: Iterable[Iterable[Any]]) -> list[dict[str, Any]]:
    """Groups of tensors with the types in each named, so that a comparison sees a number that changed its type."""
    groups = [list(group) for group in given]
    return [{"types": ", ".join(sorted({str(each.dtype) for each in group})), "values": group} for group in groups]
