"""Log a run to TensorBoard: its summary as scalars, its report as text, its charts as images."""

from __future__ import annotations

from typing import Any

from gpulab.questions.run_names import RunLike
from gpulab.run_summary import summary
from gpulab.views.report.report import report
from gpulab.views.sheet.markdown import sheet_markdown


def log_run(run: RunLike, writer: Any, step: int = 0) -> None:
    """Write `run.summary()` and the report with a SummaryWriter, under `gpulab/`.

    writer: of torch.utils.tensorboard, tensorboardX, or Lightning's `logger.experiment`.
    """
    for name, value in summary(run).items():
        if isinstance(value, str):
            writer.add_text(f"gpulab/{name}", value, step)
        else:
            writer.add_scalar(f"gpulab/{name}", float(value), step)
    writer.add_text("gpulab/report", sheet_markdown(report(run).sheet), step)
