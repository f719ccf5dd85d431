"""%gpuinfo: the facts of a machine, and which measurements gpulab can and cannot make on it."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.run import Gap, Gpu, Machine
from gpulab.sensors.nvidia.nvml_errors import NO_DRIVER
from gpulab.tables import GPU_SAMPLES
from gpulab.trace.reading.compiled import uses_compiled_parser
from gpulab.views import sensor_columns
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import count, number, quantity, size


def info(machine: Machine | None = None) -> View:
    """Return the facts of a machine, by default this one, and what cannot be measured, with reason and fix."""
    here = machine is None
    if machine is None:
        from gpulab import sensors  # queries the driver

        machine = sensors.describe_machine()
    facts = (*_host(machine), *(_installation() if here else ()))
    blocks: list[Block] = [Answer(claim=_summary(machine), leading=True), Facts(facts)]
    blocks += [Section(f"GPU {gpu.index}: {gpu.name}", (Facts(tuple(_gpu(gpu))),)) for gpu in machine.gpus]
    blocks.append(Section("Available measurements", (Facts(tuple(_measured(machine))),)))
    gaps = _relevant_gaps(machine)
    if gaps or machine.gpus:
        blocks.append(Section("Unavailable measurements", _gaps(gaps)))
    return View(Sheet("gpulab: this machine", tuple(blocks)))


def _summary(machine: Machine) -> str:
    gpus = count(len(machine.gpus), "GPU") if machine.gpus else "No GPU"
    devices = f"{gpus} found" + ("" if machine.gpus else ", so gpulab analyses the CPU as the device")
    gaps = len(_relevant_gaps(machine))
    available = "all measurements available" if machine.gpus else "all other measurements available"
    missing = f"{count(gaps, 'measurement')} unavailable" if gaps else available
    return f"{devices}; {missing}."


def _relevant_gaps(machine: Machine) -> tuple[Gap, ...]:
    """Return the gaps; without a GPU, not that its sensors are missing, because the first line says so."""
    return tuple(gap for gap in machine.gaps if machine.gpus or gap.why != NO_DRIVER)


def _host(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "CPU", _or_unknown(machine.cpu)
    yield "cores", _cores(machine)
    limit = machine.memory_limit_bytes
    yield "memory", size(machine.memory_bytes) + (f", {size(limit)} allowed by cgroup" if limit is not None else "")
    yield "container", machine.container or "none detected"
    yield "platform", _or_unknown(machine.platform)
    yield "Python", _or_unknown(machine.python)
    yield "PyTorch", machine.torch or "not installed"
    visible = machine.cuda_visible_devices
    if not (machine.gpus or machine.driver or visible):  # the first line says that there is no GPU
        return
    yield "NVIDIA driver", machine.driver or "none found"
    yield "CUDA_VISIBLE_DEVICES", "not set" if visible is None else visible or "empty, so every GPU is hidden"


def _installation() -> Iterator[tuple[str, str]]:
    yield "traces", f"parsed by {'compiled code' if uses_compiled_parser() else 'Python'}"


def _measured(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "cell", "CPU use of each core, memory, and the line that the main thread executes"
    if machine.torch is None:
        return
    yield "training loop", "step times, waits for data, DataLoader workers, operators"
    traceable = not any(gap.what.startswith("kernels") for gap in machine.gaps)
    if machine.gpus and "+cpu" not in machine.torch and traceable:
        yield "GPU work", "kernels, copies, launches and synchronisations, through CUPTI"
    if machine.gpus and machine.driver:
        yield "GPU sensors", f"{', '.join(sensor_columns.sensor_labels(GPU_SAMPLES))}, except those listed below"


def _cores(machine: Machine) -> str:
    allowed = machine.cores_allowed
    usable = "number of usable cores unknown" if allowed is None else f"{number(allowed)} usable by this process"
    return f"{machine.cores or 'unknown number'}, {usable}"


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    yield "UUID", _or_unknown(gpu.uuid)
    yield "memory", size(gpu.memory_bytes)
    yield "multiprocessors", _or_unknown(gpu.multiprocessors)
    yield "compute capability", _or_unknown(gpu.compute_capability)
    yield "power limit", quantity(gpu.power_limit_w, "W")
    yield "MIG", "unknown" if gpu.mig is None else "on" if gpu.mig else "off"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None or value == "" else str(value)


def _gaps(gaps: tuple[Gap, ...]) -> tuple[Block, ...]:
    if not gaps:
        return (Line("None: every measurement of gpulab works here."),)
    rows = tuple(Row((gap.what, gap.why, gap.fix)) for gap in gaps)
    return (TableBlock(header=("measurement", "reason", "fix"), rows=rows, text_columns=3),)
