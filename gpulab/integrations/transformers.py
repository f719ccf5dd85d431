"""`Trainer(callbacks=[Profile()])` records `trainer.train` of Transformers, with its phases."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from gpulab.capture.active_session import is_recording
from gpulab.capture.hooks.user_variables import frame_variables
from gpulab.integrations.method_phases import name_method
from gpulab.integrations.open_phases import OpenPhases
from gpulab.integrations.recorded_training import RecordedTraining, RecordsTraining
from gpulab.phase_names import CHECKPOINT, EVALUATION, PREDICTION, TRAINING

_PHASES = {"evaluate": EVALUATION, "predict": PREDICTION, "_save_checkpoint": CHECKPOINT}  # by method of the Trainer


class Profile(RecordsTraining, TrainerCallback):
    """Records `trainer.train` from its start to its end; afterwards `run` and `report` have the results.

    out: a folder for `NAME.gpulab` and `NAME.html`; each of several ranks writes `rankN.gpulab`. level: "sensors",
    "trace" or "deep". steps: number of steps to record, by default as many as a diagnosis needs. report: print the
    report to stderr, on rank 0. log: give the numbers of `run.summary()` to the trackers of the Trainer.

    Training, evaluation, prediction and checkpoints are phases of the report. While another recording is active, as
    that of `%%gpuprofile`, it only names the phases.

    Pass it as `Trainer(callbacks=[Profile()])`: a Trainer tells its callbacks neither that an evaluation begins nor
    that the training fails, so these methods of this Trainer inform the callback.
    """

    def __init__(
        self,
        out: str | Path | None = None,
        name: str = "train",
        level: str = "trace",
        steps: int | None = None,
        report: bool = True,
        log: bool = False,
    ) -> None:
        self._logs = log
        self._recording = RecordedTraining(out, name, level, steps, report)
        self._phases = OpenPhases()
        self._is_watched = False  # the training that runs: its failure ends the recording

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Watch the methods of the Trainer that is being created."""
        self._watch(_calling_trainer())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start recording, unless nothing would end it if the training failed."""
        if self._is_watched:
            trainer = _calling_trainer() if self._logs else None
            self._recording.log = trainer.log if trainer is not None else None
            if not self._recording.is_running:  # auto_find_batch_size begins the training again
                self._recording.start(args.process_index, args.world_size)
            self._phases.end_all()
            self._phases.begin(TRAINING)
            return
        self._watch(_calling_trainer())
        if not is_recording():
            warnings.warn(
                "gpulab: this training is not recorded, because the callback was added to a Trainer that existed: "
                "pass it as Trainer(callbacks=[Profile()])",
                stacklevel=2,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the recording."""
        self.end_training()

    def begin_training(self) -> None:
        """Expect a training whose end is reported to `end_training`, whatever happens."""
        self._is_watched = True

    def end_training(self, error: BaseException | None = None) -> None:
        """End what is open; `error`: the exception that ended the training."""
        self._is_watched = False
        self._phases.end_all()
        self._recording.end(error)

    def _watch(self, trainer: Any) -> None:
        if trainer is None or isinstance(trainer.train, _WatchedTrain):
            return
        trainer.train = _WatchedTrain(trainer.train, self)
        for method, name in _PHASES.items():
            name_method(trainer, method, name)


class _WatchedTrain:
    """The method `train` of a Trainer; it tells the callback when the training begins and ends."""

    def __init__(self, method: Callable[..., Any], callback: Profile) -> None:
        functools.update_wrapper(self, method)
        self._method, self._callback = method, callback

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        self._callback.begin_training()
        try:
            return self._method(*arguments, **options)
        except BaseException as error:
            self._callback.end_training(error)
            raise
        finally:
            self._callback.end_training()


def _calling_trainer() -> Any:
    """Return the Trainer that calls a callback: callbacks do not receive it."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_code.co_varnames and isinstance(instance := frame_variables(frame).get("self"), Trainer):
            return instance
        frame = frame.f_back  # type: ignore[assignment]
    return None
