"""The fake CUDA device: its records, its counts, and that torch is restored afterwards."""

from __future__ import annotations

import gc
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpulab.errors import CaptureError  # noqa: E402
from gpulab.hardware.lookup import resolve  # noqa: E402
from gpulab.virtual.device.fake_device import FakeDevice  # noqa: E402
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory  # noqa: E402
from gpulab.virtual.op_log.ops import (  # noqa: E402
    Copy,
    CopyDirection,
    EventRecord,
    HostOp,
    Op,
    Phase,
    Range,
    Role,
    StepEnd,
    StreamWait,
)
from tests.support.virtual.cuda_programs import StillClock, device  # noqa: E402
from tests.support.virtual.device_programs import (  # noqa: E402
    gpt2_result,
    gpu_ops,
    op_names,
    patched_owners,
    resnet,
    resnet_result,
    run_on_virtual_gpu,
)

MIB = 2**20


# Exact counts.


@pytest.mark.parametrize(("amp", "peak_mib"), [(None, 5495), (torch.float16, 2980)], ids=["float32", "amp"])
def test_a_resnet_50_step_has_the_known_flops_and_peak_memory(amp, peak_mib):
    second, most_bytes, _ = resnet_result(amp)
    assert round(sum(each.flops for each in second) / 1e9, 1) == 1555.1
    assert round(most_bytes / MIB) == peak_mib


def test_a_gpt_2_small_step_has_the_known_flops():
    for dtype in (None, torch.bfloat16):
        step, _, _ = gpt2_result(dtype)
        assert round(sum(each.flops for each in step) / 1e9, 0) == 7156
        ran = [each for each in step if each.flops]
        assert {each.inputs[1].dtype for each in ran} == {"bfloat16" if dtype else "float32"}


def test_peak_memory_agrees_with_torch_mem_tracker():
    from torch.distributed._tools.mem_tracker import MemTracker

    def net():
        return nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 196, 100))

    def step(model, images, between=lambda: None):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        for _ in range(2):
            between()
            model(images).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    _, memory, _ = run_on_virtual_gpu(lambda: step(net().cuda(), torch.randn(8, 3, 16, 16).cuda()))
    tracker = MemTracker()
    model, images = net(), torch.randn(8, 3, 16, 16)
    tracker.track_external(model, images)
    with tracker:
        step(model, images, tracker.reset_mod_stats)
    tracked_bytes = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    # MemTracker does not round; PyTorch's allocator rounds each of some dozens of blocks up to 512 bytes.
    assert tracked_bytes <= memory.max_allocated_bytes <= tracked_bytes + 64 * 512


