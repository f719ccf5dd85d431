"""Steps by marks: one iteration of the training loop is one step, however many optimizers or loaders it has."""

import pytest

torch = pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import gpulab  # noqa: E402
from gpulab.analysis.data.loader import batches_per_step  # noqa: E402
from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.analysis.steps.marked_steps import completed_steps, update_ends_ns  # noqa: E402
from gpulab.tables import MARKS, MarkKind  # noqa: E402


def update_ends(numbers):
    """The ends of iterations if optimizers of these numbers step at times 0, 1, 2 ..."""
    marks = [(int(MarkKind.OPTIMIZER), at, at, -1, -1, False, 0, 0, 0, number) for at, number in enumerate(numbers)]
    return update_ends_ns(MARKS.of(marks)).tolist()


@pytest.mark.parametrize(
    ("numbers", "ends"),
    [
        ([], []),
        ([0, 0, 0], [0, 1, 2]),
        ([-1, -1, -1], [0, 1, 2]),  # files of earlier versions
        ([0, 1, 0, 1, 0, 1], [1, 3, 5]),  # a GAN
        ([0, 0, 0, 1] * 3, [3, 7, 11]),  # several updates of the critic for one of the generator
        ([2, 1, 0] * 3, [2, 5, 8]),  # one optimizer per parameter, which step in backward()
        ([0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]),  # folds of a cross-validation, one after the other
        ([0] * 30 + [1] + [0] * 30, [*range(30), *range(31, 61)]),  # a rare optimizer is part of an iteration
    ],
)
def test_optimizers_that_take_turns_form_one_iteration(numbers, ends):
    assert update_ends(numbers) == ends


def gan(iterations):
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(network.parameters()) for network in (critic, generator)]
    for _ in range(iterations):
        for optimizer in optimizers:
            optimizer.zero_grad()
            critic(generator(torch.randn(8, 4))).mean().backward()
            optimizer.step()


def folds(iterations):
    for _ in range(2):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(iterations // 2):
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()


def in_memory_with_evaluation(iterations):
    """Train on slices of a tensor; only the evaluation uses a DataLoader."""
    model, inputs = nn.Linear(4, 1), torch.randn(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluation = DataLoader(TensorDataset(inputs), batch_size=16)
    for iteration in range(iterations):
        model(inputs[iteration : iteration + 8]).mean().backward()
        optimizer.step()
        if iteration % 20 == 19:
            with torch.no_grad():
                sum(model(batch).sum() for (batch,) in evaluation)


def linear_model(samples):
    model = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(samples, 4)), batch_size=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def accumulated(iterations):
    model, optimizer, loader = linear_model(iterations * 8)
    for number, (batch,) in enumerate(loader, start=1):
        model(batch).mean().backward()
        if number % 4 == 0:
            optimizer.step()


def accumulated_from_a_list(iterations):
    """All batches of an update are taken from the loader first, as in the Trainer of Transformers."""
    model, optimizer, loader = linear_model(iterations * 8)
    iterator = iter(loader)
    for _ in range(iterations):
        for (batch,) in [next(iterator) for _ in range(4)]:
            model(batch).mean().backward()
        optimizer.step()


def several_updates_per_batch(iterations):
    model, optimizer, loader = linear_model(iterations * 2)
    for (batch,) in loader:
        for _ in range(3):
            model(batch).mean().backward()
            optimizer.step()


def without_updates(iterations):
    model, _, loader = linear_model(iterations * 2)
    for (batch,) in loader:
        model(batch)


def a_dataset_per_epoch(iterations):
    model, optimizer, _ = linear_model(2)
    for _ in range(4):
        training, evaluation = linear_model(iterations // 2)[2], linear_model(iterations)[2]
        for (batch,) in training:
            model(batch).mean().backward()
            optimizer.step()
        for (batch,) in evaluation:
            model(batch)


def evaluations_that_end_early(iterations):
    model, optimizer, training = linear_model(iterations * 2)
    evaluation = linear_model(iterations)[2]
    for number, (batch,) in enumerate(training):
        model(batch).mean().backward()
        optimizer.step()
        if number % 5 == 4:  # there are more batches of these than of the training
            for _, (held_out,) in zip(range(10), evaluation, strict=False):
                model(held_out)


def nested_loaders(iterations):
    model, optimizer, outer = linear_model(iterations // 5)
    inner = linear_model(iterations // 2)[2]
    for _ in outer:
        for (batch,) in inner:
            model(batch).mean().backward()
            optimizer.step()


def two_loaders_together(iterations):
    model, optimizer, labeled = linear_model(iterations * 2)
    for (batch,), (other,) in zip(labeled, linear_model(iterations * 2)[2], strict=True):
        (model(batch) + model(other)).mean().backward()
        optimizer.step()


LOADER_LOOPS = {
    a_dataset_per_epoch: 1,
    evaluations_that_end_early: 1,
    nested_loaders: 1,
    two_loaders_together: 1,
    accumulated: 4,
    accumulated_from_a_list: 4,
    several_updates_per_batch: 1,
    without_updates: 1,
}


@pytest.mark.parametrize("train", LOADER_LOOPS)
def test_batches_whose_gradients_are_accumulated_form_one_step(train):
    with gpulab.profile("loop", level="sensors") as session:
        train(40)
    steps = find_steps(session.run)
    assert (steps.detected_by, len(steps)) == ("DataLoader", 40)
    assert batches_per_step(session.run, steps) == LOADER_LOOPS[train]
    assert session._marks.steps == pytest.approx(40, abs=5), "until the second update, each batch may be a step"


def test_passes_of_one_batch_after_a_sanity_check_are_counted_live():
    model, optimizer, training = linear_model(20)
    with gpulab.profile("loop", level="sensors") as session:
        for _, (batch,) in zip(range(3), linear_model(20)[2], strict=False):
            model(batch)
        for _ in range(40):
            (batch,) = next(iter(training))
            model(batch).mean().backward()
            optimizer.step()
    assert session._marks.steps == pytest.approx(40, abs=5)


@pytest.mark.parametrize("train", [gan, folds, in_memory_with_evaluation])
def test_an_iteration_of_any_loop_is_one_step(train):
    with gpulab.profile("loop", level="sensors") as session:
        train(40)
    steps = find_steps(session.run)
    assert steps.detected_by == "optimizer"
    assert len(steps) == 39, "the first one has no mark at its start"
    assert completed_steps(session.run, steps.detected_by, len(steps)) == 40
    assert session._marks.steps == pytest.approx(40, abs=1), "the live view counts them, too"


def test_batches_of_the_training_loader_without_updates_are_no_steps():
    net, data = nn.Linear(4, 1), DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gpulab.profile("same loader"):
        for _ in range(3):
            for (batch,) in data:
                optimizer.zero_grad()
                net(batch).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                for (batch,) in data:
                    net(batch)
    assert len(find_steps(gpulab.runs["same loader"])) == 30


def test_a_look_at_some_batches_of_the_training_loader_is_no_step():
    net, data = nn.Linear(4, 1), DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gpulab.profile("some batches"):
        for _ in range(4):
            for (batch,) in data:
                optimizer.zero_grad()
                net(batch).square().mean().backward()
                optimizer.step()
            for (batch,), _ in zip(data, range(5), strict=False):  # ends early: training follows its last batch
                net(batch)
    assert len(find_steps(gpulab.runs["some batches"])) == 40
