"""The printed change of a DataLoader, run on the real object: it has the new settings and yields the same samples."""

import textwrap
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

import gpulab
from gpulab.rules import diagnose
from gpulab.rules.engine.finding import Finding
from gpulab.rules.engine.fix_scope import with_scope
from gpulab.rules.engine.pasted_names import user_names
from tests.cases.data.slow_evaluation.case import EVALUATED, evaluated
from tests.support.runs.made_runs import run_of
from tests.support.tiers import every_nth

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from gpulab.rules.data.loader_code import change_loader  # noqa: E402

WORKERS = {"num_workers": 2, "persistent_workers": True}


class Squares(Dataset):
    def __len__(self):
        return 37

    def __getitem__(self, index):
        return torch.tensor([index, index**2]), {"label": index}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(37))


class Batches(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(40).split(8))


class OwnLoader(DataLoader):
    """A loader with a constructor of its own."""

    def __init__(self, data):
        super().__init__(data, batch_size=4)


def seeded(worker):
    torch.manual_seed(worker)


def joined(samples):
    return [sample[1]["label"] for sample in samples]


LOADERS = {
    "in order": lambda: DataLoader(Squares(), batch_size=4),
    "shuffled": lambda: DataLoader(Squares(), batch_size=4, shuffle=True),
    "without the last batch": lambda: DataLoader(Squares(), batch_size=4, drop_last=True),
    "tensors": lambda: DataLoader(TensorDataset(torch.arange(37)), batch_size=5, shuffle=True),
    "a list": lambda: DataLoader(list(range(37)), batch_size=3),
    "with workers": lambda: DataLoader(Squares(), batch_size=4, num_workers=1),
    "own collate": lambda: DataLoader(Squares(), batch_size=4, collate_fn=joined),
    "own sampler": lambda: DataLoader(Squares(), batch_size=4, sampler=SubsetRandomSampler(range(5, 30))),
    "weights": lambda: DataLoader(Squares(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 37, 20)),
    "own batches": lambda: DataLoader(Squares(), batch_sampler=BatchSampler(RandomSampler(range(37)), 6, False)),
    "no batches": lambda: DataLoader(Squares(), batch_size=None),
    "whole batches": lambda: DataLoader(
        TensorDataset(torch.arange(37)), sampler=BatchSampler(RandomSampler(range(37)), 6, False), batch_size=None
    ),
    "batches in a list": lambda: DataLoader(Squares(), batch_sampler=[[0, 5], [1], list(range(30))]),
    "own settings": lambda: DataLoader(
        Squares(),
        batch_size=4,
        num_workers=1,
        timeout=30,
        worker_init_fn=seeded,
        multiprocessing_context="fork",
        generator=torch.Generator(),
    ),
}
WORDS_ONLY = {
    "a stream": lambda: DataLoader(Stream(), batch_size=4),
    "a stream of batches": lambda: DataLoader(Batches(), batch_size=None),
    "a class of its own": lambda: OwnLoader(Squares()),
}


def recorded(make):
    """A loader, and its settings as gpulab records them."""
    batches = make()
    with gpulab.profile("loader", level="sensors") as session:
        for _ in batches:
            pass
    return batches, session.run


def change(run, settings):
    return change_loader(SimpleNamespace(names=user_names(run), run=run), run.loaders[0], settings)


def samples(batches):
    """How often each sample came."""
    torch.manual_seed(0)
    return Counter(str(value) for batch in batches for value in flat(batch))


