"""Log a run to MLflow: its summary as metrics and tags, its report and its recording as artifacts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow

from gpulab.questions.run_names import RunLike, save
from gpulab.run_summary import summary
from gpulab.views.report.report import report
from gpulab.wording import shorten

_MAX_TAG = 500  # older servers store no longer tags


def log_run(run: RunLike, *, recording: bool = False, step: int | None = None) -> None:
    """Log `run.summary()` and the report to the active MLflow run; one is started if there is none.

    recording: also log the `.gpulab` file, which `gpulab.load` opens.
    """
    fields = summary(run)
    numbers = {f"gpulab/{name}": float(value) for name, value in fields.items() if not isinstance(value, str)}
    texts = {f"gpulab.{name}": shorten(value, _MAX_TAG) for name, value in fields.items() if isinstance(value, str)}
    mlflow.log_metrics(numbers, step=step)
    mlflow.set_tags(texts)
    with tempfile.TemporaryDirectory() as folder:
        mlflow.log_artifact(str(report(run).save(Path(folder) / "report.html")), "gpulab")
        if recording:
            mlflow.log_artifact(str(save(run, Path(folder) / "run.gpulab")), "gpulab")
