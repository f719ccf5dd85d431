"""What notebook 08 shows side by side: peaks of GPUs and layers by type of number; and what it saves and is warned of.

Nothing here is measured: peaks are published, layers are read from runs.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.hardware.lookup import resolve
from gpulab.lessons.labs.kernels.mixed_precision import Layer
from gpulab.wording import number

if TYPE_CHECKING:
    import pandas as pd

SHOWN = ("T4", "V100 SXM2", "RTX 3090", "A100 80 GB SXM", "H100 SXM")


def peaks() -> pd.DataFrame:
    """How many times as fast some GPUs multiply matrices in half precision, by their data sheets."""
    import pandas as pd

    rows = []
    for spec in map(resolve, SHOWN):
        half, tf32 = spec.half_flops_per_s, spec.tf32_flops_per_s
        rows.append((f"{half / spec.float32_flops_per_s:.1f}", f"{half / tf32:.1f}" if tf32 else "no TF32"))
    index = pd.Index(SHOWN, name="half precision, times as fast")
    return pd.DataFrame(rows, columns=["as float32", "as TF32"], index=index)


def beside(wide: Mapping[str, Layer], narrow: Mapping[str, Layer]) -> pd.DataFrame:
    """One call of each layer that both tell of: in float32, in 16 bits, and how many times as fast it became."""
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
    columns = ["ms", "times as fast", "MB", "times fewer"]
    return pd.DataFrame(rows, columns=columns, index=pd.Index(names, name="one call"))


def stored(states: Mapping[str, Any]) -> dict[str, Any]:
    """States as they come back from a checkpoint file."""
    import torch

    file = io.BytesIO()
    torch.save(dict(states), file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file)
    return loaded


def warned(body: Callable[[], object]) -> list[str]:
    """What a piece of code warns of, by kind."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return [each.category.__name__ for each in caught]
