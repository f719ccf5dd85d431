"""`Trainer(callbacks=[Profile()])` records `trainer.fit` of Lightning, with its phases."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from gpulab.integrations.method_phases import name_method, restore_method
from gpulab.integrations.open_phases import OpenPhases
from gpulab.integrations.recorded_training import RecordedTraining, RecordsTraining
from gpulab.phase_names import CHECKPOINT, PREDICTION, SANITY_CHECK, TEST, TRAINING, VALIDATION

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # its name before 2.0


class Profile(RecordsTraining, Callback):
    """Records `trainer.fit` from its start to its end; afterwards `run` and `report` have the results.

    out: a folder for `NAME.gpulab` and `NAME.html`; each of several ranks writes `rankN.gpulab`. level: "sensors",
    "trace" or "deep". steps: number of steps to record, by default as many as a diagnosis needs. report: print the
    report to stderr, on rank 0. log: give the numbers of `run.summary()` to the loggers of the trainer.

    Training, sanity check, validation, test, prediction and checkpoints are phases of the report. While another
    recording is active, as that of `%%gpuprofile`, it only names the phases.
    """

    def __init__(
        self,
        out: str | Path | None = None,
        name: str = "fit",
        level: str = "trace",
        steps: int | None = None,
        report: bool = True,
        log: bool = False,
    ) -> None:
        super().__init__()
        self._logs = log
        self._recording = RecordedTraining(out, name, level, steps, report)
        self._phases = OpenPhases()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording."""
        self._recording.log = functools.partial(_log, trainer) if self._logs else None
        self._recording.start(trainer.global_rank, trainer.world_size)
        name_method(trainer, "save_checkpoint", CHECKPOINT)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording."""
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording of a training that fails."""
        self._end(trainer, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End what is still open, as when Lightning's tuner ends a training early."""
        self._end(trainer)

    def _end(self, trainer: Any, error: BaseException | None = None) -> None:
        self._phases.end_all()
        restore_method(trainer, "save_checkpoint")
        self._recording.end(error)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the phase."""
        self._phases.begin(TRAINING)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the phase."""
        self._phases.end(TRAINING)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the phase."""
        self._phases.begin(SANITY_CHECK)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """End the phase."""
        self._phases.end(SANITY_CHECK)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the phase; the sanity check, which validates, has its own."""
        if not trainer.sanity_checking:
            self._phases.begin(VALIDATION)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End the phase."""
        self._phases.end(VALIDATION)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the phase."""
        self._phases.begin(TEST)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """End the phase."""
        self._phases.end(TEST)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the phase."""
        self._phases.begin(PREDICTION)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """End the phase."""
        self._phases.end(PREDICTION)


def _log(trainer: Any, metrics: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)
        logger.save()
