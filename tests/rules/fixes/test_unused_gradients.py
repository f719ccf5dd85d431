"""Gradients that are not used, in real loops: counted exactly, and not computed after the printed change."""

import pytest

import gpulab
from gpulab.analysis.host.gradients import unused_gradients_of
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.host.unused_gradients import freezing_code

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def layers(count=4):
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(count)))


def recorded(optimizer, loss_of, steps=25):
    with gpulab.profile("gradients") as session:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()
            gpulab.step()
    run = session.run
    steps_found = find_steps(run)
    return run, unused_gradients_of(run, steps_found, build_ledger(run, steps_found))


def inputs():
    return torch.ones(4, 16)


def test_a_head_is_trained_and_its_backbone_is_not_frozen():
    net = layers(4)
    optimizer = torch.optim.SGD(net[3].parameters(), lr=0.1)
    _, gradients = recorded(optimizer, lambda: net(inputs()).sum())
    assert (gradients.computed, gradients.updated) == (8, 2)


def test_after_the_printed_change_only_the_trained_parameters_get_gradients():
    net = layers(4)
    optimizer = torch.optim.SGD(net[3].parameters(), lr=0.1)
    run, _ = recorded(optimizer, lambda: net(inputs()).sum())
    before = [parameter.detach().clone() for parameter in net.parameters()]
    steps = find_steps(run)
    exec(freezing_code(Evidence(run, steps, build_ledger(run, steps)), 6), {"net": net, "optimizer": optimizer})
    _, gradients = recorded(optimizer, lambda: net(inputs()).sum())
    assert gradients is None
    changed = [not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True)]
    assert changed == [False] * 6 + [True] * 2


def test_a_teacher_without_no_grad():
    teacher, student = layers(3), layers(2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    _, gradients = recorded(optimizer, lambda: (teacher(inputs()) - student(inputs())).square().sum())
    assert (gradients.computed, gradients.updated) == (10, 4)


def test_after_the_printed_change_a_teacher_gets_no_gradients():
    teacher, student = layers(3), layers(2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    run, gradients = recorded(optimizer, lambda: (teacher(inputs()) - student(inputs())).square().sum())
    steps = find_steps(run)
    evidence = Evidence(run, steps, build_ledger(run, steps))
    exec(freezing_code(evidence, gradients.computed - gradients.updated), {"teacher": teacher, "student": student})
    _, gradients = recorded(optimizer, lambda: (teacher(inputs()) - student(inputs())).square().sum())
    assert gradients is None


def test_no_code_is_printed_for_teachers_that_no_variable_holds():
    teachers, student = [layers(1), layers(2)], layers(2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    run, gradients = recorded(
        optimizer, lambda: (sum(teacher(inputs()) for teacher in teachers) - student(inputs())).square().sum()
    )
    steps = find_steps(run)
    assert gradients.computed - gradients.updated == 6
    assert freezing_code(Evidence(run, steps, build_ledger(run, steps)), 6) == ""


@pytest.mark.parametrize("reentrant", [True, False])
def test_inputs_of_checkpointed_blocks_are_no_unused_parameters(reentrant):
    net = layers(4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss():
        x = inputs().requires_grad_()
        for block in net:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x.sum()

    _, gradients = recorded(optimizer, loss)
    assert gradients is None or gradients.computed == 9  # reentrant blocks are not judged; the input needs a gradient


def test_a_generator_that_fills_the_gradients_of_its_critic_uses_them():
    generator, critic = layers(2), layers(2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, critic)]
    with gpulab.profile("gan") as session:
        for _ in range(25):
            for optimizer, loss in zip(optimizers[::-1], (critic(inputs()).sum(), 0), strict=True):
                optimizer.zero_grad()
                (critic(generator(inputs())).sum() + loss).backward()
                optimizer.step()
            gpulab.step()
    steps = find_steps(session.run)
    assert unused_gradients_of(session.run, steps, build_ledger(session.run, steps)) is None


def test_parameters_that_are_unfrozen_later_count_as_updated():
    net = layers(4)
    optimizer = torch.optim.SGD(net[3].parameters(), lr=0.1)
    steps = []

    def loss():
        steps.append(1)
        if len(steps) == 3:
            optimizer.add_param_group({"params": list(net[:3].parameters())})
        return net(inputs()).sum()

    run, gradients = recorded(optimizer, loss)
    assert run.optimizers[0].tensors == 8
    assert gradients is None
