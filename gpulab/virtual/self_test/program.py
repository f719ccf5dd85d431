"""The self-test program: a small training loop on a virtual GPU, run in a subprocess.

It writes a line when each part begins, so that the parent process knows which part crashed or hung.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from gpulab.virtual.self_test.progress import DONE, FAILURE_PREFIX, FIRST_PART, MARK, PART_PREFIX

_GPU = "h100"  # supports all features: flash attention, bfloat16


class SelftestError(Exception):
    """PyTorch behaves differently on the virtual GPU than on a GPU."""


def main() -> None:
    """Run all parts; stop at the first that fails and write its error."""
    _write(PART_PREFIX + FIRST_PART)
    try:
        _run()
    except Exception as error:  # any error is a result of the self-test
        _write(FAILURE_PREFIX + f"{type(error).__name__}: {' '.join(str(error).split())}")
    else:
        _write(DONE)


def _write(text: str) -> None:
    sys.stdout.write(f"{MARK}{text}\n")
    sys.stdout.flush()


def _begin(name: str) -> None:
    _write(PART_PREFIX + name)


def _check(condition: bool, error: str) -> None:
    if not condition:
        raise SelftestError(error)


def _run() -> None:
    import torch

    from gpulab.virtual.host.costs import HostCosts
    from gpulab.virtual.self_test.run import SelftestResult, set_result
    from gpulab.virtual.session import VirtualGpu

    set_result(SelftestResult(True, "this is the self-test", str(torch.__version__), 0.0))
    _on_the_cpu()  # triggers PyTorch's lazy imports, and shows that the CPU works before and after
    before, available = _functions(), torch.cuda.is_available()
    _begin("starting the virtual GPU")
    with VirtualGpu(_GPU, "self-test", host=HostCosts.reference()) as gpu:
        for name, part in _PARTS.items():
            _begin(name)
            part()
        _begin("stopping the virtual GPU")
    _begin("restoring PyTorch")
    changed = [name for name, value in _functions().items() if before.get(name, value) is not value]
    _check(not changed, f"these functions were not restored: {', '.join(changed[:5])}")
    _check(torch.cuda.is_available() == available, "torch.cuda.is_available() was not restored")
    _on_the_cpu()
    _begin("recording")
    _check_run(gpu.run)


def _on_the_cpu() -> None:
    """Run one training step on the CPU."""
    import torch

    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.ones(2, 4))
    out.float().sum().backward()
    torch.optim.AdamW(layer.parameters()).step()
    _check(torch.ones(3).sum().item() == 3.0, "torch.ones(3).sum() is not 3 on the CPU")
    _check(
        out.dtype is torch.bfloat16 and layer.weight.grad is not None,
        "a training step on the CPU gives a wrong dtype or no gradient",
    )


def _functions() -> dict[str, Any]:
    """Return every function and class of PyTorch's modules and main classes, by name."""
    import torch
    from torch._subclasses import fake_tensor
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    owners: dict[str, Any] = {
        name: module
        for name, module in list(sys.modules.items())
        if (name == "torch" or name.startswith("torch.")) and isinstance(module, types.ModuleType)
    }
    kinds = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, DataLoader, _BaseDataLoaderIter)
    owners |= {kind.__qualname__: kind for kind in (*kinds, fake_tensor.FakeTensor, fake_tensor.FakeTensorMode)}
    return {
        f"{owner}.{name}": value
        for owner, holder in owners.items()
        for name, value in list(vars(holder).items())
        if callable(value) or isinstance(value, property | staticmethod)
    }


def _network() -> Any:
    from torch import nn

    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16, bias=False)
    return nn.Sequential(*layers).to("cuda")


