"""The labels that a loss ignores, read from the memory of a batch."""

import pytest

import gpulab
from gpulab.capture.hooks.batch_inspection import BatchInspection
from gpulab.capture.hooks.batch_labels import measure_labels
from gpulab.run import Loader

torch = pytest.importorskip("torch")

ROWS, LENGTH = 16, 64
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(5, 30_000, (ROWS, LENGTH), generator=GENERATOR)
MASKED = torch.rand(ROWS, LENGTH, generator=GENERATOR) < 0.15
LABELS = torch.where(MASKED, IDS, -100)
IGNORED = int((~MASKED).sum())


BATCHES = {
    "a dict": lambda: {"input_ids": IDS, "attention_mask": torch.ones(ROWS, LENGTH).long(), "labels": LABELS},
    "a tuple": lambda: (IDS, LABELS),
    "labels alone": lambda: LABELS,
    "32 bits": lambda: (IDS, LABELS.to(torch.int32)),
    "not contiguous": lambda: (IDS, LABELS.T.contiguous().T),
    "nested": lambda: {"text": [IDS], "target": {"tokens": LABELS}},
}


@pytest.mark.parametrize("kind", BATCHES)
def test_ignored_labels_are_counted(kind):
    assert measure_labels(BATCHES[kind](), -100) == (ROWS * LENGTH, IGNORED)


def test_the_ignore_index_of_the_program_is_counted():
    labels = torch.where(MASKED, IDS, 0)
    assert measure_labels((IDS, labels), 0) == (ROWS * LENGTH, IGNORED)
    assert measure_labels((IDS, labels), -100).ignored == 0


def test_padding_of_the_inputs_is_no_ignored_label():
    source = torch.where(torch.arange(LENGTH) < 9, IDS, 0)
    target = torch.where(torch.arange(LENGTH) < 48, IDS, 0)
    assert measure_labels((source, target), 0).ignored == ROWS * (LENGTH - 48)
    assert measure_labels({"input_ids": source, "labels": IDS}, 0).ignored == 0


@pytest.mark.parametrize(
    "batch",
    [
        (IDS, IDS),
        (IDS, torch.full((ROWS,), -100)),
        (IDS, LABELS.float()),
        (IDS.to(torch.uint8), IDS),
        None,
        ["a"],
        torch.zeros(0, LENGTH).long(),
    ],
)
def test_a_batch_without_ignored_labels_has_none(batch):
    labels = measure_labels(batch, -100)
    assert labels is None or not labels.ignored
    assert BatchInspection().inspect(batch, Loader()).ignored_frac is None


def test_masks_of_zero_and_one_are_no_labels():
    mask = (torch.arange(LENGTH) < 9).long().repeat(ROWS, 1)
    assert measure_labels({"attention_mask": mask, "ids": IDS}, 0).ignored == 0


def test_the_share_is_that_of_all_inspected_batches():
    inspection, loader = BatchInspection(), Loader()
    for batch in ((IDS, IDS), (IDS, LABELS), (IDS, torch.full_like(IDS, -100))):
        loader = inspection.inspect(batch, loader)
    assert loader.ignored_frac == (IGNORED + ROWS * LENGTH) / (3 * ROWS * LENGTH)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (torch.nn.CrossEntropyLoss(ignore_index=0), 0),
        (torch.nn.NLLLoss(ignore_index=7), 7),
        (torch.nn.CrossEntropyLoss(), -100),
        (torch.nn.CrossEntropyLoss(ignore_index=-1), -1),
        (torch.nn.MSELoss(), -100),
    ],
)
def test_the_ignore_index_is_that_of_the_loss_in_a_variable(loss, expected):
    def train(criterion):
        for _ in torch.utils.data.DataLoader(IDS, batch_size=4):
            assert criterion is loss

    with gpulab.profile("labels", level="sensors"):
        train(loss)
    assert gpulab.runs["labels"].loaders[0].ignore_index == expected
