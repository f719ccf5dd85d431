"""Settings of a DataLoader, read from objects that may be the user's: each is read once, and no failure gets out."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

from gpulab.capture.protection.guard import class_module, class_name, is_from_outside
from gpulab.capture.seeds import preserve_random_state
from gpulab.run import Loader

_OTHER_DEFAULTS = {
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "generator": None,
    "pin_memory_device": "",
    "in_order": True,
}
_PRIVATE_NAMES = {"multiprocessing_context": "_DataLoader__multiprocessing_context"}
_WORKER_INFO = "get_worker_info"
ITERABLE = 1  # the value of torch.utils.data._DatasetKind.Iterable


class SamplerSettings:
    """Batch size and number of batches of each batch sampler; a new epoch of a DataLoader has the same sampler."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any] | None] = {}
        self._settings: dict[int, tuple[int | None, int | None]] = {}

    def read(self, sampler: Any) -> tuple[int | None, int | None]:
        """Return batch size and length; None for what the sampler does not tell."""
        if not is_known(sampler, self._references):
            for key in [key for key, ref in self._references.items() if ref is not None and ref() is None]:
                del self._references[key], self._settings[key]
            reference = reference_to(sampler)
            if reference is None:  # such as a list; another object may get its id
                return _batching(sampler)
            self._references[id(sampler)] = reference
            self._settings[id(sampler)] = None, None  # if reading is interrupted, it is not repeated
            self._settings[id(sampler)] = _batching(sampler)
        return self._settings[id(sampler)]


def loader_settings(iterator: Any, samplers: SamplerSettings | None = None) -> Loader:
    """Settings of the DataLoader behind an iterator; None for what its objects do not tell.

    `samplers`: what is known of the samplers of earlier iterators, so that the user's code is called once for each.
    """
    sampler = _attribute(iterator, "_index_sampler")
    batch_size, batches = (samplers or SamplerSettings()).read(sampler)
    return Loader(
        workers=_integer(_attribute(iterator, "_num_workers")) or 0,
        batch_size=batch_size,
        pin_memory=_attribute(iterator, "_pin_memory") is True,
        persistent_workers=_flag(_attribute(iterator, "_persistent_workers")),
        prefetch_factor=_integer(_attribute(iterator, "_prefetch_factor")),
        batches=batches,
        batch_sampler=class_name(type(sampler)) if sampler is not None else None,
        iterable=_integer(_attribute(iterator, "_dataset_kind")) == ITERABLE,
        splits_samples=_names_worker_info(type(iterator._dataset)),
        auto_collation=_flag(_attribute(iterator, "_auto_collation")),
        dataset=class_name(type(iterator._dataset)),
        dataset_library=class_module(type(iterator._dataset)).partition(".")[0],
    )


def other_settings(loader: Any) -> tuple[str, ...]:
    """Names of the arguments of this DataLoader that no field of Loader shows and that are not PyTorch's defaults."""
    attributes = loader.__dict__
    return tuple(
        name
        for name, default in _OTHER_DEFAULTS.items()
        if (value := attributes.get(_PRIVATE_NAMES.get(name, name), default)) is not default
        and not (type(value) is type(default) and value == default)
    )


def collate_name(iterator: Any) -> str | None:
    """Name of the function that collates the samples to a batch; None if it is no plain function."""
    function = _attribute(iterator, "_collate_fn")
    return function.__name__ if type(function) is FunctionType else None


def _batching(sampler: Any) -> tuple[int | None, int | None]:
    return _integer(_attribute(sampler, "batch_size")), _length(sampler)


def _attribute(instance: Any, name: str) -> Any:
    """The attribute; None if it is missing, or if reading it fails: it may be a property of the user's."""
    try:
        return getattr(instance, name, None)
    except BaseException as error:  # code of the user's, which the loop itself may never call
        if isinstance(error, KeyboardInterrupt) or is_from_outside(error):
            raise
        return None


def _length(sampler: Any) -> int | None:
    """The number of batches; None if the sampler does not tell.

    A sampler of the user's may draw random numbers to count its batches: they are drawn again after that.
    """
    try:
        if _is_of_torch(sampler) and _is_of_torch(vars(sampler).get("sampler")):  # a batch sampler asks its sampler
            return len(sampler)
        with preserve_random_state():
            return len(sampler)
    except BaseException as error:  # code of the user's, which the loop itself may never call
        if isinstance(error, KeyboardInterrupt) or is_from_outside(error):
            raise
        return None


def _is_of_torch(sampler: Any) -> bool:
    return sampler is None or class_module(type(sampler)).startswith("torch.")


def _integer(value: Any) -> int | None:
    kind = type(value)
    if kind is int:
        return int(value)
    is_numpy = kind.__module__ == "numpy" and class_name(kind).startswith(("int", "uint"))
    return int(value) if is_numpy else None


def _flag(value: Any) -> bool | None:
    return value if type(value) is bool else None


def reference_to(instance: Any) -> weakref.ref[Any] | None:
    """A weak reference; None if the class does not allow any."""
    try:
        return weakref.ref(instance)
    except TypeError:
        return None


def is_known(instance: Any, references: dict[int, weakref.ref[Any] | None]) -> bool:
    """Whether this very object is among them; its `__hash__` and `__eq__` are not called."""
    if id(instance) not in references:
        return False
    reference = references[id(instance)]
    return reference is None or reference() is instance


def _names_worker_info(kind: type) -> bool:
    """Whether the `__iter__` of a dataset asks which worker it runs in, by the names in its code."""
    methods = [vars(base)["__iter__"] for base in kind.__mro__ if "__iter__" in vars(base)]
    return bool(methods) and type(methods[0]) is FunctionType and _WORKER_INFO in methods[0].__code__.co_names
