"""Phrases that every answer of a virtual GPU shares: that it is estimated, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpulab.views.sheet.sheet import Facts, Line, Section
from gpulab.virtual.memory_fit.cpu_share import NOTABLE_FRAC
from gpulab.virtual.memory_fit.measuring import TIGHT, Measured
from gpulab.virtual.memory_fit.memory import allowances
from gpulab.wording import count, duration, size

_BUILD_ONCE = """def build():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        ...  # forward, backward, optimizer.step()

    return step"""


def origin_words(told: Sequence[Measured]) -> str:
    """Where the numbers come from."""
    names = list(dict.fromkeys(each.spec.name for each in told))
    return f"Virtual {names[0]}, estimated." if len(names) == 1 else "Virtual GPUs, estimated."


def watermark(told: Sequence[Measured]) -> Line:
    """The same as a line of its own."""
    return Line(f"{origin_words(told)} No such GPU ran this.", soft=True)


def method(told: Sequence[Measured], *, energy: bool = False) -> Section:
    """How the figures came about, folded away."""
    rows = [
        ("played", "a step once the optimizer has its state, on tensors without numbers"),
        ("in use", "to the byte, each tensor rounded up to 512 bytes"),
        ("held by PyTorch", "its caching allocator, simulated with its default settings"),
        *_allowed(told),
        ("not counted", "cuDNN's workspaces, other processes, what custom kernels take"),
        (TIGHT, "less than a tenth of the GPU's memory stays free"),
    ]
    if energy:
        rows.append(("energy", "idle power, and half to all of what is left to the limit while the GPU works"))
    taken = dict.fromkeys((each.what, each.taken) for one in told for each in one.assumptions)
    rows += [("taken", f"{what}: {value}") for what, value in taken]
    return Section("How this was estimated", (Facts(tuple(rows)),), folded=True)


def _allowed(told: Sequence[Measured]) -> list[tuple[str, str]]:
    """Each allowance once, with its figure for each GPU where they differ."""
    specs = {each.spec.name: each.spec for each in told}
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, spec in specs.items():
        for each in allowances(spec):
            found.setdefault((each.what, each.source), {}).setdefault(size(each.bytes), []).append(name)
    return [(what, f"{', '.join(_figures(sizes))}: {source}") for (what, source), sizes in found.items()]


def _figures(sizes: Mapping[str, list[str]]) -> Iterator[str]:
    for figure, names in sizes.items():
        yield figure if len(sizes) == 1 else f"{figure} ({', '.join(names)})"


def what_runs(told: Measured) -> str:
    """A step, and of how many samples."""
    return "a step" if told.batch is None else f"a step of {count(told.batch, 'sample')}"


def unit_of_work(told: Measured) -> str:
    """What is counted in a second."""
    return "step" if told.batch is None else "sample"


def copied(told: Measured) -> tuple[str, ...]:
    """That its time is not the GPU's alone, where it copies data from CPU memory or computes them here."""
    given = told.from_host
    if not given.notable(told.step_ns):
        return ()
    words = []
    if given.bytes:
        memory = "pageable CPU memory" if given.pageable else "pinned CPU memory"
        words.append(f"copies of {size(given.bytes)} from {memory} ({duration(given.copy_ns)})")
    if given.cpu_ns > NOTABLE_FRAC * told.step_ns:
        words.append(f"what the CPU of this machine computes ({duration(given.cpu_ns)})")
    alone = 'To time the GPU alone, make the batch there: torch.randn(..., device="cuda").'
    return (f"{what_runs(told).capitalize()} takes {duration(told.step_ns)}, with {' and '.join(words)}. {alone}",)


def rebuilt(told: Measured) -> tuple[tuple[str, ...], str]:
    """What is to be known of a step that makes its model anew, and the code that mends it; nothing for any other."""
    if not told.rebuilt:
        return (), ""
    notes = ["The step makes its model anew, which is in its time. Let it build once and return what trains."]
    if told.state_bytes:
        notes.append(
            f"The state of the optimizer, which is then not there at the highest, was added: {size(told.state_bytes)}."
        )
    return tuple(notes), _BUILD_ONCE
