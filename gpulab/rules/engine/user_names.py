"""What the user calls the things a fix speaks of, so that its code can be pasted; common names where none is known."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.run import Loader, Run


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names as code: variables, or attributes as `self.model`."""

    loader: str = "loader"
    dataset: str = "loader.dataset"
    model: str = "model"
    optimizer: str = "optimizer"
    optimizer_kind: str = "AdamW"


def names(run: Run) -> Names:
    """The names that were recorded with this run, by the loader, model and optimizer that come first."""
    loader = next(iter(run.loaders), Loader())
    model = next((model.name for model in run.models if model.name), None)
    optimizer = next(iter(run.optimizers), None)
    told = {
        "loader": loader.name,
        "dataset": loader.dataset_name or (f"{loader.name}.dataset" if loader.name else None),
        "model": model,
        "optimizer": optimizer.name if optimizer else None,
        "optimizer_kind": optimizer.kind if optimizer else None,
    }
    return Names(**{name: value for name, value in told.items() if value})