def _forward_and_backward() -> None:
    import torch

    model = _network()
    loss = torch.nn.functional.cross_entropy(
        model(torch.randn(4, 3, 8, 8, device="cuda")), torch.randint(16, (4,)).cuda()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    _check(loss.device.type == "cuda" and loss.dim() == 0, "the loss is not a scalar on the GPU")
    for parameter in model.parameters():
        _check(parameter.grad is not None and parameter.grad.is_cuda, "a parameter has no gradient on the GPU")
        _check(parameter.grad.shape == parameter.shape, "a gradient and its parameter have different shapes")


def _memory() -> None:
    import torch

    before = torch.cuda.memory_allocated()
    tensor = torch.empty(512, 512, device="cuda")
    _check(
        torch.cuda.memory_allocated() - before == 512 * 512 * 4,
        "memory_allocated() does not grow by 1 MiB for a tensor of 1 MiB",
    )
    del tensor
    _check(torch.cuda.memory_allocated() == before, "the memory of a deleted tensor is not freed")


def _optimizers() -> None:
    import torch

    model = _network()
    for optimizer in (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.optim.AdamW(model.parameters())):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
            optimizer.step()


def _autocast() -> None:
    import torch

    layer, x = torch.nn.Linear(16, 16).cuda(), torch.randn(2, 16, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=dtype):
            out = layer(x)
            _check(out.dtype is dtype, f"a linear layer returns {out.dtype} under autocast with {dtype}")
            _check(out.softmax(-1).dtype is torch.float32, "softmax does not return float32 under autocast")
        out.float().sum().backward()
    _check(layer(x).dtype is torch.float32, "autocast stays active after its end")
    grad = layer.weight.grad
    _check(grad is not None and grad.dtype is torch.float32, "a gradient does not have the dtype of its parameter")


def _attention() -> None:
    import torch

    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    query, key, value = (torch.randn(2, 4, 16, 64, **options) for _ in range(3))
    out: Any = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    out.sum().backward()
    _check(query.grad is not None and query.grad.shape == query.shape, "attention computes no gradient for the query")


def _scaler() -> None:
    import torch

    model, optimizer_steps = _network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: optimizer_steps.append(1))
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(2, 3, 8, 8, device="cuda")).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    _check(len(optimizer_steps) == 2, "GradScaler skips optimizer steps")


class Numbers:
    """A dataset at module level, so that workers can import it."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((3,), float(index)), index


def _loader() -> None:
    import torch
    from torch.utils.data import DataLoader

    for workers in (0, 1) if sys.platform == "linux" else (0,):  # starting a worker is slow on other systems
        batches = 0
        for numbers, indices in DataLoader(Numbers(), batch_size=2, num_workers=workers, pin_memory=True):  # type: ignore[arg-type]
            _check(indices.tolist() == [2 * batches, 2 * batches + 1], "a DataLoader returns wrong values")
            _check(numbers.is_pinned(), "a DataLoader with pin_memory=True returns unpinned batches")
            _check(numbers.to("cuda", non_blocking=True).is_cuda, "a batch cannot be copied to the GPU")
            batches += 1
        _check(batches == 3, "a DataLoader returns a wrong number of batches")
    torch.cuda.synchronize()


def _values() -> None:
    import torch

    total = torch.randn(4, device="cuda").sum()
    _check(isinstance(total.item(), float), "item() does not return a float")
    _check(
        total.cpu().device.type == "cpu" and len(torch.ones(3).cuda().tolist()) == 3,
        "cpu() or tolist() returns a wrong result",
    )


def _streams() -> None:
    import torch

    cuda: Any = torch.cuda
    start, end, side = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True), cuda.Stream()
    start.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.randn(256, 256, device="cuda") @ torch.randn(256, 256, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    torch.cuda.synchronize()
    _check(start.elapsed_time(end) > 0, "elapsed_time() between two events is 0")


_PARTS: dict[str, Callable[[], None]] = {
    "forward and backward": _forward_and_backward,
    "memory": _memory,
    "optimizer steps": _optimizers,
    "autocast": _autocast,
    "attention": _attention,
    "GradScaler": _scaler,
    "DataLoader": _loader,
    "item, cpu and tolist": _values,
    "streams and events": _streams,
}


def _check_run(run: Any) -> None:
    """Check that the operators of all parts were recorded."""
    names = {name for name in run.event_rows.text("name").to_list() if name}
    for name in ("aten::addmm", "aten::convolution_backward", "aten::_foreach_add_", "aten::_scaled_dot_product_flash"):
        _check(any(name in each for each in names), f"{name} was not recorded")
