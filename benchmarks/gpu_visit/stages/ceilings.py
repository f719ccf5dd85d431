"""Measured speeds of a device: matrix products, device memory, copies to and from the host, launches.

Compare them with the data sheets in gpulab.hardware.gpus. Inputs are random, and larger than the L2 cache on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

ROUNDS = 7


def measure_ceilings(device: str) -> dict[str, float]:
    """The speeds by name; the names end in the unit."""
    on_gpu = device == "cuda"
    size, numbers, launches = (8192, 2**28, 2000) if on_gpu else (128, 2**14, 20)
    ceilings = {"launch_us": _launch_us(device, launches)}
    products = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    before = torch.get_float32_matmul_precision()
    for name, dtype in products.items():
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        seconds = _product_s(device, size, dtype)
        ceilings[f"{name}_product_tflops"] = 2 * size**3 / seconds / 1e12
    torch.set_float32_matmul_precision(before)
    source = torch.rand(numbers, device=device)
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source), device)
    ceilings["device_copy_gb_per_s"] = 2 * source.nbytes / seconds / 1e9  # read and written
    pageable = torch.rand(numbers // 4)
    on_device = torch.empty(numbers // 4, device=device)
    hosts = {"pageable": pageable, **({"pinned": pageable.pin_memory()} if on_gpu else {})}
    for name, host in hosts.items():
        copies = {"host_to_device": (on_device, host), "device_to_host": (host, on_device)}
        for direction, (to, origin) in copies.items():
            seconds = _seconds(lambda to=to, origin=origin: to.copy_(origin, non_blocking=True), device)  # type: ignore[misc]
            ceilings[f"{name}_{direction}_gb_per_s"] = host.nbytes / seconds / 1e9
    return ceilings


def _product_s(device: str, size: int, dtype: torch.dtype) -> float:
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return _seconds(lambda: left @ right, device)


def _seconds(act: Callable[[], object], device: str) -> float:
    """The median time of an act until the device has done it."""
    for _ in range(2):
        act()
    return median(_timed(act, device) for _ in range(ROUNDS))


def _timed(act: Callable[[], object], device: str) -> float:
    synchronize(device)
    began_s = time.perf_counter()
    act()
    synchronize(device)
    return time.perf_counter() - began_s


def _launch_us(device: str, launches: int) -> float:
    """Host time per small operator; short enough that the launch queue never fills."""
    small = torch.zeros(16, device=device)
    for _ in range(launches):
        small.add_(1)
    rounds = []
    for _ in range(ROUNDS):
        synchronize(device)
        began_s = time.perf_counter()
        for _ in range(min(launches, 500)):
            small.add_(1)
        rounds.append((time.perf_counter() - began_s) / min(launches, 500))
    return 1e6 * median(rounds)


def keep_busy(device: str) -> None:
    """Queue about a second of matrix products on a GPU, and return at once."""
    if device == "cuda":
        factor = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        for _ in range(600):
            torch.mm(factor, factor)


def synchronize(device: str) -> None:
    """Wait until the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()
