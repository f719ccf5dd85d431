"""How memory grows with the side of an image and the length of a sequence, and what a step on a card is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpulab.lessons.labs import tables
from gpulab.lessons.labs.memory.counters import saved_bytes
from gpulab.views.sheet.view import View
from gpulab.virtual.memory_fit.fitting import MaxBatch
from gpulab.virtual.memory_fit.measuring import Measured
from gpulab.wording import number

if TYPE_CHECKING:
    from torch import Tensor

MIB = 2**20
PARTS = ("parameters", "gradients", "optimizer", "activations", "temporaries")
HEADS, HEAD = 16, 64  # of the attention whose peaks are read


def image_bytes(side: int) -> int:
    """Bytes kept for backward by two convolutions of two square images; counted, on sizes alone."""
    import torch
    from torch import nn

    with torch.device("meta"):
        first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        images = torch.empty(2, 3, side, side)
        return saved_bytes(lambda: model(images), model)


def attention_peaks(attend: Callable[[Tensor, Tensor, Tensor], Tensor], lengths: Sequence[int]) -> dict[int, int]:
    """By length, the peak of attention and its backward above what the inputs take; CUDA code."""
    import torch

    found = {}
    for length in lengths:
        query, key, value = (torch.randn(1, HEADS, length, HEAD, device="cuda", requires_grad=True) for _ in range(3))
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        attend(query, key, value).sum().backward()
        found[length] = torch.cuda.max_memory_allocated() - held
    return found


def most_mib(measured: Measured) -> Mapping[str, float]:
    """Of a step on a virtual card: what each part takes at most, in whichever phase that is."""
    most: dict[str, float] = {}
    for use in measured.phases:
        for role, held in use.by_role.items():
            most[role.value] = max(most.get(role.value, 0), held / MIB)
    return most


def beside(by_hand: Mapping[str, int], measured: Measured) -> View:
    """What was worked out by hand for the peak of a step, beside what is counted; and what it needs of the card."""
    counted = {role.value: held for role, held in measured.peak.by_role.items()}
    lines = [(part, _mib(by_hand.get(part, 0)), _mib(counted.get(part, 0))) for part in PARTS]
    lines.append(("in use at the peak", _mib(sum(by_hand.values())), _mib(measured.peak.bytes)))
    lines.append(("held by PyTorch, not in use", "", _mib(measured.reserved_bytes - measured.peak.bytes)))
    lines.append(("CUDA context, cuBLAS", "", _mib(measured.outside_bytes)))
    lines.append(("needed", "", _mib(measured.needed_bytes)))
    return tables.rows(("MiB", "by hand", "counted"), lines, below=f"Virtual {measured.spec.name}, estimated.")


def by_phase(measured: Measured) -> View:
    """What each part takes in each phase of a step, when most is in use in it."""
    held = {use.phase.value: {role.value: count for role, count in use.by_role.items()} for use in measured.phases}
    lines = [(part, *(_mib(roles.get(part, 0)) for roles in held.values())) for part in PARTS]
    lines.append(("in all", *(_mib(sum(roles.values())) for roles in held.values())))
    return tables.rows(("MiB, when most is in use in", *held), lines)


def in_turn(found: Mapping[str, MaxBatch]) -> View:
    """Searches for the largest batch beside each other: the first batch each tried, part by part, and what it found."""
    lines = []
    for name, each in found.items():
        most = most_mib(each.tried[0])
        parts = [number(most.get(part, 0), 2) for part in PARTS[:4]]
        lines.append((name, *parts, _mib(each.tried[0].peak.bytes), f"{each.batch or 0:,}"))
    return tables.rows(("MiB at most", *PARTS[:4], "peak", "largest batch"), lines)


def _mib(count: float) -> str:
    return number(count / MIB, 2)
