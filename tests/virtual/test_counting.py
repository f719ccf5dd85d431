"""Where PyTorch cannot be played to, operators are counted: the same work and memory, and what is left out is said."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpulab.errors import CaptureError  # noqa: E402
from gpulab.hardware.lookup import resolve  # noqa: E402
from gpulab.virtual.cost_model.operators import kernels_of  # noqa: E402
from gpulab.virtual.device import counting_device  # noqa: E402
from gpulab.virtual.device.counting_device import LIMITATIONS, NO_HOST, CountingDevice, fallback_warning  # noqa: E402
from gpulab.virtual.device.torch_api import cuda_api  # noqa: E402
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory  # noqa: E402
from gpulab.virtual.op_log.ops import Copy, CopyDirection, Op, Phase, Role  # noqa: E402
from tests.support.tiers import every_nth  # noqa: E402
from tests.support.virtual import cuda_programs  # noqa: E402
from tests.support.virtual.device_programs import (  # noqa: E402
    gpt2,
    gpt2_result,
    gpu_ops,
    last_step,
    op_names,
    patched_owners,
    resnet,
    resnet_result,
)

MIB = 2**20


def device(records=None, memory=None, gpu="h100"):
    spec, sink = resolve(gpu), (records if records is not None else []).append
    gpu_memory = memory or SimulatedMemory(spec.usable_bytes, spec.context_bytes)
    return CountingDevice(spec, sink, gpu_memory, cuda_programs.StillClock())


def counted(program, gpu="h100"):
    """The records, the memory and the assumptions of a program."""
    chosen, records = resolve(gpu), []
    memory = SimulatedMemory(chosen.usable_bytes, chosen.context_bytes)
    with device(records, memory, gpu) as counting_device:
        program()
    return records, memory, counting_device.assumptions


@functools.cache
def two_steps_of_resnet(amp=None, channels_last=False):
    """ResNet-50, counted once for all who ask: all that was written down, and the memory."""
    records, memory, _ = counted(lambda: resnet(amp, 2, channels_last))
    return records, memory


def resnet_counted(amp=None, channels_last=False):
    """The work of its second step, and memory in use at most."""
    records, memory = two_steps_of_resnet(amp, channels_last)
    return last_step(records), memory.max_allocated_bytes


def gpt2_counted(dtype=None):
    """The same of GPT-2 small and its only step."""
    records, memory, _ = counted(lambda: gpt2(dtype))
    return last_step(records), memory.max_allocated_bytes


def perceptron(steps):
    """A small network: what is told of its run is told of any."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()


def flops(records):
    return sum(each.flops for each in records)


def priced_ns(records):
    return sum(kernel.ns for op in records for kernel in kernels_of(op, resolve("h100")))


# The same work and memory as where it is played.


@pytest.mark.parametrize(("amp", "peak_mib"), [(None, 5495), (torch.float16, 2980)], ids=["float32", "amp"])
def test_a_resnet_50_step_has_the_known_flops_and_peak_memory(amp, peak_mib):
    step, most_bytes = resnet_counted(amp)
    assert round(flops(step) / 1e9, 1) == 1555.1
    assert round(most_bytes / MIB) == peak_mib


PROGRAMS = {
    "resnet 50": (resnet_counted, resnet_result, (None,)),
    "resnet 50, amp": (resnet_counted, resnet_result, (torch.float16,)),
    "resnet 50, channels last": (resnet_counted, resnet_result, (torch.bfloat16, True)),
    "gpt 2": (gpt2_counted, gpt2_result, (None,)),
    "gpt 2, amp": (gpt2_counted, gpt2_result, (torch.bfloat16,)),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("count", "play", "options"),
    every_nth([pytest.param(*program, id=name) for name, program in PROGRAMS.items()], 3, pytest.mark.night),
)
def test_counts_agree_with_the_virtual_gpu(count, play, options):
    counted_records, counted_bytes = count(*options)
    played_records, played_bytes, _ = play(*options)
    assert flops(counted_records) == flops(played_records)
    assert counted_bytes == pytest.approx(played_bytes, rel=0.001)
    assert priced_ns(counted_records) == pytest.approx(priced_ns(played_records), rel=0.05)


def test_flops_agree_with_the_torch_flop_counter():
    def step(x, model):
        model(x).sum().backward()

    model, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)), torch.randn(32, 64)
    with FlopCounterMode(display=False) as counter:
        step(x, model)
    records, _, _ = counted(lambda: step(x.cuda(), model.cuda()))
    assert flops(gpu_ops(records)) == counter.get_total_flops()


def test_memory_is_split_by_role():
    _, memory = two_steps_of_resnet(None, False)
    used = memory.peak().by_role
    assert round(used[Role.PARAMETER] / MIB) == 98
    assert used[Role.OPTIMIZER] > 90 * MIB
    assert used[Role.ACTIVATION] > 5000 * MIB