PROGRAMS = {
    "products": lambda: (
        torch.einsum(
            "bij,bjk->bik", torch.randn(2, 3, 4, device="cuda", requires_grad=True), torch.randn(2, 4, 5, device="cuda")
        )
        .sum()
        .backward()
    ),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=4, stride=2), nn.ConvTranspose2d(8, 4, 2))
        .cuda()(torch.randn(2, 3, 16, 16, device="cuda"))
        .sum()
        .backward()
    ),
    "attention": lambda: (
        nn.TransformerEncoderLayer(16, 4, 32).cuda()(torch.randn(2, 5, 16, device="cuda")).sum().backward()
    ),
    "half attention": lambda: (
        functional.scaled_dot_product_attention(
            *(torch.randn(1, 2, 8, 20, device="cuda", dtype=torch.half, requires_grad=True) for _ in range(3))
        )
        .sum()
        .backward()
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_flops_agree_with_the_torch_flop_counter(program):
    records, _, _ = run_on_virtual_gpu(PROGRAMS[program])
    with device(), FlopCounterMode(display=False) as counter:
        PROGRAMS[program]()
    assert sum(each.flops for each in gpu_ops(records)) == counter.get_total_flops() > 0


# What is written down.


def perceptron(steps=2):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(5, 8, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_phases_come_in_order():
    records, _, _ = run_on_virtual_gpu(perceptron)
    phases = [each.phase for each in gpu_ops(records)]
    order = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    phase_changes = [phase for index, phase in enumerate(phases) if index == 0 or phases[index - 1] is not phase]
    assert phase_changes == [Phase.SETUP, *order, *order]
    assert sum(isinstance(each, StepEnd) for each in records) == 2


def test_ranges_are_balanced_and_name_the_optimizer():
    records, _, _ = run_on_virtual_gpu(perceptron)
    open_ranges = []
    for record in records:
        if isinstance(record, Range):
            if record.is_start:
                open_ranges.append(record.name)
            else:
                assert open_ranges.pop() == record.name
    assert open_ranges == []
    assert "Optimizer.step#AdamW.step" in {record.name for record in records if isinstance(record, Range)}


def test_reading_a_value_is_a_blocking_copy():
    records, _, assumptions = run_on_virtual_gpu(lambda: torch.ones(3, device="cuda").sum().item())
    copy = records[-1]
    assert isinstance(copy, Copy)
    assert not copy.non_blocking
    assert (copy.name, copy.direction, copy.bytes) == ("aten::_local_scalar_dense", CopyDirection.DEVICE_TO_HOST, 4)
    assert [(each.value, each.count) for each in assumptions] == [("1.0", 1)]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_copy_to_the_gpu_records_pinned_and_non_blocking(pinned, non_blocking):
    def program():
        x = torch.zeros(1000)
        (x.pin_memory() if pinned else x).to("cuda", non_blocking=non_blocking)

    records, _, _ = run_on_virtual_gpu(program)
    (copy,) = [each for each in records if isinstance(each, Copy)]
    assert (copy.direction, copy.bytes, copy.pinned, copy.non_blocking) == (
        CopyDirection.HOST_TO_DEVICE,
        4000,
        pinned,
        non_blocking,
    )


def test_assumptions_are_counted():
    def program():
        x = torch.ones(10, device="cuda")
        for _ in range(3):
            x[x > 0].sum().item()

    _, _, assumptions = run_on_virtual_gpu(program)
    assert {each.value: each.count for each in assumptions} == {"half of the elements": 3, "1.0": 3}


def test_streams_and_events_are_recorded():
    def program():
        side = torch.cuda.Stream()
        x = torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x * 2
        torch.cuda.current_stream().wait_stream(side)
        x + 1

    records, _, _ = run_on_virtual_gpu(program)
    one, two, three = gpu_ops(records)
    assert (one.stream, two.stream, three.stream) == (7, two.stream, 7)
    assert two.stream != 7
    signals = [each for each in records if isinstance(each, EventRecord)]
    waits = [each for each in records if isinstance(each, StreamWait)]
    assert [(each.event, each.stream) for each in signals] == [(1, 7), (2, two.stream)]
    assert [(each.event, each.stream) for each in waits] == [(1, two.stream), (2, 7)]


def test_elapsed_time_is_virtual_time():
    class Clock:
        now_ns = 10**9

        def event_done_ns(self, event):
            return event * 2_500_000

    chosen = resolve("h100")
    with FakeDevice(chosen, [].append, SimulatedMemory(chosen.usable_bytes), Clock()):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        end.record()
        assert begin.elapsed_time(end) == 2.5


def test_a_recurrent_layer_is_one_cudnn_call_in_forward_and_one_in_backward():
    def program():
        layer = nn.LSTM(8, 16, num_layers=2, bidirectional=True).cuda()
        layer(torch.randn(5, 3, 8).cuda())[0].sum().backward()

    records, _, _ = run_on_virtual_gpu(program)
    assert op_names(records).count("aten::_cudnn_rnn") == 1
    assert op_names(records).count("aten::_cudnn_rnn_backward") == 1
    assert len(gpu_ops(records)) < 30


ONE_PIECE = {
    "native_dropout": lambda x: functional.dropout(x, 0.5, training=True),
    "_fused_rms_norm": lambda x: functional.rms_norm(x, (8,), torch.ones(8, device="cuda", requires_grad=True)),
    "native_layer_norm": lambda x: functional.layer_norm(x, (8,)),
    "_thnn_fused_lstm_cell": lambda x: nn.LSTMCell(8, 8).cuda()(x)[0],
    "_foreach_norm": lambda x: (nn.utils.clip_grad_norm_([x], 1.0), x)[1],
}


@pytest.mark.parametrize("name", ONE_PIECE)
def test_an_operator_with_one_gpu_kernel_is_recorded_as_one_operator(name):
    def program():
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        x.grad = torch.ones_like(x)
        out = ONE_PIECE[name](x)
        out.sum().backward()

    records, _, _ = run_on_virtual_gpu(program)
    assert op_names(records).count(f"aten::{name}") == 1
    assert op_names(records).count("aten::pow") + op_names(records).count("aten::bernoulli_") == 0


def test_a_dropout_mask_takes_a_byte_for_each_element():
    def program():
        x = torch.ones(2**20, device="cuda")
        before = torch.cuda.memory_allocated()
        results.append(functional.dropout(x.requires_grad_(), 0.5, training=True))
        results.append(torch.cuda.memory_allocated() - before)

    results = []
    run_on_virtual_gpu(program)
    assert results[1] == 5 * 2**20


@pytest.mark.parametrize(
    ("gpu", "dtype", "mask", "expected"),
    [
        ("h100", torch.bfloat16, False, "flash"),
        ("a100", torch.float16, False, "flash"),
        ("h100", torch.float32, False, "efficient"),
        ("h100", torch.bfloat16, True, "efficient"),
        ("t4", torch.float16, False, "efficient"),
        ("t4", torch.float64, False, None),
    ],
)
def test_attention_selects_the_kernel_of_the_gpu(gpu, dtype, mask, expected):
    def program():
        q = torch.randn(1, 2, 8, 16, device="cuda", dtype=dtype)
        functional.scaled_dot_product_attention(
            q, q, q, torch.zeros(8, 8, device="cuda", dtype=dtype) if mask else None
        )

    records, _, _ = run_on_virtual_gpu(program, gpu)
    attention_ops = [each for each in op_names(records) if "attention" in each]
    assert attention_ops == ([f"aten::_scaled_dot_product_{expected}_attention"] if expected else [])


def test_optimizers_use_the_cuda_implementations():
    def program(**options):
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters(), **options)
        model(torch.randn(2, 4).cuda()).sum().backward()
        optimizer.step()

    ops_by_variant = {}
    for name, options in {"default": {}, "fused": {"fused": True}, "single": {"foreach": False}}.items():
        records, _, _ = run_on_virtual_gpu(lambda options=options: program(**options))
        ops_by_variant[name] = {each.name for each in gpu_ops(records) if each.phase is Phase.OPTIMIZER}
    assert "aten::_foreach_addcdiv_" in ops_by_variant["default"]
    assert "aten::_fused_adam_" in ops_by_variant["fused"]
    assert "aten::addcdiv_" in ops_by_variant["single"]


def test_autocast_casts_a_weight_once():
    def program():
        model, x = nn.Linear(8, 8).cuda(), torch.randn(2, 8, device="cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                model(model(x))

    records, _, _ = run_on_virtual_gpu(program)
    casts = [each for each in gpu_ops(records) if each.name == "aten::copy_" and each.inputs[0].sizes == (8, 8)]
    assert len(casts) == 2  # once in each region: the cache is cleared where autocast ends


def test_autocast_covers_every_operator_of_torch_autocast():
    from gpulab.virtual.device.operators.autocast import AutocastKernels

    everything = torch._C._dispatch_get_all_op_names()
    expected = {each for each in everything if torch._C._dispatch_has_kernel_for_dispatch_key(each, "AutocastCUDA")}
    named_tensor_ops = {
        each for each in expected if "imname" in each or "names_" in each
    }  # of named tensors, which no GPU program has
    assert {f"aten::{name}" for name in AutocastKernels().kernels()} == expected - named_tensor_ops - {
        "aten::_cudnn_rnn"
    }


def test_channels_last_propagates_through_the_network():
    step, _, _ = resnet_result(torch.bfloat16, True)
    deep = [each for each in step if each.name in ("aten::convolution", "aten::cudnn_batch_norm")]
    assert len(deep) > 100
    assert sum(each.outputs[0].channels_last for each in deep) > 100


def test_memory_roles_are_known_after_the_optimizer_step():
    _, _, by_role = resnet_result(None)
    mib_by_role = {role: round(size / MIB) for role, size in by_role.items()}
    assert mib_by_role[Role.PARAMETER] == 98
    assert mib_by_role[Role.OPTIMIZER] == 97
    assert mib_by_role[Role.ACTIVATION] > 5000


@pytest.mark.alone("times Python between operators on this machine")
def test_python_time_of_the_program_is_recorded_without_that_of_gpulab():
    def program():
        x = torch.zeros(10, device="cuda")
        for _ in range(200):
            x.add_(1)
        for _ in range(10):
            time.sleep(0.002)
            x.mul_(2)

    records, _, _ = run_on_virtual_gpu(program)
    idle = [each.python_ns for each in records if isinstance(each, Op) and each.name == "aten::add_"]
    slept = [each.python_ns for each in records if isinstance(each, Op) and each.name == "aten::mul_"]
    assert sorted(idle)[len(idle) // 2] < 50_000
    assert all(each >= 1_900_000 for each in slept)


def test_cpu_operators_are_recorded_with_their_measured_time():
    def program():
        x = torch.randn(1000, 1000)
        start_ns = time.perf_counter_ns()
        x.exp()
        spent.append(time.perf_counter_ns() - start_ns)
        x.sum().cuda()

    spent = []
    records, _, _ = run_on_virtual_gpu(program)
    host_ops = {each.name: each for each in records if isinstance(each, HostOp)}
    assert 0 < host_ops["aten::exp"].elapsed_ns <= spent[0]
    assert host_ops["aten::exp"].inputs[0].sizes == (1000, 1000)


def test_phases_are_found_without_modules():
    def program():
        weight = torch.randn(4, 4, device="cuda", requires_grad=True)
        (torch.randn(2, 4, device="cuda") @ weight).sum().backward()

    records, _, _ = run_on_virtual_gpu(program)
    assert {each.name: each.phase for each in gpu_ops(records)}["aten::randn"] is Phase.SETUP
    assert [each.phase for each in gpu_ops(records) if each.flops] == [Phase.FORWARD, Phase.BACKWARD]


def test_out_of_memory_raises_the_torch_error_and_the_program_can_continue():
    def program():
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2**29, device="cuda"), [torch.empty(2**29, device="cuda") for _ in range(10)]
        assert str(caught.value).startswith(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
        )
        del caught
        torch.cuda.empty_cache()
        torch.empty(2**29, device="cuda")

    run_on_virtual_gpu(program, "t4")


MISTAKES = {
    "product": lambda on: nn.Linear(8, 4).to(on)(torch.randn(2, 9, device=on)),
    "sum": lambda on: torch.ones(2, 3, device=on) + torch.ones(2, 4, device=on),
    "batched product": lambda on: torch.bmm(torch.ones(2, 3, 4, device=on), torch.ones(2, 3, 4, device=on)),
    "types": lambda on: nn.Linear(8, 4).to(on)(torch.randn(2, 8, device=on).half()),
    "joining": lambda on: torch.cat([torch.ones(2, 3, device=on), torch.ones(2, 4, device=on)]),
    "stacking": lambda on: torch.stack([torch.ones(2, device=on), torch.ones(3, device=on)]),
    "classes": lambda on: functional.cross_entropy(torch.ones(3, 2, device=on), torch.zeros(2, device=on).long()),
    "channels": lambda on: nn.Conv2d(3, 4, 3).to(on)(torch.ones(1, 4, 8, 8, device=on)),
    "view": lambda on: torch.ones(2, 3, device=on).view(5),
    "normalisation": lambda on: nn.LayerNorm(8).to(on)(torch.randn(2, 9, device=on)),
    "batch normalisation": lambda on: nn.BatchNorm2d(3).to(on)(torch.ones(1, 4, 2, 2, device=on)),
    "recurrent": lambda on: nn.LSTM(8, 4).to(on)(torch.randn(2, 3, 9, device=on)),
    "index": lambda on: torch.ones(3, device=on)[5],
    "gather": lambda on: torch.ones(2, 3, device=on).gather(0, torch.zeros(3, 4, device=on).long()),
    "expand": lambda on: torch.ones(2, 3, device=on).expand(4, 3),
    "leaf in place": lambda on: torch.ones(3, device=on, requires_grad=True).add_(1),
    "no graph": lambda on: torch.ones(3, device=on).sum().backward(),
    "graph freed": lambda on: [
        each.backward() for each in [(torch.ones(3, device=on, requires_grad=True) ** 2).sum()] * 2
    ],
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_the_error_of_real_tensors(mistake, capfd):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as real:
        MISTAKES[mistake]("cpu")
    with device(), pytest.raises((RuntimeError, ValueError, IndexError)) as virtual:
        MISTAKES[mistake]("cuda")
    assert str(virtual.value) == str(real.value)
    assert virtual.type is real.type
    assert capfd.readouterr().err == ""


def test_tf32_follows_the_torch_setting():
    def program():
        x = torch.randn(8, 8, device="cuda")
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            x @ x
        torch.conv2d(x[None, None], x[None, None])

    before = torch.get_float32_matmul_precision()
    try:
        records, _, _ = run_on_virtual_gpu(program)
    finally:
        torch.set_float32_matmul_precision(before)
    assert [each.tf32 for each in gpu_ops(records) if each.flops] == [False, True, True]


# Torch is restored.


def state():
    attributes = {}
    for owner in patched_owners():
        for name, value in vars(owner).items():
            size = len(value) if type(value) in (list, dict) and "cache" not in name else None
            attributes[repr(owner), name] = (id(value), size)
    dumps = ("bmm", "linear", "scaled_dot_product_attention", "lstm.input", "gru.data", "softmax.int", "mse_loss",
             "ctc_loss.Tensor", "index_put", "binary_cross_entropy")  # fmt: skip
    kernels = {name: torch._C._dispatch_dump(f"aten::{name}") for name in dumps}
    modes = (torch.utils._python_dispatch._len_torch_dispatch_stack(), torch._C._len_torch_function_stack())
    return attributes, kernels, modes, list(gc.callbacks), torch.get_default_device(), torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("ended_by", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_torch_is_restored_whatever_ends_the_block(ended_by):
    with device():
        torch.ones(1, device="cuda")  # what is imported on first use is imported
    before = state()

    def program():
        perceptron()
        if ended_by is not None:
            with torch.no_grad():
                raise ended_by

    if ended_by is None:
        run_on_virtual_gpu(program)
    else:
        with pytest.raises(ended_by):
            run_on_virtual_gpu(program)
    after = state()
    assert {key for key in before[0].keys() | after[0].keys() if before[0].get(key) != after[0].get(key)} == set()
    assert after[1:] == before[1:]


def test_torch_is_restored_after_an_interrupt_inside_an_operator():
    before = state()
    records = []

    def sink(record):
        records.append(record)
        if len(records) == 20:
            raise KeyboardInterrupt

    spec = resolve("h100")
    with (
        pytest.raises(KeyboardInterrupt),
        FakeDevice(spec, sink, SimulatedMemory(spec.usable_bytes), StillClock()),
    ):
        perceptron()
    after = state()
    assert {key for key in before[0].keys() | after[0].keys() if before[0].get(key) != after[0].get(key)} == set()
    assert after[1:] == before[1:]
    run_on_virtual_gpu(perceptron)


def test_entering_does_not_change_the_random_state():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with device():
        values = torch.rand(4)
    assert torch.equal(values, expected)


def test_the_cpu_s_autocast_works_afterwards():
    run_on_virtual_gpu(lambda: resnet(torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    assert not torch.cuda.is_available()


USES = {
    "arithmetic": lambda x: x + 1,
    "reading": lambda x: x.sum().item(),
    "copying": lambda x: x.cpu(),
    "listing": lambda x: x.tolist(),
    "backward": lambda x: x.sum().backward(),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x),
    "convolution": lambda x: torch.conv2d(x, torch.ones(1, 2, 1, 1)),
    "product": lambda x: nn.Linear(8, 2)(x),
}


@pytest.mark.parametrize("use", USES)
def test_a_tensor_of_a_closed_gpu_raises_capture_error(use):
    with device():
        x = torch.randn(1, 2, 4, 8, device="cuda", requires_grad=True)
    with pytest.raises(CaptureError, match="closed"):
        USES[use](x)
    with device(), pytest.raises(CaptureError, match="closed"):
        USES[use](x)


def test_a_gpu_is_entered_only_once_and_never_nested():
    first = device()
    with first, pytest.raises(CaptureError, match="active"), device():
        pass
    with pytest.raises(CaptureError, match="used"), first:
        pass
    with device():
        pass
