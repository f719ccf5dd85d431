"""The printed change to bfloat16, run on real models: layers run in bfloat16, outputs and weights stay float32."""

import dataclasses

import pytest

from gpulab.rules import diagnose
from gpulab.rules.kernels.bfloat16_on_cpu import cpu_autocast_code
from gpulab.run import FrozenModel, LayerTimes, Loader, Model
from tests.cases.kernels.no_bfloat16_on_cpu.case import provoked_by_float32_layers, training

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

FLOAT32 = {"kind": "Net", "dtypes": ("float32",)}


def network(*, last=None):
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)]
    return nn.Sequential(*layers, *([last] if last else []))


def dtypes_of_products(model, inputs):
    dtypes = []
    hooks = [layer.register_forward_hook(lambda *call: dtypes.append(call[2].dtype)) for layer in model if layer]
    output = model(inputs)
    for hook in hooks:
        hook.remove()
    return dtypes[0], output.dtype


def test_layers_run_in_bfloat16_and_outputs_are_float32():
    net = network()
    exec(cpu_autocast_code([Model(name="net", **FLOAT32)]), {"net": net})
    assert dtypes_of_products(net, torch.ones(4, 8)) == (torch.bfloat16, torch.float32)
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


def test_a_loss_that_rejects_bfloat16_still_works():
    net = network(last=nn.Sigmoid())
    exec(cpu_autocast_code([Model(name="net", **FLOAT32)]), {"net": net})
    nn.BCELoss()(net(torch.ones(4, 8)), torch.ones(4, 1)).backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in net.parameters())


def test_training_goes_nearly_as_before():
    inputs = torch.linspace(-1, 1, 512).reshape(64, 8)
    losses = []
    for code in ("", cpu_autocast_code([Model(name="net", **FLOAT32)])):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        exec(code, {"net": net})
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(inputs), inputs.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_every_trained_model_is_changed():
    models = {"generator": network(), "critic": network()}
    exec(cpu_autocast_code([Model(name=name, **FLOAT32) for name in models]), dict(models))
    assert [dtypes_of_products(net, torch.ones(2, 8))[0] for net in models.values()] == [torch.bfloat16] * 2


def test_outputs_that_are_no_tensor_are_unchanged():
    class Pair(nn.Module):
        def forward(self, x):
            return {"x": x}

    pair = Pair()
    exec(cpu_autocast_code([Model(name="pair", **FLOAT32)]), {"pair": pair})
    assert set(pair(torch.ones(1))) == {"x"}


def test_text_from_a_file_that_is_no_name_does_not_become_code():
    assert "rm -rf" not in cpu_autocast_code([Model(name="x; os.system('rm -rf /')", **FLOAT32)])


def teacher(name):
    return FrozenModel(kind="Net", name=name, tensors=8, layers="LL", depends_on_batch=False)


def bfloat16_finding(**change):
    run = dataclasses.replace(provoked_by_float32_layers(), **change)
    return next(each for each in diagnose(run).findings if each.rule == "no_bfloat16_on_cpu")


def test_a_frozen_part_of_the_trained_model_is_covered_by_its_code():
    assert "net.forward" in bfloat16_finding(frozen_models=(teacher("net.backbone"),)).fix


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"models": (Model(name="flow", has_forward=False, **FLOAT32),)}, "has no forward()"),
        ({"loaders": (Loader(framework="lightning"),)}, "bf16-mixed"),
        ({"frozen_models": (teacher("teacher"),)}, "not trained"),
    ],
    ids=["other methods than forward", "Lightning", "teacher"],
)
def test_without_a_call_of_the_model_there_is_advice_and_no_code(change, advice):
    finding = bfloat16_finding(**change)
    assert finding.fix == ""
    assert advice in finding.advice


def layer_times(float32_ms, bfloat16_ms):
    bfloat16_ns = round(bfloat16_ms * 1e6)
    return LayerTimes(
        layers=4, float32_ns=round(float32_ms * 1e6), bfloat16_ns=bfloat16_ns, bfloat16_chained_ns=bfloat16_ns
    )


def test_measured_layers_decide_the_range():
    gain = bfloat16_finding(layer_times=layer_times(60, 30)).gain  # 60 of 100 ms are spent in layers
    assert gain.worst_speedup < 100 / (100 - 30) < gain.best_speedup <= gain.bound
    assert gain.worst_speedup == pytest.approx(100 / (100 - 30), rel=0.05)


def test_where_few_layers_were_timed_the_others_may_gain_nothing():
    all_timed = bfloat16_finding(layer_times=layer_times(60, 20)).gain
    third_timed = bfloat16_finding(layer_times=layer_times(20, 20 / 3)).gain
    assert third_timed.worst_speedup < all_timed.worst_speedup
    assert third_timed.best_speedup == pytest.approx(all_timed.best_speedup, rel=1e-6)


def test_layers_that_take_a_small_part_of_a_step_are_worth_it_only_if_they_were_timed():
    run = training(layer_ms=7.0)
    assert "no_bfloat16_on_cpu" not in [finding.rule for finding in diagnose(run).findings]
    timed = dataclasses.replace(run, layer_times=layer_times(28, 9))
    assert "no_bfloat16_on_cpu" in [finding.rule for finding in diagnose(timed).findings]
