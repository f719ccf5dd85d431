"""The user's own DataLoader with other arguments, as code that runs when it is pasted."""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.rules.engine.evidence import Evidence
from gpulab.run import Loader

_WITH_WORKERS = ("persistent_workers", "prefetch_factor")  # PyTorch refuses these where there are no workers
KEPT = """class Kept(torch.utils.data.Dataset):
    \"\"\"Makes every item once, before training, and keeps it.\"\"\"
    def __init__(self, items):
        self.items = [items[index] for index in range(len(items))]
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]
"""


def rebuilt(seen: Evidence, setup: Loader | None, changed: Mapping[str, object], dataset: str = "{dataset}") -> str:
    """The DataLoader again, over the same batches, with what changes said first.

    `dataset` wraps the user's own: "Kept({dataset})". What cannot be known, such as the order, is taken over.
    """
    setup = setup or Loader()
    loader = setup.name or seen.names.loader
    told = {**_kept(setup, changed), **changed}
    if not told.get("num_workers"):
        told = {name: value for name, value in told.items() if name not in _WITH_WORKERS}
    arguments = [
        dataset.format(dataset=f"{loader}.dataset"),
        *_batches(setup, loader),
        f"collate_fn={loader}.collate_fn",
    ]
    if told.get("num_workers") and setup.workers:
        arguments.append(f"worker_init_fn={loader}.worker_init_fn")
    arguments += [f"{name}={value}" for name, value in told.items()]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    size = f"the same batches of {setup.batch_size}" if setup.batch_size else "the same batches"
    setting = f"# In your DataLoader(...): {', '.join(f'{name}={value}' for name, value in changed.items())}\n"
    if dataset != "{dataset}":
        setting = ""  # what changes is the dataset, in plain sight
    return (
        f"from torch.utils.data import DataLoader\n\n{setting}"
        f"{loader} = DataLoader(  # {size}, in the same order\n{lines})"
    )


def _kept(setup: Loader, changed: Mapping[str, object]) -> dict[str, object]:
    """What the user had set and the fix does not touch."""
    had: dict[str, object] = {}
    if setup.pin_memory:
        had["pin_memory"] = True
    if setup.workers and "num_workers" not in changed:
        had["num_workers"] = setup.workers
    if setup.persistent_workers:
        had["persistent_workers"] = True
    if setup.prefetch_factor not in (None, 2):
        had["prefetch_factor"] = setup.prefetch_factor
    return had


def _batches(setup: Loader, loader: str) -> list[str]:
    """How the dataset is cut into batches, in the words of the kind of dataset it is."""
    known = setup.workers is not None and setup.pin_memory is not None  # recorded here, not read from a trace
    if known and setup.batch_size is None and setup.batches is None:
        return ["batch_size=None"]
    if known and setup.batch_size is None:  # no batches, or a sampler of the user's that makes them
        own, single = (
            f'{{"batch_sampler": {loader}.batch_sampler}}',
            f'{{"batch_size": None, "sampler": {loader}.sampler}}',
        )
        return [f"**({own} if {loader}.batch_sampler else {single})"]
    if known and setup.batches is None:  # an iterable dataset of unknown length takes no sampler
        return [f"batch_size={setup.batch_size}", f"drop_last={loader}.drop_last"]
    return [f"batch_sampler={loader}.batch_sampler"]
