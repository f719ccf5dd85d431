"""Settings that two runs recorded with different values: they show which change was made between the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.rules import Diagnosis, Finding
from gpulab.run import Loader, Model, Optimizer, Run
from gpulab.wording import shorten

_HALF_WORDS = {"BFloat16": "bf16", "Half": "fp16"}  # in the types of operator inputs, and as values of the what-if amp
_MATRIX_OPERATORS = re.compile(r"aten::(addmm|mm|bmm|baddbmm|linear|matmul|convolution|conv[123]d|_convolution)$")
_RARE_FRAC, _COMMON_FRAC = 0.1, 0.5  # of the calls of matrix operators: mixed precision is off, or on
_MAX_VALUE_WIDTH = 40  # characters
_DEFAULT = "default"

Described = TypeVar("Described", Model, Optimizer)


@dataclass(frozen=True)
class RecordedChange:
    """A setting with another value in the second run."""

    setting: str  # "num_workers"
    before: str
    after: str
    rewrites: str = ""  # the what-if that predicts it: "workers=4"; "" if none does
    in_code: str = ""  # a pattern for this value in the code or advice of a fix; "": setting=value

    def is_in_fix_of(self, finding: Finding) -> bool:
        """Whether the fix of a finding sets this value."""
        pattern = self.in_code or rf"{re.escape(self.setting)}={re.escape(self.after)}\b"
        return re.search(pattern, f"{finding.fix}\n{finding.advice}") is not None

    def __str__(self) -> str:
        values = (shorten(value, _MAX_VALUE_WIDTH) for value in (self.before, self.after))
        return f"{self.setting} {' -> '.join(values)}"


def recorded_changes(before: Diagnosis, after: Diagnosis) -> tuple[RecordedChange, ...]:
    """Return the settings of loader, model, optimizer and PyTorch that are known in both runs and differ."""
    changes: list[RecordedChange] = []
    loaders = training_loader(before.run), training_loader(after.run)
    if loaders[0] is not None and loaders[1] is not None:
        on_gpu = after.ledger is not None and after.ledger.device == "gpu"
        changes += _loader_changes(loaders[0], loaders[1], on_gpu)
    for models in _paired(before.run.models, after.run.models):
        changes += _model_changes(*models)
    for optimizers in _paired(before.run.optimizers, after.run.optimizers):
        changes += _optimizer_changes(*optimizers)
    return (*changes, *_precision_changes(before.run, after.run), *_fact_changes(before.run, after.run))


def unapplied_setting(finding: Finding, after: Run) -> str:
    """Return the number of workers that a fix sets and the second run does not have: "num_workers=2"; "" if none.

    Fixes of other topics name a number of workers only as an alternative.
    """
    loader = training_loader(after)
    values = re.findall(r"num_workers=(\d+)", f"{finding.fix}\n{finding.advice}")
    if finding.topic != "data" or loader is None or loader.workers is None or not values:
        return ""
    if str(loader.workers) in values:
        return ""
    return f"num_workers={values[0]}"


def _paired(before: tuple[Described, ...], after: tuple[Described, ...]) -> Iterator[tuple[Described, Described]]:
    return zip(before, after, strict=True) if len(before) == len(after) else iter(())


def _loader_changes(before: Loader, after: Loader, on_gpu: bool) -> Iterator[RecordedChange]:
    workers = _change("num_workers", before.workers, after.workers)
    if workers is not None:
        yield replace(workers, rewrites=f"workers={after.workers}" if after.workers else "")
    elif after.workers:  # otherwise these follow from the number of workers
        yield from _changes(
            _change("persistent_workers", before.persistent_workers, after.persistent_workers),
            _change("prefetch_factor", before.prefetch_factor, after.prefetch_factor),
        )
    size = _change("batch_size", before.batch_size, after.batch_size)
    if size is not None:
        yield replace(size, rewrites=f"batch={after.batch_size}")
    pinned = _change("pin_memory", before.pin_memory, after.pin_memory)
    if pinned is not None and on_gpu:  # without a GPU, it has no effect
        yield replace(pinned, rewrites="pin_memory" if after.pin_memory else "")
    yield from _changes(
        _named_change("dataset", before.dataset, after.dataset),
        _named_change("collate_fn", before.collate, after.collate),
    )


def _model_changes(before: Model, after: Model) -> Iterator[RecordedChange]:
    compiled = _change("torch.compile", before.compiled, after.compiled)
    if compiled is not None:
        is_on = bool(after.compiled)
        yield replace(compiled, rewrites="compile" if is_on else "", in_code=r"torch\.compile\(" if is_on else "")
    layout = _change("channels_last", before.channels_last, after.channels_last)
    if layout is not None:
        is_on = bool(after.channels_last)
        yield replace(layout, rewrites="channels_last" if is_on else "", in_code="channels_last" if is_on else "")
    dtypes = (" and ".join(model.dtypes) or None for model in (before, after))
    yield from _changes(
        _named_change("model", before.kind, after.kind),
        _named_change("model dtype", *dtypes),
        _named_change("model device", before.device, after.device),
    )


def _optimizer_changes(before: Optimizer, after: Optimizer) -> Iterator[RecordedChange]:
    kind = _named_change("optimizer", before.kind, after.kind)
    if kind is not None:
        yield kind
        return
    for name in ("fused", "foreach"):
        values = getattr(before, name), getattr(after, name)
        if bool(values[0]) != bool(values[1]):
            before_text, after_text = (_DEFAULT if value is None else str(value) for value in values)
            yield RecordedChange(name, before_text, after_text, rewrites=f"optimizer={name}" if values[1] else "")


def _precision_changes(before: Run, after: Run) -> Iterator[RecordedChange]:
    """Yield the precision of matrix operators: that of the models, or of autocast."""
    one, other = _half_shares(before), _half_shares(after)
    for word, typed in _HALF_WORDS.items():
        if one is None or other is None or one.get(word, 0.0) > _RARE_FRAC or other.get(word, 0.0) < _COMMON_FRAC:
            continue
        name = {"bf16": "bfloat16", "fp16": "float16"}[typed]
        yield RecordedChange("dtype of matrix products", "float32", name, rewrites=f"amp={typed}", in_code=name)


def _half_shares(run: Run) -> dict[str, float] | None:
    """Return the share of calls of matrix operators whose inputs have each narrow type; None if not recorded."""
    if not len(run.shape_rows):
        return None
    names, types = run.event_rows.text("name"), run.shape_rows.text("dtypes")
    is_matrix = np.array([_MATRIX_OPERATORS.fullmatch(name) is not None for name in names.vocabulary] or [False])
    events = run.shape_rows["event"]
    selected = is_matrix[names.codes[events]]
    if not selected.any():
        return None
    codes = types.codes[selected]
    return {
        word: float(np.isin(codes, [code for code, text in enumerate(types.vocabulary) if word in text]).mean())
        for word in _HALF_WORDS
    }


def _fact_changes(before: Run, after: Run) -> Iterator[RecordedChange]:
    """Yield the settings of PyTorch that a program changes on purpose."""
    rewrites = {"float32_matmul_precision": "tf32"}
    patterns = {
        "threads": r"(set_num_threads\({0}\)|OMP_NUM_THREADS={0}\b)",
        "float32_matmul_precision": r"set_float32_matmul_precision\(\"{0}\"\)",
        "cudnn_benchmark": r"cudnn\.benchmark = {0}\b",
    }
    for fact, pattern in patterns.items():
        change = _change(fact, before.facts.get(fact), after.facts.get(fact))
        if change is not None:
            is_faster = change.before == "highest"
            in_code = pattern.format(re.escape(change.after))
            yield replace(change, rewrites=rewrites.get(fact, "") if is_faster else "", in_code=in_code)


def _changes(*changes: RecordedChange | None) -> Iterator[RecordedChange]:
    return (change for change in changes if change is not None)


def _change(setting: str, before: object, after: object) -> RecordedChange | None:
    """Return a setting that differs; None if it is the same, or unknown in a run."""
    if before is None or after is None or before == after:
        return None
    return RecordedChange(setting, str(before), str(after))


def _named_change(setting: str, before: str | None, after: str | None) -> RecordedChange | None:
    """Return the class or device of an object that differs; a fix that sets it contains its name."""
    change = _change(setting, before, after)
    return None if change is None else replace(change, in_code=rf"\b{re.escape(change.after)}\b")
