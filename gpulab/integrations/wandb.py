"""Log a run to Weights & Biases: its summary in the run's summary, its report as HTML."""

from __future__ import annotations

from typing import Any

import wandb

from gpulab.errors import GpulabError
from gpulab.questions.run_names import RunLike
from gpulab.run_summary import summary
from gpulab.views.report.report import report


def log_run(run: RunLike, wandb_run: Any = None) -> None:
    """Add `run.summary()` to the summary of a W&B run, as `gpulab/NAME`, and log the report.

    wandb_run: by default the active one. Raises GpulabError if there is none.
    """
    target = wandb.run if wandb_run is None else wandb_run
    if target is None:
        raise GpulabError(
            "There is no W&B run to log to.", why="wandb.init() was not called, or the run is finished",
            fix="call wandb.init() first, or pass wandb_run=",
        )  # fmt: skip
    target.summary.update({f"gpulab/{name}": value for name, value in summary(run).items()})
    target.log({"gpulab/report": wandb.Html(report(run).html_page(), inject=False)})
