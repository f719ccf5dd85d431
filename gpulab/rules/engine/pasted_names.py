"""The user's own variable names, so that printed fixes can be pasted; common names where none was recorded."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.run import Loader, Run


@dataclass(frozen=True, kw_only=True)
class UserNames:
    """Variables or attributes as code, e.g. `self.model`."""

    loader: str = "loader"
    dataset: str = "loader.dataset"
    model: str = "model"
    optimizer: str = "optimizer"
    optimizer_kind: str = "AdamW"


def user_names(run: Run) -> UserNames:
    """Return the names recorded with this run, those of its first loader, model and optimizer."""
    loader = next(iter(run.loaders), Loader())
    model = next((model.name for model in run.models if model.name), None)
    optimizer = next(iter(run.optimizers), None)
    recorded = {
        "loader": loader.name,
        "dataset": loader.dataset_name or (f"{loader.name}.dataset" if loader.name else None),
        "model": model,
        "optimizer": optimizer.name if optimizer else None,
        "optimizer_kind": optimizer.kind if optimizer else None,
    }
    return UserNames(**{name: value for name, value in recorded.items() if value})
