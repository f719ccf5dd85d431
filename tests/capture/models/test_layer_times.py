"""The layers of a loop are timed in float32 and bfloat16 after the cell, and the program does not notice."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

import gpulab
from gpulab.capture import merge_traces
from gpulab.capture.hooks.models.layer_calls import layer_call
from gpulab.capture.timing import step_timing
from gpulab.capture.timing.layer_timing import forward_pass, time_layers

SECOND_NS = 1_000_000_000
IMAGES, ROWS, SEQUENCES = torch.randn(2, 4, 9, 8), torch.randn(6, 5, 4), torch.randn(3, 7, 4)
LAYERS = {
    "linear": (nn.Linear(4, 3), ROWS),
    "linear without a bias": (nn.Linear(4, 3, bias=False), ROWS),
    "convolution": (nn.Conv2d(4, 6, 3, stride=(2, 1), padding=1, groups=2), IMAGES),
    "dilated convolution": (nn.Conv1d(7, 6, 3, padding="same", dilation=2), SEQUENCES),
    "convolution of volumes": (nn.Conv3d(4, 2, 3, padding=1, bias=False), IMAGES[..., None]),
    "transposed convolution": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=(1, 0), groups=2, dilation=2),
        IMAGES,
    ),
    "LSTM": (nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), SEQUENCES),
    "LSTM without a bias": (nn.LSTM(4, 5, bias=False), SEQUENCES),
    "GRU": (nn.GRU(4, 5, bidirectional=True), SEQUENCES),
}


@pytest.fixture(autouse=True)
def a_cpu_with_bfloat16_instructions(monkeypatch):
    monkeypatch.setattr(merge_traces, "_cpu_bfloat16", lambda torch: {"cpu_bfloat16": "avx512_bf16"})


def recorded(loss, parameters, steps=8, level="trace"):
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    with gpulab.profile("layers", level=level) as profiled:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return profiled.run


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


@pytest.mark.parametrize("name", LAYERS)
def test_the_timed_function_computes_what_the_layer_computes(name):
    layer, tensor = LAYERS[name]
    call = layer_call(layer, (tensor,), {})
    output = layer(tensor)
    expected = output[0] if isinstance(output, tuple) else output
    torch.testing.assert_close(forward_pass(call, tensor, list(layer.parameters()))(), expected)


def computes_in_bfloat16(layer, tensor):
    """Whether PyTorch can compute this layer in bfloat16 on this CPU."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(tensor)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_can_be_timed(name):
    layer, tensor = LAYERS[name]
    calls = {layer_call(layer, (tensor,), {}): 3}
    if not computes_in_bfloat16(layer, tensor):  # such a CPU has no instructions for it, and nothing is timed on it
        with pytest.raises(RuntimeError):
            time_layers(calls, 60 * SECOND_NS)
        return
    times = time_layers(calls, 60 * SECOND_NS)
    assert times.layers == 3
    assert min(times.float32_ns, times.bfloat16_ns, times.bfloat16_chained_ns) > 0


def test_the_linear_layer_of_gpt2():
    layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(3, 4)
    call = layer_call(layer, (ROWS,), {})
    output = forward_pass(call, ROWS, list(layer.parameters()))()
    torch.testing.assert_close(output.view(6, 5, 3), layer(ROWS))
    assert time_layers({call: 2}, 60 * SECOND_NS).layers == 2


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("keys", [7, 3])
@pytest.mark.parametrize("options", [{}, {"need_weights": False}])
def test_attention(batch_first, keys, options):
    attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, dropout=0.1).eval()
    query, key = torch.randn(3, 7, 4), torch.randn(3, keys, 4)
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    call = layer_call(attention, (query, key, key), options)
    assert call.options == (2, batch_first, 0.0, options.get("need_weights", True), keys)
    assert layer_call(attention.train(), (query, key, key), options).options[2] == 0.1
    output = forward_pass(call, query, [attention.in_proj_weight, attention.in_proj_bias])()
    assert output.shape == torch.Size([7, 3, 4])
    assert time_layers({call: 2}, 60 * SECOND_NS).layers == 2


def test_layers_of_a_step_are_counted_with_all_their_calls():
    net, inputs = network(), torch.randn(64, 16)
    assert recorded(lambda: net(inputs).mean() + net(inputs[:32]).mean(), net.parameters()).layer_times.layers == 6


def test_times_are_saved_with_the_run(tmp_path):
    net, inputs = network(), torch.randn(64, 16)
    run = recorded(lambda: net(inputs).mean(), net.parameters())
    gpulab.save(run, tmp_path / "run.gpulab")
    assert gpulab.load(tmp_path / "run.gpulab").layer_times == run.layer_times is not None


class Doubled(nn.Linear):
    """A class of the user's, whose forward is not that of nn.Linear."""

    def forward(self, rows):
        return 2 * super().forward(rows)


class Symmetric(nn.Module):
    """A parametrization of the user's."""

    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


