"""How to change the settings of the user's own DataLoader: as code to paste where that is safe, else in words.

The code rebuilds the DataLoader over the same samples in the same order. That is possible only for a plain DataLoader
that a variable holds. If the workers change, another number of random values is drawn per epoch, so a shuffled order
may differ from the second epoch on. An iterable dataset must not be given workers, because each of them would yield
every sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LoaderSettings
from gpulab.rules.engine.pasted_names import is_variable, with_names_for_code
from gpulab.run import Loader

_WITH_WORKERS = ("persistent_workers", "prefetch_factor")  # PyTorch rejects these without workers
_NEED_WORKERS = ("timeout", "multiprocessing_context")  # and these
_SHARDING_LIBRARIES = ("datasets",)  # their iterable datasets give each worker samples of its own
_DATA_LOADER = "DataLoader"
_SAME_DATASET, _SAME_COLLATE = "{dataset}", "{collate}"
_BATCH_SAMPLERS = ("BatchSampler", "_InfiniteConstantSampler")  # PyTorch's own; the other is of an iterable dataset
_TRAINING_ARGUMENTS = ("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_FRAMEWORK_PLACES = {
    "transformers": "In TrainingArguments(...)",
    "lightning": "In the DataLoader that your train_dataloader() returns",
    "accelerate": "In the DataLoader that you pass to accelerator.prepare()",
}
CACHED_DATASET_CODE = """class Cached(torch.utils.data.Dataset):
    \"\"\"Loads every sample once and keeps it in memory: random augmentation no longer changes it.\"\"\"
    def __init__(self, dataset):
        self.samples = [dataset[index] for index in range(len(dataset))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        return self.samples[index]
"""


@dataclass(frozen=True)
class LoaderChange:
    """A change of a DataLoader's settings: code to paste, or advice if no code is safe."""

    code: str = ""
    advice: str = ""
    settings: LoaderSettings | None = None  # as values, if the user's own code creates the DataLoader
    function: str | None = None  # that has the DataLoader; None if unknown


def change_loader(
    evidence: Evidence,
    setup: Loader | None,
    changes: Mapping[str, object],
    dataset: str = _SAME_DATASET,
    collate: str = _SAME_COLLATE,
    *,
    evaluates: bool = False,
) -> LoaderChange:
    """Return how to give the same DataLoader other settings; `evaluates`: it is that of an evaluation.

    `dataset` wraps the user's own dataset: "Cached({dataset})"; `collate` wraps its collate function. Settings
    that were not recorded, such as the order, are taken over from the existing DataLoader.
    """
    setup = with_names_for_code(setup or Loader())
    wraps = (dataset, collate) != (_SAME_DATASET, _SAME_COLLATE)
    if dataset != _SAME_DATASET and setup.iterable:
        return LoaderChange()  # it has no length and no index
    splits = setup.splits_samples or setup.dataset_library in _SHARDING_LIBRARIES
    if setup.iterable and _changes_workers(setup, changes) and not splits:
        return LoaderChange(advice=_sharding_advice(setup, changes))
    if _is_recorded(setup) and not _is_in_variable(setup):
        if wraps:
            return LoaderChange()
        is_own = setup.name is None and setup.kind in (None, _DATA_LOADER) and not setup.framework
        return LoaderChange(
            advice=f"{_place(setup, changes, evaluates)}: {_settings_text(setup, changes)}.",
            settings=_own_settings(setup, changes) if is_own else _settings_in_framework(setup, changes, evaluates),
        )
    if "batch_size" in changes and _is_recorded(setup) and setup.batch_sampler not in _BATCH_SAMPLERS:
        return LoaderChange(advice="Let your batch sampler return larger batches.")
    return LoaderChange(
        code=_code(evidence, setup, changes, dataset, collate),
        settings=None if wraps else _own_settings(setup, changes),
        function=setup.function,
    )


def whole_batches_code(evidence: Evidence, setup: Loader | None) -> str:
    """Return code that indexes the dataset with all indices of a batch at once; "" unless that gives the same batches.

    A TensorDataset can be indexed with a list, and PyTorch's default collate function does nothing more than that.
    """
    if setup is None or (setup.dataset, setup.dataset_library) != ("TensorDataset", "torch") or setup.framework:
        return ""
    setup = with_names_for_code(setup)
    if setup.name is None:
        return ""
    parts = setup.auto_collation, setup.collate, setup.batch_sampler, setup.kind
    if parts != (True, "default_collate", "BatchSampler", _DATA_LOADER):
        return ""
    arguments = [
        f"{setup.name}.dataset",
        f"sampler={setup.name}.sampler if {setup.name}.batch_sampler is None else {setup.name}.batch_sampler",
        "batch_size=None",
        *(f"{name}={value}" for name, value in _unchanged(setup, {}).items()),
        *(f"{name}={setup.name}.{name}" for name in setup.other_settings if setup.workers or name not in _NEED_WORKERS),
    ]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return (
        f"from torch.utils.data import DataLoader\n\n"
        f"{setup.name} = DataLoader(  # {_same_samples(setup, {})}, each indexed at once\n{lines})"
    )


def _is_in_variable(setup: Loader) -> bool:
    """Whether a variable of the user's holds the DataLoader, so that another one can take its place.

    Not with Lightning: among several ranks, it builds the DataLoader again from its attributes. With a batch sampler,
    its batch size is None, so that each batch would be one sample.
    """
    return setup.name is not None and setup.kind in (None, _DATA_LOADER) and not setup.framework


def _changes_workers(setup: Loader, changes: Mapping[str, object]) -> bool:
    """Whether another number of processes iterates over the dataset; without workers, it is one."""
    proposed = changes.get("num_workers", setup.workers)
    return isinstance(proposed, int) and max(1, proposed) != max(1, setup.workers or 0)


def _sharding_advice(setup: Loader, changes: Mapping[str, object]) -> str:
    dataset, workers, settings = setup.dataset or "The dataset", setup.workers or 0, _settings_text(setup, changes)
    split = "its __iter__ splits the samples among the workers (torch.utils.data.get_worker_info())"
    if workers > 1:
        return (
            f"{dataset} is iterable. With {settings}, the samples stay the same only if {split}. If it does not, every "
            f"epoch now has each sample {workers} times."
        )
    return (
        f"{dataset} is iterable: unless {split}, every worker yields all of them. Split them first, then set "
        f"{settings}."
    )


def _are_training_arguments(changes: Mapping[str, object]) -> bool:
    return all(name in _TRAINING_ARGUMENTS for name in changes)


def _place(setup: Loader, changes: Mapping[str, object], evaluates: bool) -> str:
    if setup.framework == "transformers" and not _are_training_arguments(changes):
        return f"In the DataLoader that get_{'eval' if evaluates else 'train'}_dataloader() of your Trainer returns"
    if setup.framework == "lightning" and evaluates:
        return "In the DataLoader that your val_dataloader() returns"
    if setup.framework in _FRAMEWORK_PLACES:
        return _FRAMEWORK_PLACES[setup.framework]
    of_dataset = f" of {setup.dataset_name}" if setup.dataset_name and is_variable(setup.dataset_name) else ""
    return f"Where you create the {setup.kind or _DATA_LOADER}{of_dataset}"


def _own_settings(setup: Loader, changes: Mapping[str, object]) -> LoaderSettings | None:
    """Return the settings as values; None if one of them is no number, such as a function."""
    arguments = {name: value for name, value in changes.items() if isinstance(value, int)}
    if len(arguments) < len(changes):
        return None
    dropped = (*_WITH_WORKERS, *_NEED_WORKERS) if changes.get("num_workers") == 0 else ()
    return LoaderSettings(arguments=arguments, dropped=dropped, dataset=setup.dataset_name)


def _settings_in_framework(setup: Loader, changes: Mapping[str, object], evaluates: bool) -> LoaderSettings | None:
    """Return the settings as arguments of the call that a framework is configured with; None if that is unclear."""
    settings = _own_settings(setup, changes)
    if settings is None or setup.framework not in _FRAMEWORK_PLACES:
        return None
    settings = replace(settings, any_dataset=True, function=f"{'val' if evaluates else 'train'}_dataloader")
    if setup.framework != "transformers":
        return settings
    if not _are_training_arguments(changes) or evaluates:
        return None
    names = {name: _training_argument(name) for name in (*settings.arguments, *settings.dropped)}
    return replace(
        settings,
        call="TrainingArguments",
        arguments={names[name]: value for name, value in settings.arguments.items()},
        dropped=tuple(names[name] for name in settings.dropped),
    )


def _training_argument(name: str) -> str:
    """Return what transformers' TrainingArguments call an argument of a DataLoader."""
    return "per_device_train_batch_size" if name == "batch_size" else f"dataloader_{name}"


def _settings_text(setup: Loader, changes: Mapping[str, object]) -> str:
    """Return the changed settings, as arguments of the DataLoader or of transformers' TrainingArguments."""
    is_argument = setup.framework == "transformers" and _are_training_arguments(changes)
    names = {name: _training_argument(name) if is_argument else name for name in changes}
    return ", ".join(f"{names[name]}={value}" for name, value in changes.items())


def _code(evidence: Evidence, setup: Loader, changes: Mapping[str, object], dataset: str, collate: str) -> str:
    loader = setup.name or evidence.names.loader
    settings = {**_unchanged(setup, changes), **changes}
    batch_size = settings.pop("batch_size", None)
    if not settings.get("num_workers"):
        settings = {name: value for name, value in settings.items() if name not in _WITH_WORKERS}
    batching = _batching_arguments(setup, loader)
    if batch_size is not None:
        batching = _larger_batches(setup, loader, batch_size)
    arguments = [
        dataset.format(dataset=f"{loader}.dataset"),
        *batching,
        f"collate_fn={collate.format(collate=f'{loader}.collate_fn')}",
    ]
    dropped = {*changes, *(_NEED_WORKERS if not settings.get("num_workers") else ())}
    arguments += [f"{name}={loader}.{name}" for name in setup.other_settings if name not in dropped]
    arguments += [f"{name}={value}" for name, value in settings.items()]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    values = ", ".join(f"{name}={value}" for name, value in changes.items())
    setting = f"# Set {values} in your DataLoader(...), or rebuild it:\n"
    if (dataset, collate) != (_SAME_DATASET, _SAME_COLLATE):
        setting = ""  # the dataset or the collate function changes, which the code shows
    workers, cores = changes.get("num_workers"), evidence.run.machine.cores_allowed
    if isinstance(workers, int) and cores is not None and workers > cores:
        setting += "# PyTorch may warn about more workers than cores: workers that wait can share one.\n"
    same = _same_samples(setup, changes, keeps_batches=batch_size is None and collate == _SAME_COLLATE)
    return f"from torch.utils.data import DataLoader\n\n{setting}{loader} = DataLoader(  # {same}\n{lines})"


def _larger_batches(setup: Loader, loader: str, batch_size: object) -> list[str]:
    """Return the batching arguments for batches of another size."""
    if setup.iterable:
        return [f"batch_size={batch_size}", f"drop_last={loader}.drop_last"]
    if setup.auto_collation is False:  # a sampler that yields the indices of a whole batch
        old = f"{loader}.sampler"
        return ["batch_size=None", f"sampler=type({old})({old}.sampler, {batch_size}, {old}.drop_last)"]
    old = f"{loader}.batch_sampler"  # shuffles, or not, whether PyTorch created it or the user
    return [f"batch_sampler=type({old})({old}.sampler, {batch_size}, {old}.drop_last)"]


def _same_samples(setup: Loader, changes: Mapping[str, object], *, keeps_batches: bool = True) -> str:
    """Return what stays the same with these changes, and what does not.

    Each worker has a random number generator of its own. A sampler without its own generator draws a seed per epoch
    from that of the main process, from which the DataLoader's iterator draws, too: as often as it is created.
    """
    same = "the same batches" if keeps_batches and not setup.iterable else "the same samples"
    if "num_workers" not in changes and "persistent_workers" not in changes:
        return f"{same}, in the same order"
    except_for = ", except for random transforms" if "num_workers" in changes else ""
    if not setup.iterable and keeps_batches:
        return f"{same} in the first epoch{except_for}; later shuffles may differ"
    return f"{same}{except_for}"


def _unchanged(setup: Loader, changed: Mapping[str, object]) -> dict[str, object]:
    """Return the recorded settings that the fix does not change."""
    settings: dict[str, object] = {}
    if setup.pin_memory:
        settings["pin_memory"] = True
    if setup.workers and "num_workers" not in changed:
        settings["num_workers"] = setup.workers
    if setup.persistent_workers:
        settings["persistent_workers"] = True
    if setup.prefetch_factor not in (None, 2):
        settings["prefetch_factor"] = setup.prefetch_factor
    return settings


def _is_recorded(setup: Loader) -> bool:
    """Whether the settings were read from the DataLoader, not from a trace."""
    return setup.pin_memory is not None


def _batching_arguments(setup: Loader, loader: str) -> list[str]:
    """Return the batching arguments that this kind of dataset takes."""
    if setup.auto_collation is False:
        return ["batch_size=None", *(() if setup.iterable else (f"sampler={loader}.sampler",))]
    if _is_recorded(setup) and setup.batch_size is None and setup.batches is None:
        return ["batch_size=None"]
    if _is_recorded(setup) and setup.batch_size is None:  # no batching, or the user's own batch sampler
        with_batch_sampler, without_batches = (
            f'{{"batch_sampler": {loader}.batch_sampler}}',
            f'{{"batch_size": None, "sampler": {loader}.sampler}}',
        )
        return [f"**({with_batch_sampler} if {loader}.batch_sampler else {without_batches})"]
    if _is_recorded(setup) and (setup.iterable or setup.batches is None):  # an iterable dataset takes no sampler
        return [f"batch_size={setup.batch_size}", f"drop_last={loader}.drop_last"]
    return [f"batch_sampler={loader}.batch_sampler"]
