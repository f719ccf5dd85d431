"""What a driver's tools tell of the way between host and GPU, read from their text, and what is wrong with it.

The three machines here are made up to be read: none of them exists, and nothing about them was measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab.hardware.pcie import pinned_copy_bytes_per_s

# As `nvidia-smi topo -m`, the PCIe part of `nvidia-smi -q` under load, and `taskset -cp PID` write it.
_TEXT = """\
$ nvidia-smi topo -m
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      SYS     0-31            0
GPU1    SYS      X      32-63           1
$ nvidia-smi -q -i {gpu}
    PCIe Generation
        Max                   : 5
        Current               : 5
    Link Width
        Max                   : 16x
        Current               : {width}x
$ taskset -cp $(pgrep -f train.py)
pid 4711's current affinity list: {cores}"""


def _text(gpu: int, width: int, cores: str) -> str:
    return _TEXT.format(gpu=gpu, width=width, cores=cores)


MACHINES = {
    "a": _text(0, 16, "0-15"),
    "b": _text(0, 4, "0-15"),
    "c": _text(0, 16, "32-47"),
}


def unlike(name: str, other: str) -> str:
    """The lines in which one of MACHINES differs from another, each below the command and the heading it stands under.

    Both texts have the same lines, apart from what is read in them.
    """
    told: list[str] = []
    above: dict[int, str] = {}  # by how far it is indented: what the line belongs to
    for mine, theirs in zip(MACHINES[name].splitlines(), MACHINES[other].splitlines(), strict=True):
        indent = len(mine) - len(mine.lstrip()) if not mine.startswith("$") else -1
        above = {depth: line for depth, line in above.items() if depth < indent}
        if mine != theirs:
            told += [*above.values(), mine]
            above.clear()
        above[indent] = mine
    return "\n".join(told)


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way between a training process and the GPU it uses."""

    gpu: int
    generation: int
    width: int  # lanes, under load
    most_generation: int
    most_width: int
    gpu_cores: frozenset[int]  # those on the GPU's side of the machine
    own_cores: frozenset[int]  # those the process may run on

    @property
    def gb_per_s(self) -> float | None:
        """What such a link gives a large pinned copy; None for a generation that is not known."""
        rate = pinned_copy_bytes_per_s(self.generation, self.width)
        return None if rate is None else rate / 1e9

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong: "lanes", "generation", "node"; nothing where all is well."""
        found = (
            ("lanes", self.width < self.most_width),
            ("generation", self.generation < self.most_generation),
            ("node", not self.own_cores <= self.gpu_cores),
        )
        return tuple(name for name, wrong in found if wrong)


def read(text: str) -> Way:
    """The way that these tools' output tells of. Raises ValueError where a part of it is missing."""
    gpu = int(_found(r"nvidia-smi -q -i (\d+)", text, "which GPU is used"))
    generation = re.search(r"PCIe Generation\s+Max\s*:\s*(\d+)\s+Current\s*:\s*(\d+)", text)
    width = re.search(r"Link Width\s+Max\s*:\s*(\d+)x\s+Current\s*:\s*(\d+)x", text)
    if generation is None or width is None:
        raise ValueError("the text does not tell how the link is set")
    return Way(
        gpu=gpu,
        generation=int(generation[2]),
        width=int(width[2]),
        most_generation=int(generation[1]),
        most_width=int(width[1]),
        gpu_cores=cores(_found(rf"^GPU{gpu}\s(?:.*\s)?([\d,-]*\d)\s+\d+\s*$", text, f"the cores beside GPU {gpu}")),
        own_cores=cores(_found(r"affinity list: ([\d,-]+)", text, "the cores of the process")),
    )


def cores(text: str) -> frozenset[int]:
    """Numbers of cores: "0-3,8" is 0, 1, 2, 3 and 8."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _found(pattern: str, text: str, what: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError(f"the text does not tell {what}")
    return match[1]
