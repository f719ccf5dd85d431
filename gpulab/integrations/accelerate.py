"""`with Profile(accelerator):` records a loop that Accelerate runs on one process or several."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from gpulab.integrations.method_phases import name_method, restore_method
from gpulab.integrations.recorded_training import RecordedTraining, RecordsTraining
from gpulab.phase_names import CHECKPOINT

_SAVES = ("save_state", "save_model")


class Profile(RecordsTraining):
    """Records a block in every process of an `Accelerator`; afterwards `run` and `report` have the results.

    out: a folder for `NAME.gpulab` and `NAME.html`; each of several ranks writes `rankN.gpulab`. level: "sensors",
    "trace" or "deep". steps: number of steps to record, by default as many as a diagnosis needs. report: print the
    report to stderr, on rank 0. Checkpoints of the accelerator are phases of the report; name others by
    `with gpulab.phase("validation")`. While another recording is active, as that of `%%gpuprofile`, it only names
    these. An exception in the block propagates, and the run is kept.
    """

    def __init__(
        self,
        accelerator: Any,
        *,
        out: str | Path | None = None,
        name: str = "training",
        level: str = "trace",
        steps: int | None = None,
        report: bool = True,
    ) -> None:
        self._accelerator = accelerator
        self._recording = RecordedTraining(out, name, level, steps, report)

    def __enter__(self) -> Profile:
        self._recording.start(self._accelerator.process_index, self._accelerator.num_processes)
        for method in _SAVES:
            name_method(self._accelerator, method, CHECKPOINT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for method in _SAVES:
            restore_method(self._accelerator, method)
        self._recording.end(error)
