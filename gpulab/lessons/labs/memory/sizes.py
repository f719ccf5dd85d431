"""Memory growth with image size and sequence length, and the memory of a training step by role and phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpulab.lessons.labs import tables
from gpulab.lessons.labs.memory.live_bytes import count_live_bytes
from gpulab.lessons.labs.memory.memory_counters import saved_bytes
from gpulab.views.sheet.view import View
from gpulab.virtual.memory_fit.fitting import MaxBatch
from gpulab.virtual.memory_fit.step_estimate import StepEstimate
from gpulab.wording import number

if TYPE_CHECKING:
    from torch import Tensor

MIB = 2**20
PARTS = ("parameters", "gradients", "optimizer", "activations", "temporaries")
HEADS, HEAD = 2, 64  # of the attention that is counted


def conv_saved_bytes(side: int) -> int:
    """Count the bytes that two convolutions on two square images save for backward, on the meta device."""
    import torch
    from torch import nn

    with torch.device("meta"):
        first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        images = torch.empty(2, 3, side, side)
        return saved_bytes(lambda: model(images), model)


def attention_peak_bytes(attend: Callable[[Tensor, Tensor, Tensor], Tensor], lengths: Sequence[int]) -> dict[int, int]:
    """Count the peak memory of attention and its backward pass on the CPU, without its inputs, by sequence length."""
    import torch

    peaks = {}
    for length in lengths:
        query, key, value = (torch.randn(1, HEADS, length, HEAD, requires_grad=True) for _ in range(3))
        with count_live_bytes() as live:
            attend(query, key, value).sum().backward()
        peaks[length] = live.peak_bytes
    return peaks


def peak_mib_by_role(measured: StepEstimate) -> Mapping[str, float]:
    """Return the peak of each memory role over all phases of a step on a virtual GPU, in MiB."""
    peaks: dict[str, float] = {}
    for use in measured.phases:
        for role, allocated_bytes in use.by_role.items():
            peaks[role.value] = max(peaks.get(role.value, 0), allocated_bytes / MIB)
    return peaks


def peak_comparison(by_hand: Mapping[str, int], peak_by_hand: float, measured: StepEstimate) -> View:
    """Compare hand-calculated parts and peak of a step with the estimate, and show the memory that the step needs."""
    counted = {role.value: allocated_bytes for role, allocated_bytes in measured.peak.by_role.items()}
    lines = [(part, _mib(by_hand.get(part, 0)), _mib(counted.get(part, 0))) for part in PARTS]
    lines.append(("in use at the peak", _mib(peak_by_hand), _mib(measured.peak.bytes)))
    lines.append(("reserved by PyTorch, not in use", "", _mib(measured.reserved_bytes - measured.peak.bytes)))
    lines.append(("CUDA context, cuBLAS", "", _mib(measured.non_torch_bytes)))
    lines.append(("needed", "", _mib(measured.needed_bytes)))
    return tables.table_view(("MiB", "by hand", "counted"), lines, below=f"Virtual {measured.spec.name}, estimated.")


def phase_table(measured: StepEstimate) -> View:
    """Tabulate memory by role at the peak of each phase of a step."""
    bytes_by_phase = {
        use.phase.value: {role.value: count for role, count in use.by_role.items()} for use in measured.phases
    }
    lines = [(part, *(_mib(roles.get(part, 0)) for roles in bytes_by_phase.values())) for part in PARTS]
    lines.append(("total", *(_mib(sum(roles.values())) for roles in bytes_by_phase.values())))
    return tables.table_view(("MiB at the peak of", *bytes_by_phase), lines)


def batch_search_table(searches: Mapping[str, MaxBatch]) -> View:
    """Compare searches for the largest batch: memory by role of the first batch tried, and the result."""
    lines = []
    for name, search in searches.items():
        peaks = peak_mib_by_role(search.estimates[0])
        parts = [number(peaks.get(part, 0), 2) for part in PARTS[:4]]
        samples, peak = search.estimates[0].batch or 0, search.estimates[0].peak.bytes
        lines.append((name, f"{samples:,}", *parts, _mib(peak), f"{search.batch or 0:,}"))
    return tables.table_view(("MiB", "samples", *PARTS[:4], "peak", "largest batch"), lines)


def _mib(count: float) -> str:
    return number(count / MIB, 2)