def test_phases_come_in_order():
    records, _ = two_steps_of_resnet(None, False)
    phases = list(dict.fromkeys(each.phase for each in records if isinstance(each, Op)))
    assert phases == [Phase.SETUP, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


# CUDA programs as people write them.

FAILING = {  # what the module says it leaves out, and what is rare
    "autocast_lists", "checks_for_numbers", "ctc_loss", "default_devices", "losses",
    "masks_and_nonzero", "mixed_devices", "moving_tensors", "numpy_needs_cpu", "random_numbers", "reading_values",
    "saving_writes_nothing", "weight_and_spectral_norm",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", sorted(set(cuda_programs.WORKS) - FAILING))
def test_it_runs_unmodified(name):
    with device():
        cuda_programs.WORKS[name]()


@pytest.mark.full
def test_a_mask_selects_half_of_the_elements_and_blocks_the_host():
    def program():
        x = torch.randn(8, 3, device="cuda", requires_grad=True)
        assert x[x[:, 0] > 0].shape == (4, 3)
        assert x[x > 0].shape == x.masked_select(x > 0).shape == (12,)
        x[x > 0].sum().backward()
        assert x.grad.shape == (8, 3)
        with torch.no_grad():
            x[x > 0] = 0.0

    records, _, assumptions = counted(program)
    assert sum(isinstance(each, Copy) and each.direction is CopyDirection.DEVICE_TO_HOST for each in records) >= 5
    assert "half of the elements" in [each.value for each in assumptions]


def test_an_operator_without_shape_rule_is_named_in_the_error():
    def program():
        torch.unique(torch.randn(8, device="cuda"))

    with pytest.raises(CaptureError, match="aten::_unique2"):
        counted(program)


def test_a_second_gpu_does_not_exist():
    for program in (lambda: torch.zeros(1, device="cuda:1"), lambda: torch.zeros(1).to("cuda:1")):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            counted(program)


def test_a_copy_to_the_gpu_and_a_value_read_are_copies():
    records, _, assumptions = counted(lambda: torch.ones(4, 8).cuda().sum().item())
    copies = [(each.direction, each.bytes) for each in records if isinstance(each, Copy)]
    assert copies == [(CopyDirection.HOST_TO_DEVICE, 128), (CopyDirection.DEVICE_TO_HOST, 4)]
    assert [each.subject for each in assumptions[1:]] == ["numbers read from the GPU, as with .item()"]


def test_autocast_runs_products_in_half_precision_and_softmax_in_float32():
    def program():
        layer, x = nn.Linear(8, 8).cuda(), torch.randn(2, 8, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = layer(x)
            assert out.dtype is torch.bfloat16
            assert (out @ out.T).dtype is torch.bfloat16
            assert out.softmax(-1).dtype is torch.float32
            assert functional.cross_entropy(out, torch.zeros(2, dtype=torch.long, device="cuda")).dtype is torch.float32
        assert layer(x).dtype is torch.float32
        out.float().sum().backward()
        assert layer.weight.grad.dtype is torch.float32

    counted(program)


def test_attention_selects_the_kernel_of_the_gpu():
    def program():
        q = torch.randn(1, 2, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

    assert "aten::_scaled_dot_product_flash_attention_backward" in op_names(counted(program, "h100")[0])
    assert "aten::_scaled_dot_product_flash_attention" not in op_names(counted(program, "t4")[0])


# What is said of it, and that torch is itself again.


def test_python_time_is_not_counted():
    records, _ = two_steps_of_resnet(None, False)
    assert {each.python_ns for each in records} == {0}
    assert NO_HOST.launch_ns == NO_HOST.alloc_ns == NO_HOST.scaled(3.0).sync_call_ns == 0
    assert str(NO_HOST) == str(NO_HOST.scaled(2.0))


def test_the_warning_states_the_limitations():
    text = fallback_warning("autocast failed: ValueError: 3")
    assert text.startswith(f"The virtual GPU does not work with PyTorch {torch.__version__} (autocast failed: ")
    for word in ("meta device", "host overhead", "autocast", "device mismatches"):
        assert word in text
    assert LIMITATIONS in text
    _, _, assumptions = counted(lambda: None)
    assert [each.value for each in assumptions] == [LIMITATIONS]


@pytest.mark.parametrize("ended_by", [None, ValueError, KeyboardInterrupt])
def test_torch_is_restored_whatever_ends_the_block(ended_by):
    def state():
        attributes = {
            (repr(owner), name): id(value)
            for owner in (*patched_owners(), functional)
            for name, value in vars(owner).items()
        }
        modes = (torch.utils._python_dispatch._len_torch_dispatch_stack(), torch._C._only_lift_cpu_tensors())
        return attributes, modes, torch.backends.mha.get_fastpath_enabled(), torch.cuda.is_available()

    with device():
        torch.ones(1, device="cuda")  # what is imported on first use is imported
    before = state()

    def program():
        resnet(torch.float16)
        if ended_by is not None:
            raise ended_by

    if ended_by is None:
        counted(program)
    else:
        with pytest.raises(ended_by):
            counted(program)
    assert state() == before
    assert torch.ones(3).sum().item() == 3.0


def test_a_pytorch_that_counting_does_not_support_either_raises_capture_error_with_a_fix(monkeypatch):
    monkeypatch.setattr(counting_device, "meta_mode", lambda: nothing_there())

    def nothing_there():
        raise ImportError("cannot import name 'TorchDispatchMode'")

    available = torch.cuda.is_available()
    with pytest.raises(CaptureError, match=r"TorchDispatchMode[\s\S]*gpulab.virtual.self_test.run.TESTED"):
        counted(lambda: None)
    assert torch.cuda.is_available() == available
    assert cuda_api.device_index(None) == 0


def test_a_virtual_gpu_counts_if_the_self_test_fails_and_the_report_says_so(monkeypatch):
    import gpulab
    from gpulab.virtual import session
    from gpulab.virtual.self_test.run import SelftestResult

    failed = SelftestResult(False, "autocast failed: ValueError: 3", torch.__version__, 4.0)
    monkeypatch.setattr(session, "selftest_result", lambda: failed)
    gpu = gpulab.virtual_gpu("h100")
    with pytest.warns(UserWarning, match=r"does not work with PyTorch .* \(autocast failed: ValueError: 3\)"), gpu:
        perceptron(steps=4)
    assert gpu.run.facts[counting_device.COUNTED_FACT].startswith("autocast failed: ValueError: 3; ")
    assert gpu.run.facts["host"] == str(NO_HOST)
    assert LIMITATIONS in " ".join(str(gpulab.report(gpu.run)).split())
