"""A virtual GPU runs out of memory: how far it came, and what helps against a leak and against a batch too large."""

import pytest

torch = pytest.importorskip("torch")

import gpulab  # noqa: E402  (after the skip)
from gpulab.views.report.report import report  # noqa: E402


def diagnosed(train):
    gpu = gpulab.virtual_gpu("t4", "ran out")
    with pytest.raises(torch.cuda.OutOfMemoryError), gpu:
        train()
    return gpulab.diagnose(gpu.run)


def training():
    """A model that makes 1 GiB of activations of a batch, two thirds of which stay as long as its output does."""
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2**17, 1024, device="cuda")


def that_keeps(keep, done):
    model, optimizer, batch = training()
    for _ in range(60):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        done.append(True)
        keep(model(batch))


def keeping_outputs(done):
    outputs = []
    that_keeps(outputs.append, done)


def adding_up(done):
    model, optimizer, batch = training()
    total = 0
    for _ in range(60):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        done.append(True)
        total = total + model(batch).square().mean()


def keeping_numbers_on_the_gpu(done):
    outputs = []
    that_keeps(lambda output: outputs.append(output.detach()), done)


def growing_batches(done):
    model, optimizer, batch = training()
    for step in range(60):
        samples = torch.cat([batch] * (1 + step))
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()
        done.append(True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("train", "fix"),
    [
        (keeping_outputs, "outputs.append(loss.item())"),
        (adding_up, "total = total + loss.item()"),
        (keeping_numbers_on_the_gpu, "outputs.append(outputs.detach().cpu())"),
    ],
)
def test_where_steps_keep_what_they_made_the_remedy_is_to_keep_less(train, fix):
    done = []
    found = diagnosed(lambda: train(done))
    told = found.first
    assert told.rule == "out_of_memory"
    assert fix in told.fix
    assert not any(word in told.fix + told.advice for word in ("parts", "autocast", "checkpoint"))
    assert f"Ended by OutOfMemoryError after {len(done)} steps" in repr(report(found.run))


def test_against_batches_that_grow_half_precision_comes_first_and_then_parts():
    done = []
    found = diagnosed(lambda: growing_batches(done))
    fix = found.first.fix
    assert 0 < fix.index("torch.autocast") < fix.index("parts = ")
    assert "float16" in fix, "a T4 has no bfloat16"
    assert "memory grew" not in fix + found.first.advice
    assert f"after {len(done)} steps" in repr(report(found.run)).splitlines()[2].replace("step,", "steps,")
