"""Code that rebuilds the user's own DataLoader with other arguments, ready to paste."""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.rules.engine.evidence import Evidence
from gpulab.run import Loader

_WITH_WORKERS = ("persistent_workers", "prefetch_factor")  # PyTorch rejects these without workers
CACHED_DATASET_CODE = """class Cached(torch.utils.data.Dataset):
    \"\"\"Loads every sample once, before training, and keeps it in memory.\"\"\"
    def __init__(self, dataset):
        self.samples = [dataset[index] for index in range(len(dataset))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        return self.samples[index]
"""


def data_loader_code(
    evidence: Evidence, setup: Loader | None, changes: Mapping[str, object], dataset: str = "{dataset}"
) -> str:
    """Return code for the same DataLoader over the same batches, with the changed arguments in a comment first.

    `dataset` wraps the user's own dataset: "Cached({dataset})". Settings that were not recorded, such as the order, are
    taken over from the existing DataLoader.
    """
    setup = setup or Loader()
    loader = setup.name or evidence.names.loader
    settings = {**_unchanged(setup, changes), **changes}
    if not settings.get("num_workers"):
        settings = {name: value for name, value in settings.items() if name not in _WITH_WORKERS}
    arguments = [
        dataset.format(dataset=f"{loader}.dataset"),
        *_batching_arguments(setup, loader),
        f"collate_fn={loader}.collate_fn",
    ]
    if settings.get("num_workers") and setup.workers:
        arguments.append(f"worker_init_fn={loader}.worker_init_fn")
    arguments += [f"{name}={value}" for name, value in settings.items()]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    size = f"the same batches of {setup.batch_size}" if setup.batch_size else "the same batches"
    setting = f"# In your DataLoader(...): {', '.join(f'{name}={value}' for name, value in changes.items())}\n"
    if dataset != "{dataset}":
        setting = ""  # the dataset changes, which the code shows
    return (
        f"from torch.utils.data import DataLoader\n\n{setting}"
        f"{loader} = DataLoader(  # {size}, in the same order\n{lines})"
    )


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


def _batching_arguments(setup: Loader, loader: str) -> list[str]:
    """Return the batching arguments that this kind of dataset takes."""
    is_recorded = setup.workers is not None and setup.pin_memory is not None  # recorded here, not read from a trace
    if is_recorded and setup.batch_size is None and setup.batches is None:
        return ["batch_size=None"]
    if is_recorded and setup.batch_size is None:  # no batching, or the user's own batch sampler
        with_batch_sampler, without_batches = (
            f'{{"batch_sampler": {loader}.batch_sampler}}',
            f'{{"batch_size": None, "sampler": {loader}.sampler}}',
        )
        return [f"**({with_batch_sampler} if {loader}.batch_sampler else {without_batches})"]
    if is_recorded and setup.batches is None:  # an iterable dataset of unknown length takes no sampler
        return [f"batch_size={setup.batch_size}", f"drop_last={loader}.drop_last"]
    return [f"batch_sampler={loader}.batch_sampler"]
