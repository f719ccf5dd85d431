"""An independent analysis of a trace: slow, plain Python, exact decimal arithmetic, no code or algorithms of gpulab.

It reads the whole file with the standard library, keeps every time as the integer of nanoseconds its text says, and
finds covered time by counting how many spans are open at each instant. The launch queue of a device is simulated
call by call.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

SHARED = [
    "a100_ddp_8ranks_rank",
    "b200_eager",
    "cpu_only_gloo",
    "cuda_event_sync",
    "cuda_event_sync_multi_stream",
    "h100_bert_small_inference",
    "h100_timesformer_inference",
    "mi210_gpu_only",
    "mi250_minitoy",
    "mi300_compiled_triton",
    "mi300_resnet_checkpoint",
    "triton_example",
    "v100_ns_resolution",
    "v100_resnet50_workers0",
    "v100_resnet50_workers4",
]

# Categories as torch wrote them from 1.8 to 2.13; what is in none of these has no row.
KERNEL = {"Kernel", "kernel"}
MEMCPY = {"Memcpy", "gpu_memcpy"}
MEMSET = {"Memset", "gpu_memset"}
RUNTIME = {"Runtime", "cuda_runtime", "cuda_driver"}
HOST = {"Operator", "cpu_op", "user_annotation", "python_function", "overhead"}
DEVICE = KERNEL | MEMCPY | MEMSET
ALL = DEVICE | RUNTIME | HOST | {"cuda_sync"}
COMMUNICATES = ("nccl", "multimem_all_reduce")  # in the names of kernels

Span = tuple[int, int]


class Oracle:
    """What a trace says; every time in whole ns, as the trace counts."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        document = json.loads(text, parse_float=Decimal)
        events = document["traceEvents"] if isinstance(document, dict) else document
        self.events = [event for event in events if event.get("ph") == "X" and event.get("cat") in ALL]
        self.instants = [event for event in events if event.get("ph") == "i" and event["name"] == "[memory]"]
        for event in self.events:
            event["begin"] = nanoseconds(event["ts"])
            event["length"] = nanoseconds(event.get("dur", 0))
        self.zero = min(event["begin"] for event in self.events)
        self._sorted: dict[int | None, list[tuple[str, int, int]]] = {}

    def of(self, categories: set[str]) -> list[dict]:
        """The events of these categories."""
        return [event for event in self.events if event["cat"] in categories]

    def spans(self, events: list[dict]) -> list[Span]:
        """When they ran, from the earliest event of the trace."""
        return [(e["begin"] - self.zero, e["begin"] - self.zero + e["length"]) for e in events]

    def everything(self) -> list[tuple[str, int, int]]:
        """Name, begin and length of all events, sorted."""
        return sorted((e["name"], e["begin"] - self.zero, e["length"]) for e in self.events)

    def work(self, device: int | None = None) -> list[dict]:
        """What ran on one device, or on all."""
        return [e for e in self.of(DEVICE) if device is None or e["args"]["device"] == device]

    def devices(self) -> list[int]:
        """Those that anything ran on."""
        return sorted({event["args"]["device"] for event in self.of(DEVICE)})

    def busy_ns(self) -> dict[int, int]:
        """Per device, the time in which at least one kernel, copy or fill ran."""
        by_device = defaultdict(list)
        for event in self.of(DEVICE):
            by_device[event["args"]["device"]].append(event)
        return {device: covered(self.spans(events)) for device, events in by_device.items()}

    def steps(self) -> dict[str, Span]:
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

    def window(self, device: int | None = None) -> Span:
        """From the beginning of the first work to the end of the last."""
        begins, ends = zip(*self.spans(self.work(device)), strict=True)
        return min(begins), max(ends)

    def by_sort(self, window: Span, device: int | None = None) -> dict[str, int]:
        """Time of a window in which work of each sort ran, and in which a sort was exposed; "busy" is all of it."""
        first, last = window
        return time_by_kind((kind, max(a, first), min(b, last)) for kind, a, b in self.sorted_work(device))

    def sorted_work(self, device: int | None) -> list[tuple[str, int, int]]:
        """The sort, begin and end of all that ran on one device, or on all."""
        if device not in self._sorted:
            work = self.work(device)
            self._sorted[device] = [
                (kind_of_work(event), *span) for event, span in zip(work, self.spans(work), strict=True)
            ]
        return self._sorted[device]

    def gaps(self, device: int | None = None) -> list[Span]:
        """Idle time between the first work and the last, in order of time."""
        change: Counter[int] = Counter()
        for begin, end in self.spans(self.work(device)):
            change[begin] += 1
            change[end] -= 1  # an event of zero length changes nothing
        idle, running = [], 0
        idle_from, last = self.window(device)
        for instant in sorted(change):
            if not change[instant]:
                continue  # as many started as ended
            if not running and instant > idle_from:
                idle.append((idle_from, instant))
            running += change[instant]
            idle_from = instant
        return idle + ([(idle_from, last)] if last > idle_from else [])

    def by_name(self, categories: set[str], device: int | None = None) -> dict[str, list[dict]]:
        """Work of these categories by name, in order of its start."""
        events_by_name = defaultdict(list)
        for event in sorted(self.work(device), key=lambda event: event["begin"]):
            if event["cat"] in categories:
                events_by_name[event["name"]].append(event)
        return dict(events_by_name)

    def launches(self) -> list[tuple[dict, dict]]:
        """Device work with its launch call, if the trace has one."""
        calls = {event["args"]["correlation"]: event for event in self.of(RUNTIME) if "correlation" in event["args"]}
        pairs = ((event, calls.get(event["args"]["correlation"])) for event in self.of(DEVICE))
        return [(event, call) for event, call in pairs if call is not None]

    def queued(self) -> Iterator[tuple[dict, int]]:
        """Launched work with the queue depth of its device at the time of its launch."""
        waiting: Counter[int] = Counter()
        changes = defaultdict(lambda: ([], []))
        for event, call in self.launches():
            changes[call["begin"]][0].append(event)
            changes[max(call["begin"], event["begin"])][1].append(event)
        for _, (launched, started) in sorted(changes.items()):
            waiting.update(event["args"]["device"] for event in launched)
            yield from ((event, waiting[event["args"]["device"]]) for event in launched)
            waiting.subtract(event["args"]["device"] for event in started)


def kind_of_work(event: dict) -> str:
    """Return the kind of work."""
    if event["cat"] in KERNEL:
        return "communication" if any(word in event["name"] for word in COMMUNICATES) else "kernels"
    return "copies" if event["cat"] in MEMCPY else "fills"


def time_by_kind(events: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Return the time in which work of each kind ran, by counting open spans at each instant."""
    change: dict[int, Counter] = defaultdict(Counter)
    for kind, begin, end in events:
        if end > begin:
            change[begin][kind] += 1
            change[end][kind] -= 1
    total, running, last = Counter(), Counter(), 0
    for instant in sorted(change):
        open_kinds = {kind for kind, open_count in running.items() if open_count}
        for kind in open_kinds:
            total[kind] += instant - last
        if open_kinds:
            total["busy"] += instant - last
        if open_kinds and "kernels" not in open_kinds:
            total["exposed_communication" if "communication" in open_kinds else "exposed_copies"] += instant - last
        running.update(change[instant])
        last = instant
    return dict(total)


def median(values: list[int]) -> int:
    """Return the median; for an even count the mean of the middle two, rounded down."""
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


def nanoseconds(value: int | str | Decimal) -> int:
    """Microseconds, as the text has them, in whole ns; half a ns rounds to even."""
    return round(Fraction(value) * 1000)


def covered(spans: list[Span]) -> int:
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
