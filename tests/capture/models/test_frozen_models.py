"""Which modules of a real loop are recorded as frozen, and where their forward passes lie."""

from itertools import pairwise

import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.frozen_forward import find_block, frozen_forward
from gpulab.analysis.steps.ledger import build_ledger

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def layers(*sizes):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


def batches():
    return DataLoader(TensorDataset(torch.randn(120, 8), torch.randn(120, 1)), batch_size=4)


def recorded(loss_of, optimizer, after=lambda step: None, epochs=2, level="trace"):
    with gpulab.profile("frozen", level=level) as session:
        count = 0
        for _ in range(epochs):
            for inputs, targets in batches():
                optimizer.zero_grad()
                (loss_of(inputs) - targets).square().mean().backward()
                optimizer.step()
                count += 1
                after(count)
    return session.run


class WithBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(layers(8, 64, 64, 16), nn.Dropout(0.5))
        self.head = nn.Linear(16, 1)
        self.backbone.requires_grad_(False).eval()

    def forward(self, inputs):
        return self.head(self.backbone(inputs))


def forward_of(run):
    steps = find_steps(run)
    return frozen_forward(run, steps, build_ledger(run, steps))


def test_the_backbone_of_a_trained_model_is_frozen():
    model = WithBackbone()
    run = recorded(lambda inputs: model(inputs), torch.optim.SGD(model.head.parameters(), lr=0.1))
    (frozen,) = run.frozen_models
    assert (frozen.name, frozen.kind, frozen.tensors, frozen.layers) == ("model.backbone", "Sequential", 6, "lll")
    assert not frozen.depends_on_batch
    forward = forward_of(run)
    assert (forward.models, forward.calls) == ((frozen,), 3)


def test_dropout_in_train_mode_makes_outputs_vary():
    model = WithBackbone().train()
    run = recorded(model, torch.optim.SGD(model.head.parameters(), lr=0.1), level="sensors")
    assert [frozen.depends_on_batch for frozen in run.frozen_models] == [True]


def test_a_teacher_without_gradients():
    teacher, student = layers(8, 64, 64, 1), layers(8, 1)

    def loss(inputs):
        with torch.no_grad():
            wanted = teacher(inputs)
        return student(inputs) - wanted

    run = recorded(loss, torch.optim.AdamW(student.parameters()))
    assert [frozen.name for frozen in run.frozen_models] == ["teacher"]
    assert forward_of(run).calls == 3


def test_a_reference_model_of_transformers_has_all_its_linear_layers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    policy, reference = transformers.GPT2LMHeadModel(config), transformers.GPT2LMHeadModel(config).eval()
    reference.requires_grad_(False)
    ids = torch.randint(40, (4, 8))

    def loss(_):
        with torch.no_grad():
            expected = reference(ids).logits
        return (policy(ids).logits - expected).mean()

    run = recorded(loss, torch.optim.SGD(policy.parameters(), lr=0.1))
    assert [(frozen.name, frozen.layers) for frozen in run.frozen_models] == [("reference", "ee" + 8 * "l" + "l")]
    assert forward_of(run).calls == 11


def test_a_frozen_layer_that_gradients_pass_through_has_no_forward_pass_to_save():
    first, last = layers(8, 8), layers(8, 1)
    last.requires_grad_(False)
    run = recorded(lambda inputs: last(first(inputs)), torch.optim.SGD(first.parameters(), lr=0.1))
    assert [frozen.name for frozen in run.frozen_models] == ["last"]
    assert forward_of(run) is None


@pytest.mark.parametrize("how", ["load_state_dict", "lerp", "data", "replaced"])
def test_a_target_network_that_follows_is_not_frozen(how):
    net, target = layers(8, 8, 1), layers(8, 8, 1)
    target.requires_grad_(False)

    def follow(step):
        if step % 5:
            return
        pairs = list(zip(target.parameters(), net.parameters(), strict=True))
        if how == "load_state_dict":
            target.load_state_dict(net.state_dict())
        for old, new in pairs:
            if how == "lerp":
                old.lerp_(new.detach(), 0.01)
            elif how == "data":
                old.data.mul_(0.99).add_(new.data, alpha=0.01)
            elif how == "replaced":
                old.data = old.data * 0.99 + new.data * 0.01

    run = recorded(
        lambda inputs: net(inputs) + target(inputs), torch.optim.SGD(net.parameters(), lr=0.1), follow, level="sensors"
    )
    assert run.frozen_models == ()


def test_the_networks_of_two_optimizers_are_not_frozen():
    generator, critic = layers(8, 8), layers(8, 1)
    second = torch.optim.SGD(critic.parameters(), lr=0.0)  # its weights stay the same all the same

    def train_critic(_):
        critic(generator(torch.randn(4, 8)).detach()).sum().backward()
        second.step()

    first = torch.optim.SGD(generator.parameters(), lr=0.1)
    run = recorded(lambda inputs: critic(generator(inputs)), first, train_critic, level="sensors")
    assert run.frozen_models == ()


def test_a_run_of_a_few_updates_shows_nothing():
    model = WithBackbone()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with gpulab.profile("few", level="sensors") as session:
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    assert session.run.frozen_models == ()


def test_frozen_models_survive_saving(tmp_path):
    model = WithBackbone()
    run = recorded(model, torch.optim.SGD(model.head.parameters(), lr=0.1), level="sensors")
    gpulab.save(run, tmp_path / "frozen.gpulab")
    assert gpulab.load(tmp_path / "frozen.gpulab").frozen_models == run.frozen_models


ONES = [1] * 40


@pytest.mark.parametrize(
    ("calls", "trained", "models", "place"),
    [
        ("cccll", "ll", ("ccc",), (0, 3)),
        ("ll" + "ccc", "ll", ("ccc",), (2, 5)),
        ("ccl" + "ccccl", "ccl", ("ccccl",), (3, 8)),
        ("cccll", "cccll", ("ccc",), None),
        ("cccll", "ll", ("cccc",), None),
        ("clcl", "ll", ("cc",), None),
        ("cccll", "ll", (), None),
        ("", "", ("c",), None),
        ("ccc", "", ("ccc",), (0, 3)),
    ],
)
def test_the_place_of_a_frozen_model_among_the_calls_of_layers(calls, trained, models, place):
    block = find_block(calls, trained, models, ONES[: len(calls)])
    assert (block and block[:2]) == place