def flat(batch):
    if isinstance(batch, torch.Tensor):
        yield from batch.reshape(-1).tolist()
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from flat(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from flat(value)
    else:
        yield batch


@pytest.mark.parametrize("kind", every_nth(LOADERS, 4))
def test_a_loader_with_workers_yields_the_same_samples(kind):
    batches, run = recorded(LOADERS[kind])
    assert run.loaders[0].name == "batches"
    namespace = {"batches": batches}
    exec(change(run, WORKERS).code, namespace)
    assert namespace["batches"].num_workers == 2
    assert len(list(namespace["batches"])) == len(list(batches))
    if kind != "weights":  # drawn anew in every epoch
        assert samples(namespace["batches"]) == samples(batches)


def epochs(batches):
    """The labels of three epochs, in order; the random state is the same at the start of the first."""
    torch.manual_seed(0)
    return [[label for _, more in batches for label in more["label"].tolist()] for _ in range(3)]


def test_persistent_workers_change_a_shuffled_order_from_the_second_epoch_on():
    """Their iterator is created once, and draws one random number fewer in each later epoch; the code says so."""
    batches, run = recorded(LOADERS["shuffled"])
    code = change(run, WORKERS).code
    assert "the same batches in the first epoch, except for random transforms; later shuffles may differ" in code
    namespace = {"batches": batches}
    exec(code, namespace)
    before, after = epochs(batches), epochs(namespace["batches"])
    assert all(sorted(labels) == list(range(37)) for labels in (*before, *after))
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_change_without_workers_keeps_the_order_of_every_epoch():
    batches, run = recorded(LOADERS["shuffled"])
    code = change(run, {"pin_memory": False}).code
    assert "# the same batches, in the same order" in code
    namespace = {"batches": batches}
    exec(code, namespace)
    assert epochs(namespace["batches"]) == epochs(batches)


@pytest.mark.parametrize(
    "kind", every_nth(["in order", "shuffled", "tensors", "own collate", "own sampler", "own batches"], 3)
)
def test_a_loader_with_larger_batches_yields_the_same_samples(kind):
    batches, run = recorded(LOADERS[kind])
    namespace = {"batches": batches}
    exec(change(run, {"batch_size": 8}).code, namespace)
    assert max(len(list(flat(batch))) for batch in namespace["batches"]) > max(
        len(list(flat(batch))) for batch in batches
    )
    assert samples(namespace["batches"]) == samples(batches)


@pytest.mark.parametrize("kind", WORDS_ONLY)
def test_where_code_would_do_harm_the_change_is_described(kind):
    _, run = recorded(WORDS_ONLY[kind])
    answer = change(run, WORKERS)
    assert answer.code == ""
    assert "num_workers=2" in answer.advice
    assert ("get_worker_info" in answer.advice) == run.loaders[0].iterable


def test_a_stream_with_workers_is_not_loaded_by_another_number_of_processes():
    """Unless its workers share the samples, an epoch without workers has fewer of them."""
    loader, run = recorded(lambda: DataLoader(Stream(), batch_size=4, num_workers=2))
    assert samples(loader) != samples(DataLoader(Stream(), batch_size=4))
    for workers in (0, 1, 4):
        answer = change(run, {"num_workers": workers})
        assert answer.code == ""
        assert "each sample 2 times" in answer.advice
    assert change(run, {"num_workers": 2, "persistent_workers": True}).code


def test_each_worker_of_a_stream_would_yield_every_sample():
    """The reason why no code is printed for it."""
    assert sum(samples(DataLoader(Stream(), num_workers=2)).values()) == 2 * 37


def test_a_loader_that_no_variable_holds_is_described():
    with gpulab.profile("unnamed", level="sensors") as session:
        for _ in DataLoader(Squares(), batch_size=4):
            pass
    (setup,) = session.run.loaders
    answer = change(session.run, WORKERS)
    assert (setup.name, answer.code) == (None, "")
    assert answer.advice == "Where you create the DataLoader: num_workers=2, persistent_workers=True."


def test_the_description_of_an_unnamed_loader_names_its_dataset():
    data = Squares()
    with gpulab.profile("unnamed", level="sensors") as session:
        for _ in DataLoader(data, batch_size=4):
            pass
    answer = change(session.run, WORKERS)
    assert answer.advice == "Where you create the DataLoader of data: num_workers=2, persistent_workers=True."


def scoped(run):
    """The code for the first loader, with the comment that says where it belongs."""
    answer = change(run, WORKERS)
    return with_scope(Finding(claim="", evidence=(), fix=answer.code, function=answer.function), run)


def test_the_code_for_a_loader_of_a_function_runs_where_its_comment_says():
    def train():
        train_loader = DataLoader(Squares(), batch_size=4)
        return list(train_loader)

    with gpulab.profile("function", level="sensors") as session:
        expected = train()
    imports, lines = scoped(session.run).fix.split("# In train(), above the loop:\n")
    body = f"    train_loader = DataLoader(Squares(), batch_size=4)\n{textwrap.indent(lines, '    ')}\n"
    namespace = {"Squares": Squares}
    exec(f"{imports}\ndef train():\n{body}    return train_loader\n", namespace)
    changed = namespace["train"]()
    assert changed.num_workers == WORKERS["num_workers"]
    assert [labels["label"].tolist() for _, labels in changed] == [labels["label"].tolist() for _, labels in expected]


def test_all_imports_of_the_code_for_a_function_come_first():
    code = "import torch\n\n\nclass Cached(torch.utils.data.Dataset):\n    pass\n\n\n"
    code += "from torch.utils.data import DataLoader\n\nx = 1\n"
    lines = with_scope(Finding(claim="", evidence=(), fix=code, function="main"), run_of(())).fix.splitlines()
    assert lines[1:3] == ["import torch", "from torch.utils.data import DataLoader"]
    assert lines[4:6] == ["class Cached(torch.utils.data.Dataset):", "    pass"]
    assert lines[7:] == ["# In main(), above the loop:", "x = 1"]


def test_the_code_for_an_attribute_belongs_into_a_method():
    class Trainer:
        def __init__(self):
            self.batches = DataLoader(Squares(), batch_size=4)

        def fit(self):
            for _ in self.batches:
                pass

    with gpulab.profile("method", level="sensors") as session:
        Trainer().fit()
    assert "# In fit(), above the loop:" in scoped(session.run).fix
    older = replace(session.run, loaders=(replace(session.run.loaders[0], function=None),))
    assert "# In the method with the loop" in scoped(older).fix


def test_of_two_loaders_with_the_same_name_the_code_names_the_right_function():
    def evaluate():
        loader = DataLoader(Squares(), batch_size=4)
        return list(loader)

    def train():
        loader = DataLoader(Squares(), batch_size=8)
        return list(loader)

    with gpulab.profile("two", level="sensors") as session:
        train(), evaluate()
    run = session.run
    assert [(each.name, each.function) for each in run.loaders] == [("loader", "train"), ("loader", "evaluate")]
    for loaders, function in [(run.loaders, "train"), (run.loaders[::-1], "evaluate")]:
        assert f"# In {function}()" in scoped(replace(run, loaders=loaders)).fix


@pytest.mark.parametrize(
    ("function", "expected"), [("", ""), (None, None), ("a b\nimport os", None), ("<lambda>", None)]
)
def test_no_function_is_named_where_none_is_known(function, expected):
    _, run = recorded(LOADERS["in order"])
    found = scoped(replace(run, loaders=(replace(run.loaders[0], name="batches", function=function),)))
    assert "above the loop" not in found.fix
    assert found.function == expected


def test_a_batch_sampler_of_the_users_has_no_batch_size_to_change():
    class Buckets(BatchSampler):
        """Batches of its own."""

    _, run = recorded(lambda: DataLoader(Squares(), batch_sampler=Buckets(RandomSampler(range(37)), 6, False)))
    answer = change(run, {"batch_size": 8})
    assert (answer.code, answer.advice) == ("", "Let your batch sampler return larger batches.")


@pytest.mark.parametrize(
    ("package", "expected"),
    [("transformers", "dataloader_num_workers=2"), ("lightning.pytorch", "train_dataloader()")],
)
def test_a_framework_is_addressed_in_its_own_settings(package, expected):
    source = "def fit(batches):\n    for _ in batches:\n        pass\n"
    module = {"__name__": f"{package}.trainer"}
    exec(compile(source, f"/usr/lib/site-packages/{package}.py", "exec"), module)
    with gpulab.profile("framework", level="sensors") as profile:
        module["fit"](DataLoader(Squares(), batch_size=4))
    run = profile.run
    answer = change(run, WORKERS)
    assert run.loaders[0].framework == package.partition(".")[0]
    assert answer.code == ""
    assert expected in answer.advice


def test_with_lightning_a_loader_in_a_variable_is_changed_where_it_is_created():
    """Among several ranks, Lightning gives a DataLoader with a batch sampler another sampler, and no batch size."""
    _, run = recorded(LOADERS["in order"])
    answer = change(replace(run, loaders=(replace(run.loaders[0], framework="lightning"),)), WORKERS)
    assert answer.code == ""
    assert answer.advice.startswith("In the DataLoader that your train_dataloader() returns")
    assert (answer.settings.call, answer.settings.any_dataset) == ("DataLoader", True)
    assert answer.settings.arguments == WORKERS


@pytest.mark.parametrize(
    ("framework", "place"),
    [
        ("lightning", "In the DataLoader that your val_dataloader() returns"),
        ("transformers", "In TrainingArguments(...)"),
    ],
)
def test_the_loader_of_an_evaluation_is_changed_where_its_framework_creates_it(framework, place):
    run = evaluated(loader=replace(EVALUATED, framework=framework))
    (finding,) = (each for each in diagnose(run).findings if each.rule == "slow_evaluation")
    assert finding.advice.startswith(place)


def test_a_framework_that_only_started_the_program_is_not_addressed():
    """For example accelerate's notebook_launcher, around a loop of the user's."""
    module = {"__name__": "accelerate.launchers"}
    exec(compile("def launch(function):\n    function()\n", "/usr/lib/site-packages/launchers.py", "exec"), module)
    batches = DataLoader(Squares(), batch_size=4)
    with gpulab.profile("launched", level="sensors") as profile:
        module["launch"](lambda: list(batches))
    assert profile.run.loaders[0].framework is None


def test_settings_of_the_users_own_are_kept():
    batches, run = recorded(LOADERS["own settings"])
    namespace = {"batches": batches}
    exec(change(run, WORKERS).code, namespace)
    changed = namespace["batches"]
    assert (changed.timeout, changed.worker_init_fn, changed.generator) == (30, seeded, batches.generator)
    assert changed.multiprocessing_context is batches.multiprocessing_context
    exec(change(run, {"num_workers": 0}).code, namespace)
    assert (namespace["batches"].num_workers, namespace["batches"].generator) == (0, batches.generator)


def test_a_setting_that_changes_is_not_kept_too():
    batches, run = recorded(LOADERS["own settings"])
    namespace = {"batches": batches, "one_thread": joined}
    exec(change(run, {"num_workers": 1, "worker_init_fn": "one_thread"}).code, namespace)
    assert namespace["batches"].worker_init_fn is joined


def test_two_loaders_of_one_dataset_keep_their_names():
    data = Squares()
    training, validation = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)
    with gpulab.profile("two loaders", level="sensors") as session:
        for _ in validation:
            pass
        for _ in training:
            pass
    assert [(each.name, each.batch_size) for each in session.run.loaders] == [("validation", 8), ("training", 4)]


class Shards(IterableDataset):
    """Splits its samples among the workers."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return iter(torch.arange(36)[worker.id :: worker.num_workers] if worker else torch.arange(36))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_stream_with_several_workers_may_get_more():
    """Its __iter__ asks which worker it runs in, and splits the samples."""
    batches, run = recorded(lambda: DataLoader(Shards(), batch_size=4, num_workers=2))
    namespace = {"batches": batches}
    exec(change(run, {"num_workers": 3}).code, namespace)
    assert namespace["batches"].num_workers == 3
    assert samples(namespace["batches"]) == samples(batches)


def test_a_stream_with_one_worker_is_described():
    _, run = recorded(lambda: DataLoader(Stream(), batch_size=4, num_workers=1))
    assert change(run, WORKERS).code == ""


def test_larger_whole_batches_yield_the_same_samples():
    batches, run = recorded(LOADERS["whole batches"])
    namespace = {"batches": batches}
    exec(change(run, {"batch_size": 12}).code, namespace)
    assert samples(namespace["batches"]) == samples(batches)
    assert len(namespace["batches"]) == 4