NORMALIZED = {
    "weight_norm": nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)),
    "weight_norm without a bias": nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3, bias=False)),
    "spectral_norm": nn.utils.parametrizations.spectral_norm(nn.Conv1d(4, 6, 3)),
    "orthogonal": nn.utils.parametrizations.orthogonal(nn.Linear(4, 6)),
    "spectral_norm of older versions": nn.utils.spectral_norm(nn.Linear(4, 6)),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_a_layer_with_a_normalized_weight_is_timed_as_one_without(name):
    layer = NORMALIZED[name]
    tensor = torch.rand(2, 4, 9) if isinstance(layer, nn.Conv1d) else ROWS
    plain = nn.Conv1d(4, 6, 3, bias=layer.bias is not None) if isinstance(layer, nn.Conv1d) else nn.Linear(4, 6)
    assert layer_call(layer, (tensor,), {}) == layer_call(plain, (tensor,), {})


def packed(sequences):
    return pack_padded_sequence(sequences, torch.tensor([7, 5, 2]), batch_first=True)


@pytest.mark.parametrize(
    ("layer", "tensor"),
    [
        (Doubled(4, 3), ROWS),
        (parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric()), ROWS[:, :3]),
        (nn.utils.parametrizations.weight_norm(Doubled(4, 3)), ROWS),
        (nn.LSTM(4, 5, batch_first=True), packed(SEQUENCES)),
        (nn.LSTM(4, 5, proj_size=2), SEQUENCES),
        (nn.LSTM(4, 5), SEQUENCES[0]),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGES),
        (nn.Linear(4, 3).double(), ROWS.double()),
        (nn.Linear(4, 3, device="meta"), ROWS.to("meta")),
        (nn.LazyLinear(3), ROWS),
        (nn.Embedding(4, 3), torch.zeros(5, dtype=torch.int64)),
        (nn.BatchNorm2d(4), IMAGES),
        (nn.Linear(4, 3), ROWS.to_sparse()),
    ],
)
def test_what_is_no_layer_in_float32_or_runs_code_of_the_users_is_left_out(layer, tensor):
    assert layer_call(layer, (tensor,), {}) is None


def test_layers_under_autocast_are_left_out():
    net, inputs = network(), torch.randn(64, 16)

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(inputs).float().mean()

    assert recorded(loss, net.parameters()).layer_times is None


def test_without_instructions_for_bfloat16_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(merge_traces, "_cpu_bfloat16", lambda torch: {"cpu_bfloat16": "none"})
    net, inputs = network(), torch.randn(64, 16)
    assert recorded(lambda: net(inputs).mean(), net.parameters()).layer_times is None


def test_a_recording_of_sensors_alone_times_nothing():
    net, inputs = network(), torch.randn(64, 16)
    assert recorded(lambda: net(inputs).mean(), net.parameters(), level="sensors").layer_times is None


def test_without_time_nothing_is_claimed():
    assert time_layers({layer_call(nn.Linear(4, 3), (ROWS,), {}): 1}, 0) is None


def test_no_random_number_is_drawn_and_no_gradient_is_left():
    net, inputs = network(), torch.randn(64, 16)
    attention = nn.MultiheadAttention(16, 2, dropout=0.5)
    calls = {layer_call(net[0], (inputs,), {}): 1, layer_call(attention, (inputs[None],) * 3, {}): 1}
    state, before = torch.get_rng_state(), [parameter.grad for parameter in net.parameters()]
    time_layers(calls, SECOND_NS)
    assert torch.equal(torch.get_rng_state(), state)
    assert [parameter.grad for parameter in net.parameters()] == before == [None] * 6


@pytest.fixture
def restored_settings():
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(mode=False)
    torch.set_grad_enabled(True)


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(mode=True),
        lambda: torch.set_grad_enabled(False),
    ],
)
def test_settings_of_the_program_do_not_matter(setting):
    calls = {layer_call(nn.Linear(4, 3), (ROWS,), {}): 1}
    setting()
    assert time_layers(calls, 60 * SECOND_NS).layers == 1


def test_inside_the_programs_own_autocast_and_inference_mode():
    calls = {layer_call(nn.Linear(4, 3), (ROWS,), {}): 1}
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert time_layers(calls, 60 * SECOND_NS).layers == 1
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")


def test_hooks_of_the_program_do_not_see_the_tensors():
    calls, packed_tensors = {layer_call(nn.Linear(4, 3), (ROWS,), {}): 1}, []

    def pack(tensor):
        packed_tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert time_layers(calls, 60 * SECOND_NS).layers == 1
    assert packed_tensors == []


def test_a_mode_of_the_program_does_not_see_the_operators():
    calls = {layer_call(nn.Linear(4, 3), (ROWS,), {}): 1}
    with FlopCounterMode(display=False) as counter:
        assert time_layers(calls, 60 * SECOND_NS) is None
    assert counter.get_total_flops() == 0


def test_a_failure_to_time_is_a_gap_of_the_recording(monkeypatch):
    def fail(*_):
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(step_timing, "time_layers", fail)
    net, inputs = network(), torch.randn(64, 16)
    with warnings.catch_warnings():
        run = recorded(lambda: net(inputs).mean(), net.parameters())
    assert run.layer_times is None
    assert [gap.what for gap in run.recording.left_out if "primitive" in gap.why] == ["layer times"]
