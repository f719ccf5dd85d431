"""The memory functions of torch.cuda, on the simulated allocator."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.torch_api.patches import patch_attributes
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory


def install(stack: ExitStack, memory: SimulatedMemory) -> None:
    """Patch the memory functions until the stack is closed."""
    import torch

    functions = _memory_functions(memory)
    patch_attributes(stack, torch.cuda, **{name: each for name, each in functions.items() if hasattr(torch.cuda, name)})
    patch_attributes(
        stack, torch.cuda.memory, **{name: each for name, each in functions.items() if hasattr(torch.cuda.memory, name)}
    )
    patch_attributes(stack, torch.cuda.memory, _lazy_init=lambda: None, is_initialized=lambda: True)
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    patch_attributes(
        stack, accelerator, **{name: each for name, each in functions.items() if hasattr(accelerator, name)}
    )


def _memory_functions(memory: SimulatedMemory) -> dict[str, Any]:
    def stats(device: Any = None) -> dict[str, int]:
        return OrderedDict(sorted(memory.stats().items()))

    def stat(name: str) -> Any:
        return lambda device=None: memory.stats()[name]

    def allocated(device: Any = None) -> int:
        return memory.stats()["allocated_bytes.all.current"]

    def max_allocated(device: Any = None) -> int:
        return memory.stats()["allocated_bytes.all.peak"]

    def reset(device: Any = None) -> None:
        memory.reset_peak()

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        return _summary(memory)

    return {
        "memory_allocated": allocated,
        "max_memory_allocated": max_allocated,
        "memory_reserved": lambda device=None: memory.reserved_bytes,
        "max_memory_reserved": lambda device=None: memory.max_reserved_bytes,
        "memory_cached": lambda device=None: memory.reserved_bytes,
        "max_memory_cached": lambda device=None: memory.max_reserved_bytes,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "memory_stats": stats,
        "memory_summary": summary,
        "mem_get_info": lambda device=None: (memory.free_bytes, memory.capacity_bytes),
        "get_memory_info": lambda device=None: (memory.free_bytes, memory.capacity_bytes),
        "empty_cache": lambda: memory.empty_cache(),
        "memory_snapshot": lambda *args, **kwargs: [],
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        "get_allocator_backend": lambda: "native",
        "list_gpu_processes": lambda device=None: "GPU:0\nno processes are running",
    }


def _summary(memory: SimulatedMemory) -> str:
    stats = memory.stats()
    rows = [("Allocated memory", "allocated_bytes"), ("GPU reserved memory", "reserved_bytes")]
    lines = ["PyTorch CUDA memory summary, device ID 0 (virtual, simulated)", f"{'':22}{'now':>14}{'peak':>14}"]
    for title, name in rows:
        now, peak = (stats[f"{name}.all.{when}"] / 2**20 for when in ("current", "peak"))
        lines.append(f"{title:22}{now:>10,.0f} MiB{peak:>10,.0f} MiB")
    return "\n".join(lines)
