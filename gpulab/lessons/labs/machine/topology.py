"""Parse the output of NVIDIA's tools about the link between host and GPU, and find its faults.

The three machines here are invented for the exercise: none of them exists, and nothing about them was measured.
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


TOPOLOGY_TEXTS = {
    "a": _text(0, 16, "0-15"),
    "b": _text(0, 4, "0-15"),
    "c": _text(0, 16, "32-47"),
}


def differing_lines(name: str, other: str) -> str:
    """Return the lines in which one of MACHINES differs from another, each under its command and its headings.

    Both texts have the same lines and differ only in their values.
    """
    lines: list[str] = []
    headings: dict[int, str] = {}  # indentation -> the command or heading above the line
    for line, other_line in zip(TOPOLOGY_TEXTS[name].splitlines(), TOPOLOGY_TEXTS[other].splitlines(), strict=True):
        indent = len(line) - len(line.lstrip()) if not line.startswith("$") else -1
        headings = {depth: heading for depth, heading in headings.items() if depth < indent}
        if line != other_line:
            lines += [*headings.values(), line]
            headings.clear()
        headings[indent] = line
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class GpuLink:
    """The link between a training process and its GPU: PCIe generation and width, and CPU affinity."""

    gpu: int
    generation: int
    width: int  # lanes, under load
    max_generation: int
    max_width: int
    gpu_cores: frozenset[int]  # on the GPU's NUMA node
    process_cores: frozenset[int]  # CPU affinity of the process

    @property
    def gb_per_s(self) -> float | None:
        """Bandwidth of a large pinned copy over this link; None for an unknown PCIe generation."""
        rate = pinned_copy_bytes_per_s(self.generation, self.width)
        return None if rate is None else rate / 1e9

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of the link: "lanes", "generation", "node"; empty if there are none."""
        faults = (
            ("lanes", self.width < self.max_width),
            ("generation", self.generation < self.max_generation),
            ("node", not self.process_cores <= self.gpu_cores),
        )
        return tuple(name for name, faulty in faults if faulty)


def parse_topology(text: str) -> GpuLink:
    """Parse the output of these tools. Raises ValueError if a part of it is missing."""
    gpu = int(_match(r"nvidia-smi -q -i (\d+)", text, "which GPU is used: the line of nvidia-smi -q -i N"))
    generation = re.search(r"PCIe Generation\s+Max\s*:\s*(\d+)\s+Current\s*:\s*(\d+)", text)
    width = re.search(r"Link Width\s+Max\s*:\s*(\d+)x\s+Current\s*:\s*(\d+)x", text)
    if generation is None or width is None:
        raise ValueError("the text has no PCIe generation or link width: paste the PCIe part of nvidia-smi -q")
    return GpuLink(
        gpu=gpu,
        generation=int(generation[2]),
        width=int(width[2]),
        max_generation=int(generation[1]),
        max_width=int(width[1]),
        gpu_cores=parse_core_list(
            _match(
                rf"^GPU{gpu}\s(?:.*\s)?([\d,-]*\d)\s+\d+\s*$",
                text,
                f"the CPU affinity of GPU {gpu}: its row of nvidia-smi topo -m",
            )
        ),
        process_cores=parse_core_list(
            _match(r"affinity list: ([\d,-]+)", text, "the CPU affinity of the process: the output of taskset -cp PID")
        ),
    )


def parse_core_list(text: str) -> frozenset[int]:
    """Parse a list of cores: "0-3,8" is 0, 1, 2, 3 and 8."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _match(pattern: str, text: str, value: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError(f"the text does not show {value}")
    return match[1]
