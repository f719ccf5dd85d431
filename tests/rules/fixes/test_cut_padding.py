"""The printed code that cuts batches to their longest row, run on the real DataLoader: same samples, same loss."""

from collections import UserDict
from dataclasses import replace
from types import SimpleNamespace

import pytest

import gpulab
from gpulab.rules.data.padding_code import cut_padding_code
from gpulab.rules.engine.pasted_names import user_names

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, default_collate  # noqa: E402

LENGTH = 64


class Sentences(Dataset):
    """Sentences of 5 to 20 tokens, padded to 64."""

    def __init__(self, *, left=False, label=-100, per_token=False):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(5, 21, (37, 1), generator=generator)
        at = torch.arange(LENGTH)[None].flip(1) if left else torch.arange(LENGTH)[None]
        self.mask = (at < lengths).long()
        self.ids = torch.randint(3, 500, (37, LENGTH), generator=generator) * self.mask
        tags = torch.randint(0, 5, (37, LENGTH), generator=generator)
        self.labels = torch.where(self.mask.bool(), tags, label) if per_token else torch.arange(37) % 5

    def __len__(self):
        return 37

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def encoding(samples):
    return UserDict(default_collate(samples))


def in_a_tuple(samples):
    batch = default_collate(samples)
    return batch["input_ids"], batch["attention_mask"], batch["labels"]


def code_for(batches):
    with gpulab.profile("sentences", level="sensors") as session:
        for _ in batches:
            pass
    evidence = SimpleNamespace(names=user_names(session.run), run=session.run)
    return cut_padding_code(evidence, session.run.loaders[0])


class Classifier(torch.nn.Module):
    """Attention over the tokens that the mask shows, then the mean of these."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(500, 16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = torch.nn.Linear(16, 5)

    def forward(self, input_ids, attention_mask, labels):
        x = self.embedding(input_ids)
        x, _ = self.attention(x, x, x, key_padding_mask=attention_mask == 0)
        if labels.dim() == 1:
            x = (x * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        scores = self.out(x)
        return torch.nn.functional.cross_entropy(scores.view(-1, 5), labels.view(-1))


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (Sentences(), {"batch_size": 4, "shuffle": True}),
        (Sentences(per_token=True), {"batch_size": 5, "drop_last": True}),
        (Sentences(), {"batch_size": 4, "collate_fn": encoding}),
        (Sentences(), {"batch_size": 4, "num_workers": 1, "persistent_workers": True}),
    ],
    ids=["shuffled", "a label per token", "an encoding", "a worker"],
)
def test_batches_are_shorter_and_have_the_same_samples_and_loss(data, options):
    batches = DataLoader(data, **options)
    namespace = {"batches": batches}
    code = code_for(batches)
    exec(code, namespace)
    exec(code, namespace)  # whoever runs a cell again
    both = []
    for loader in (batches, namespace["batches"]):
        torch.manual_seed(0)
        both.append(list(loader))
    model = Classifier().eval()
    for before, after in zip(*both, strict=True):
        length = int(before["attention_mask"].sum(1).max())
        assert type(before) is type(after)
        assert after["input_ids"].shape == after["attention_mask"].shape == (len(before["labels"]), length)
        assert torch.equal(before["input_ids"][:, :length], after["input_ids"])
        assert float(before["attention_mask"].sum()) == float(after["attention_mask"].sum())
        torch.testing.assert_close(model(**after), model(**before), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Sentences(left=True), batch_size=4),
        lambda: DataLoader(Sentences(per_token=True, label=0), batch_size=4),
        lambda: DataLoader(Sentences(), batch_size=4, collate_fn=in_a_tuple),
    ],
    ids=["padded on the left", "labels of the padding count", "a tuple"],
)
def test_other_batches_get_no_such_code(make):
    batches = make()
    assert code_for(batches) == ""


def test_a_batch_of_another_kind_later_on_prevents_the_code():
    def mixed():
        whole = default_collate(list(map(Sentences().__getitem__, range(8))))
        yield whole
        yield {**whole, "other": torch.zeros(8, LENGTH)}

    batches = DataLoader(list(mixed()), batch_size=None)
    assert code_for(batches) == ""


def test_the_settings_say_how_much_of_the_padding_a_cut_removes():
    data = Sentences()
    batches = DataLoader(data, batch_size=37)
    with gpulab.profile("sentences", level="sensors") as session:
        for _ in batches:
            pass
    (loader,) = session.run.loaders
    assert loader.padding_frac == pytest.approx(1 - data.mask.float().mean().item())
    assert loader.padding_to_longest_frac == pytest.approx(1 - int(data.mask.sum(1).max()) / LENGTH)
    assert (loader.row_length, loader.can_be_cut) == (LENGTH, True)
    assert cut_padding_code(SimpleNamespace(names=None, run=session.run), replace(loader, can_be_cut=None)) == ""
