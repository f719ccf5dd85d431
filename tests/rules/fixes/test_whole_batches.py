"""Code that indexes a TensorDataset once per batch: the same batches, and only where that holds."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import gpulab
from gpulab.rules.data.loader_code import change_loader, whole_batches_code
from gpulab.rules.engine.pasted_names import user_names

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

ROWS = TensorDataset(torch.arange(74).reshape(37, 2).float(), torch.arange(37))


class Rows(Dataset):
    def __len__(self):
        return 37

    def __getitem__(self, index):
        return ROWS[index]


def first_column(samples):
    return torch.stack([sample[0] for sample in samples])


def code_for(batches):
    with gpulab.profile("rows", level="sensors") as session:
        for _ in batches:
            pass
    return whole_batches_code(SimpleNamespace(names=user_names(session.run)), session.run.loaders[0])


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 5, "shuffle": True, "drop_last": True},
        {"batch_size": 4, "num_workers": 1, "generator": torch.Generator()},
    ],
    ids=["in order", "shuffled", "with a worker"],
)
def test_the_batches_stay_the_same(options):
    batches = DataLoader(ROWS, **options)
    namespace, code = {"batches": batches}, code_for(batches)
    exec(code, namespace)
    exec(code, namespace)  # whoever runs a cell again
    changed = namespace["batches"]
    assert len(changed) == len(batches)
    both = []
    for loader in (batches, changed):
        torch.manual_seed(0)
        if batches.generator is not None:
            batches.generator.manual_seed(0)
        both.append(list(loader))
    for before, after in zip(*both, strict=True):
        assert type(before) is type(after)
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Rows(), batch_size=4),
        lambda: DataLoader(ROWS, batch_size=4, collate_fn=first_column),
        lambda: DataLoader(ROWS, batch_size=None),
        lambda: DataLoader(ROWS, batch_sampler=[[0, 1], [2]]),
    ],
    ids=["another dataset", "a collate function", "no batches", "own batches"],
)
def test_other_loaders_get_no_such_code(make):
    batches = make()
    assert code_for(batches) == ""


def test_a_loader_without_a_name_gets_no_such_code():
    with gpulab.profile("rows", level="sensors") as session:
        for _ in DataLoader(ROWS, batch_size=4):
            pass
    assert whole_batches_code(SimpleNamespace(names=user_names(session.run)), session.run.loaders[0]) == ""


@pytest.mark.parametrize("name", ["-2", "a b", "x; import os", "lambda"])
def test_a_name_from_a_file_that_is_no_variable_gets_no_code(name):
    with gpulab.profile("rows", level="sensors") as session:
        loader = DataLoader(ROWS, batch_size=4)
        for _ in loader:
            pass
    forged = replace(session.run.loaders[0], name=name)
    assert whole_batches_code(SimpleNamespace(names=user_names(session.run)), forged) == ""
    change = change_loader(SimpleNamespace(names=user_names(session.run), run=session.run), forged, {"num_workers": 2})
    assert (change.code, "num_workers=2" in change.advice) == ("", True)
