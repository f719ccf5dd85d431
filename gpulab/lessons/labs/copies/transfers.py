"""Tables of notebook 07 about routes to the GPU, and a small training loop that yields its losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.extras import require_extra
from gpulab.lessons.labs.copies.copying import ROUTES, BatchCopyCost, route_ms
from gpulab.wording import size

if TYPE_CHECKING:
    import pandas as pd
    import torch


def bandwidth_table(
    pageable: Mapping[int, float], pinned: Mapping[int, float], on_cpu: Mapping[int, float]
) -> pd.DataFrame:
    """Tabulate GB/s by copy size: from pageable and from pinned memory to the GPU, and within this CPU's memory."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    columns = {"from pageable": pageable, "from pinned": pinned, "this CPU, one core": on_cpu}
    return pd.DataFrame(
        {name: [f"{column[key]:.2f}" if key in column else "-" for key in pinned] for name, column in columns.items()},
        index=pd.Index([size(bytes_) for bytes_ in pinned], name="GB/s"),
    )


def copy_cost_table(routes: Mapping[str, BatchCopyCost]) -> pd.DataFrame:
    """Compare the cost of copying a batch by each route, in ms."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    rows = [(route.pinning_ms, route.blocked_ms, route.transfer_ms, route.total_ms) for route in routes.values()]
    return pd.DataFrame(
        [[f"{each:.2f}" for each in row] for row in rows],
        columns=["pinning", "held", "on the link", "total"],
        index=pd.Index(list(routes), name="ms per batch"),
    )


def relative_route_times(size: int, host_bytes_per_s: float) -> dict[str, float]:
    """Calculate the time of each route for a batch of `size` bytes, relative to a plain copy."""
    plain_ms = route_ms(size, "plain", host_bytes_per_s)
    return {route: route_ms(size, route, host_bytes_per_s) / plain_ms for route in ROUTES}


def route_table(size: int, gb_per_s: Sequence[float]) -> pd.DataFrame:
    """Tabulate the calculated time of each route, relative to a plain copy, for several rates of host copies."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    rows = [relative_route_times(size, rate * 1e9) for rate in gb_per_s]
    return pd.DataFrame(
        [[f"{row[route]:.2f}" for route in ROUTES] for row in rows],
        columns=list(ROUTES),
        index=pd.Index([f"{rate} GB/s" for rate in gb_per_s], name="time, plain = 1"),
    )


def training_losses(steps: int, seed: int = 0) -> Iterator[torch.Tensor]:
    """Train a small model on the CPU, and yield the detached loss of each step."""
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


def with_dtypes(tensor_groups: Iterable[Iterable[Any]] | None) -> list[dict[str, Any]]:
    """Return each group of tensors with its dtypes, so that a comparison detects a changed dtype; [] for None."""
    groups = [list(group) for group in tensor_groups or ()]
    return [{"types": ", ".join(sorted({str(each.dtype) for each in group})), "values": group} for group in groups]
