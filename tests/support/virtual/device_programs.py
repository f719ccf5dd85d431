"""Training programs of known networks run on a virtual device, and the parts of their records that tests check."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from importlib import import_module

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from gpulab.hardware.lookup import resolve  # noqa: E402
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory  # noqa: E402
from gpulab.virtual.op_log.ops import Op, StepEnd  # noqa: E402
from tests.support.virtual.cuda_programs import device  # noqa: E402
from tests.support.virtual.reference_models import Gpt2, ResNet50  # noqa: E402


def run_on_virtual_gpu(program, gpu="h100"):
    """The records, the memory and the assumptions of a program."""
    spec, records = resolve(gpu), []
    memory = SimulatedMemory(spec.usable_bytes, spec.context_bytes)
    with device(gpu, records, memory) as virtual:
        program()
    return records, memory, virtual.assumptions


def gpu_ops(records):
    return [each for each in records if isinstance(each, Op) and not each.is_view]


def op_names(records):
    return [each.name for each in gpu_ops(records)]


def resnet(amp=None, steps=1, channels_last=False):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = ResNet50().cuda().to(memory_format=layout)
    images = torch.randn(64, 3, 224, 224, device="cuda").contiguous(memory_format=layout)
    classes = torch.randint(0, 1000, (64,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp or torch.float16, enabled=amp is not None):
            loss = functional.cross_entropy(model(images), classes)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def gpt2(dtype=None):
    with torch.device("cuda"):
        model = Gpt2()
    tokens = torch.randint(0, 50257, (8, 1024), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()


@functools.cache
def resnet_result(amp=None, channels_last=False):
    """ResNet-50, run once and cached: the operators of its second step, peak memory, and the peak by role."""
    records, memory, _ = run_on_virtual_gpu(lambda: resnet(amp, 2, channels_last))
    return last_step(records), memory.max_allocated_bytes, memory.peak().by_role


@functools.cache
def gpt2_result(dtype=None):
    """The same for the only step of GPT-2 small."""
    records, memory, _ = run_on_virtual_gpu(lambda: gpt2(dtype))
    return last_step(records), memory.max_allocated_bytes, memory.peak().by_role


def last_step(records):
    ends = [index for index, each in enumerate(records) if isinstance(each, StepEnd)]
    return gpu_ops(records[ends[-2] + 1 : ends[-1]] if len(ends) > 1 else records)


def patched_owners():
    """Modules and classes of torch and Python that are patched while a device is active."""
    return (
        torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.nvtx, torch.cuda._utils, torch.Tensor,
        torch._subclasses.fake_tensor.FakeTensor, torch._subclasses.fake_tensor.FakeTensorMode, torch._C, torch._C._nn,
        torch._subclasses.fake_tensor, nn.Module, torch.version, torch.backends.cudnn, torch.backends.cuda,
        getattr(torch, "accelerator", torch), torch.distributed, nn.parallel.DistributedDataParallel,
        nn.parallel.DataParallel, torch.cuda.Stream, torch.cuda.Event, torch.cuda.ExternalStream,
        torch.cuda.StreamContext, torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.nccl,
        import_module("torch.distributed.distributed_c10d"), import_module("torch.nn.attention.flex_attention"),
        torch.autograd.profiler.record_function, threading.Thread, import_module("torch.utils.data._utils.worker"), gc,
        sys.modules["torch.optim.optimizer"], sys.modules["torch.utils._foreach_utils"],
        sys.modules["torch.nn.modules.module"],
    )  # fmt: skip
