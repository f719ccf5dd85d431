"""Tables of notebook 08: peak rates of GPUs and layer times by dtype; also a checkpoint round trip and warnings.

Nothing here is measured: peak rates are published, layer times come from runs.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.extras import require_extra
from gpulab.hardware.lookup import resolve
from gpulab.lessons.labs.kernels.mixed_precision import LayerCall
from gpulab.wording import number

if TYPE_CHECKING:
    import pandas as pd

COMPARED_GPUS = ("T4", "V100 SXM2", "RTX 3090", "A100 80 GB SXM", "H100 SXM")


def peak_table() -> pd.DataFrame:
    """Return the speedup of half-precision matrix products over float32 and TF32, from the data sheets of some GPUs."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    rows = []
    for spec in map(resolve, COMPARED_GPUS):
        half, tf32 = spec.half_flops_per_s, spec.tf32_flops_per_s
        rows.append((f"{half / spec.float32_flops_per_s:.1f}", f"{half / tf32:.1f}" if tf32 else "no TF32"))
    index = pd.Index(COMPARED_GPUS, name="speedup of half precision")
    return pd.DataFrame(rows, columns=["over float32", "over TF32"], index=index)


def layer_table(wide: Mapping[str, LayerCall], narrow: Mapping[str, LayerCall]) -> pd.DataFrame:
    """Compare one call of each layer in float32 and in 16 bits: time, traffic, and their ratios."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    names = [name for name in wide if name in narrow]
    rows = [
        (
            f"{wide[name].ms:.2f} -> {narrow[name].ms:.2f}",
            f"{wide[name].ms / narrow[name].ms:.1f}",
            f"{number(wide[name].bytes / 1e6)} -> {number(narrow[name].bytes / 1e6)}",
            f"{wide[name].bytes / narrow[name].bytes:.1f}",
        )
        for name in names
    ]
    columns = ["ms", "speedup", "MB", "traffic ratio"]
    return pd.DataFrame(rows, columns=columns, index=pd.Index(names, name="one call"))


def checkpoint_round_trip(states: Mapping[str, Any]) -> dict[str, Any]:
    """Save states to a checkpoint and load them again."""
    import torch

    file = io.BytesIO()
    torch.save(dict(states), file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file)
    return loaded


def warning_categories(body: Callable[[], object]) -> list[str]:
    """Run code and return the categories of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return [each.category.__name__ for each in caught]
