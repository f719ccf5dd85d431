"""Text and facts shared by the views of virtual GPUs: the notice of an estimate, and the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpulab.views.sheet.sheet import Facts, Line, Section
from gpulab.virtual.memory_fit.host_work import NOTABLE_FRAC
from gpulab.virtual.memory_fit.memory_peaks import non_torch_memory
from gpulab.virtual.memory_fit.step_estimate import TIGHT, StepEstimate
from gpulab.wording import count, duration, size

_BUILD_ONCE = """def build():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        ...  # forward, backward, optimizer.step()

    return step"""


def estimate_source(estimates: Sequence[StepEstimate]) -> str:
    """Return the source of the numbers."""
    names = list(dict.fromkeys(each.spec.name for each in estimates))
    return f"Virtual {names[0]}, estimated." if len(names) == 1 else "Virtual GPUs, estimated."


def estimate_line(estimates: Sequence[StepEstimate]) -> Line:
    """Return the notice that nothing was measured on this GPU."""
    return Line(f"{estimate_source(estimates)} Nothing was measured on such a GPU.", soft=True)


def method_section(estimates: Sequence[StepEstimate], *, energy: bool = False) -> Section:
    """Return how the numbers were estimated, as a folded section."""
    rows = [
        ("simulated", "one step, after the optimizer has created its state, on tensors without data"),
        ("allocated", "exact, each tensor rounded up to 512 bytes"),
        ("reserved", "by a simulation of PyTorch's caching allocator with default settings"),
        *_allowances(estimates),
        ("not counted", "cuDNN workspaces, other processes, memory allocated by custom kernels"),
        (TIGHT, "less than 10 % of the GPU's memory stays free"),
    ]
    if energy:
        rows.append(("energy", "idle power, plus 50 % to 100 % of the remaining power limit while the GPU is busy"))
    assumed = dict.fromkeys((each.subject, each.value) for estimate in estimates for each in estimate.assumptions)
    rows += [("assumed", f"{expression}: {value}") for expression, value in assumed]
    return Section("How this was estimated", (Facts(tuple(rows)),), folded=True)


def _allowances(estimates: Sequence[StepEstimate]) -> list[tuple[str, str]]:
    """Return each allowance once, with its size for each GPU if the sizes differ."""
    specs = {each.spec.name: each.spec for each in estimates}
    gpus_by_size: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, spec in specs.items():
        for allowance in non_torch_memory(spec):
            gpus = gpus_by_size.setdefault((allowance.name, allowance.source), {})
            gpus.setdefault(size(allowance.bytes), []).append(name)
    return [(name, f"{', '.join(_sizes(sizes))}: {source}") for (name, source), sizes in gpus_by_size.items()]


def _sizes(sizes: Mapping[str, list[str]]) -> Iterator[str]:
    for text, names in sizes.items():
        yield text if len(sizes) == 1 else f"{text} ({', '.join(names)})"


def step_description(estimate: StepEstimate) -> str:
    """Return "a step", with the number of samples if known."""
    return "a step" if estimate.batch is None else f"a step of {count(estimate.batch, 'sample')}"


def unit_of_work(estimate: StepEstimate) -> str:
    """Return the unit of the rate: "sample" or "step"."""
    return "step" if estimate.batch is None else "sample"


def host_work_notes(estimate: StepEstimate) -> tuple[str, ...]:
    """Say which part of the step time is host work, if it copies from CPU memory or computes data on the CPU."""
    from_host = estimate.host_work
    if not from_host.is_notable(estimate.step_ns):
        return ()
    host_work = []
    if from_host.bytes:
        memory = "pageable CPU memory" if from_host.pageable else "pinned CPU memory"
        host_work.append(f"copies of {size(from_host.bytes)} from {memory} ({duration(from_host.copy_ns)})")
    if from_host.cpu_ns > NOTABLE_FRAC * estimate.step_ns:
        host_work.append(f"computation on the CPU of this machine ({duration(from_host.cpu_ns)})")
    advice = 'To time the GPU alone, create the batch on it: torch.randn(..., device="cuda").'
    step_time = f"{step_description(estimate).capitalize()} takes {duration(estimate.step_ns)}"
    return (f"{step_time}, including {' and '.join(host_work)}. {advice}",)


def rebuild_notes(estimate: StepEstimate) -> tuple[tuple[str, ...], str]:
    """Return notes and fix for a step that builds the model every time; nothing for other steps."""
    if not estimate.rebuilds_model:
        return (), ""
    notes = ["The step builds its model every time, and the step time includes this. Build once and return the step."]
    if estimate.added_state_bytes:
        notes.append(
            f"The optimizer state, which does not exist yet at that peak, was added: "
            f"{size(estimate.added_state_bytes)}."
        )
    return tuple(notes), _BUILD_ONCE
