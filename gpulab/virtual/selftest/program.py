"""The self-test's program: a small training loop on a virtual GPU, part by part, run in a process of its own.

It writes a line as each part begins, so that whoever reads it knows which part a crash or a hang belongs to.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from gpulab.virtual.selftest.progress import BEGINS, DONE, FAILED, MARK, START

_GPU = "h100"  # one that has everything: flash attention, bfloat16


class WrongError(Exception):
    """PyTorch did something else on the virtual GPU than it does on a GPU."""


def main() -> None:
    """Run all parts; tells the first that fails, and ends."""
    _say(BEGINS + START)
    try:
        _run()
    except Exception as error:  # whatever it is, it is what the self-test is there to find
        _say(FAILED + f"{type(error).__name__}: {' '.join(str(error).split())}")
    else:
        _say(DONE)


def _say(words: str) -> None:
    sys.stdout.write(f"{MARK}{words}\n")
    sys.stdout.flush()


def _part(name: str) -> None:
    _say(BEGINS + name)


def _must(right: bool, what: str) -> None:
    if not right:
        raise WrongError(what)


def _run() -> None:
    import torch

    from gpulab.virtual.host.costs import Host
    from gpulab.virtual.selftest.run import Selftest, presume
    from gpulab.virtual.session import VirtualGpu

    presume(Selftest(True, "this is the self-test", str(torch.__version__), 0.0))
    _on_the_cpu()  # imports what PyTorch imports late, and what must be the same afterwards
    before, available = _functions(), torch.cuda.is_available()
    _part("entering it")
    with VirtualGpu(_GPU, "self-test", host=Host.usual()) as gpu:
        for name, part in _PARTS.items():
            _part(name)
            part()
        _part("leaving it")
    _part("PyTorch after leaving it")
    changed = [name for name, value in _functions().items() if before.get(name, value) is not value]
    _must(not changed, f"not as before: {', '.join(changed[:5])}")
    _must(torch.cuda.is_available() == available, "torch.cuda.is_available() is not as before")
    _on_the_cpu()
    _part("what was recorded")
    _recorded(gpu.run)


def _on_the_cpu() -> None:
    """PyTorch itself."""
    import torch

    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.ones(2, 4))
    out.float().sum().backward()
    torch.optim.AdamW(layer.parameters()).step()
    _must(torch.ones(3).sum().item() == 3.0, "three ones do not sum to 3")
    _must(out.dtype is torch.bfloat16 and layer.weight.grad is not None, "a step on the CPU is not as it should be")


def _functions() -> dict[str, Any]:
    """Every function and class that PyTorch's modules and main classes hold, by name."""
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
    _must(loss.device.type == "cuda" and loss.dim() == 0, "the loss is not one number on the GPU")
    for parameter in model.parameters():
        _must(parameter.grad is not None and parameter.grad.is_cuda, "a parameter has no gradient on the GPU")
        _must(parameter.grad.shape == parameter.shape, "a gradient has another shape than its parameter")


def _memory() -> None:
    import torch

    before = torch.cuda.memory_allocated()
    kept = torch.empty(512, 512, device="cuda")
    _must(torch.cuda.memory_allocated() - before == 512 * 512 * 4, "a tensor of 1 MiB does not take 1 MiB")
    del kept
    _must(torch.cuda.memory_allocated() == before, "a tensor's memory is not given back")


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
            _must(out.dtype is dtype, f"a linear layer gives {out.dtype} under autocast to {dtype}")
            _must(out.softmax(-1).dtype is torch.float32, "softmax is not in float32 under autocast")
        out.float().sum().backward()
    _must(layer(x).dtype is torch.float32, "autocast goes on after its end")
    grad = layer.weight.grad
    _must(grad is not None and grad.dtype is torch.float32, "a gradient is not of its parameter's type")


def _attention() -> None:
    import torch

    given: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    query, key, value = (torch.randn(2, 4, 16, 64, **given) for _ in range(3))
    out: Any = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    out.sum().backward()
    _must(query.grad is not None and query.grad.shape == query.shape, "attention gives no gradient")


def _scaler() -> None:
    import torch

    model, stepped = _network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *given: stepped.append(1))
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(2, 3, 8, 8, device="cuda")).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    _must(len(stepped) == 2, "GradScaler left steps out")


class Numbers:
    """A dataset; workers find it by name."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> Any:
        import torch

        return torch.full((3,), float(place)), place


def _loader() -> None:
    import torch
    from torch.utils.data import DataLoader

    for workers in (0, 1) if sys.platform == "linux" else (0,):  # starting one takes long elsewhere
        batches = 0
        for numbers, places in DataLoader(Numbers(), batch_size=2, num_workers=workers, pin_memory=True):  # type: ignore[arg-type]
            _must(places.tolist() == [2 * batches, 2 * batches + 1], "a DataLoader's batches are not real")
            _must(numbers.is_pinned(), "a DataLoader's batches are not pinned")
            _must(numbers.to("cuda", non_blocking=True).is_cuda, "a batch does not go to the GPU")
            batches += 1
        _must(batches == 3, "a DataLoader's pass has another length")
    torch.cuda.synchronize()


def _values() -> None:
    import torch

    total = torch.randn(4, device="cuda").sum()
    _must(isinstance(total.item(), float), "item() gives no number")
    _must(total.cpu().device.type == "cpu" and len(torch.ones(3).cuda().tolist()) == 3, "cpu() or tolist() fails")


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
    _must(start.elapsed_time(end) > 0, "an event's time does not go on")


_PARTS: dict[str, Callable[[], None]] = {
    "forward and backward": _forward_and_backward,
    "memory": _memory,
    "an optimizer's step": _optimizers,
    "autocast": _autocast,
    "attention": _attention,
    "GradScaler": _scaler,
    "a DataLoader": _loader,
    "reading values": _values,
    "streams and events": _streams,
}


def _recorded(run: Any) -> None:
    """What the parts must have left in the run."""
    names = {name for name in run.event_rows.words("name").to_list() if name}
    for name in ("aten::addmm", "aten::convolution_backward", "aten::_foreach_add_", "aten::_scaled_dot_product_flash"):
        _must(any(name in each for each in names), f"no {name} was recorded")
