"""A second opinion on a trace: slow, plain Python, exact decimal arithmetic, none of gpulab's code or algorithms.

It reads the whole file with the standard library, keeps every time as the integer of nanoseconds its text says, and
finds covered time by counting how many spans are open at each instant.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

# Categories as torch wrote them from 1.8 to 2.13; what is in none of these has no row.
KERNEL = {"Kernel", "kernel"}
MEMCPY = {"Memcpy", "gpu_memcpy"}
MEMSET = {"Memset", "gpu_memset"}
RUNTIME = {"Runtime", "cuda_runtime", "cuda_driver"}
HOST = {"Operator", "cpu_op", "user_annotation", "python_function", "overhead"}
DEVICE = KERNEL | MEMCPY | MEMSET
ALL = DEVICE | RUNTIME | HOST | {"cuda_sync"}


class Oracle:
    """What a trace says; every time in whole ns, as the trace counts."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        document = json.loads(text, parse_float=Decimal)
        events = document["traceEvents"] if isinstance(document, dict) else document
        self.events = [event for event in events if event.get("ph") == "X" and event.get("cat") in ALL]
        for event in self.events:
            event["begin"] = nanoseconds(event["ts"])
            event["length"] = nanoseconds(event.get("dur", 0))
        self.zero = min(event["begin"] for event in self.events)

    def of(self, categories: set[str]) -> list[dict]:
        """The events of these categories."""
        return [event for event in self.events if event["cat"] in categories]

    def spans(self, events: list[dict]) -> list[tuple[int, int]]:
        """When they ran, from the earliest event of the trace."""
        return [(e["begin"] - self.zero, e["begin"] - self.zero + e["length"]) for e in events]

    def everything(self) -> list[tuple[str, int, int]]:
        """Name, begin and length of all events, sorted."""
        return sorted((e["name"], e["begin"] - self.zero, e["length"]) for e in self.events)

    def busy_ns(self) -> dict[int, int]:
        """Per device, the time in which at least one kernel, copy or fill ran."""
        by_device = defaultdict(list)
        for event in self.of(DEVICE):
            by_device[event["args"]["device"]].append(event)
        return {device: covered(self.spans(events)) for device, events in by_device.items()}

    def steps(self) -> dict[str, tuple[int, int]]:
        """The profiler's steps as the host marks them."""
        marks = [e for e in self.of(HOST) if e["name"].startswith("ProfilerStep#")]
        return {e["name"]: span for e, span in zip(marks, self.spans(marks), strict=True)}

    def loader_ns(self) -> dict[str, int]:
        """Per step, the time within a DataLoader's __next__."""
        calls = [e for e in self.of(HOST) if "enumerate(DataLoader)" in e["name"]]
        return {
            name: covered([(max(a, begin), min(b, end)) for a, b in self.spans(calls)])
            for name, (begin, end) in self.steps().items()
        }


def nanoseconds(value: int | str | Decimal) -> int:
    """Microseconds, as the text has them, in whole ns; half a ns rounds to even."""
    return round(Fraction(value) * 1000)


def covered(spans: list[tuple[int, int]]) -> int:
    """Time covered by at least one span, by counting open ones from instant to instant."""
    change: dict[int, int] = defaultdict(int)
    for begin, end in spans:
        if end > begin:
            change[begin] += 1
            change[end] -= 1
    total = open_now = last = 0
    for instant in sorted(change):
        total += (instant - last) if open_now else 0
        open_now += change[instant]
        last = instant
    return total
