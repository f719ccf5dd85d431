"""What a machine is, and what gpulab can and cannot measure on it."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.run import Gap, Gpu, Machine
from gpulab.tables import GPU_SAMPLES
from gpulab.views import sensor_columns
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.views.wording import counted, quantity, size


def info(machine: Machine | None = None) -> View:
    """The facts of a machine, by default this one, and what is missing here, with reason and remedy."""
    if machine is None:
        from gpulab import sensors  # asks the driver: only when nobody has asked yet

        machine = sensors.machine()
    blocks: list[Block] = [Answer(claim=_summary(machine), leading=True), Facts(tuple(_host(machine)))]
    blocks += [Section(f"GPU {gpu.index}: {gpu.name}", (Facts(tuple(_gpu(gpu))),)) for gpu in machine.gpus]
    blocks.append(Section("What can be measured here", (Facts(tuple(_measured(machine))),)))
    blocks.append(Section("What cannot be measured here", _gaps(machine.gaps)))
    return View(Sheet("gpulab: this machine", tuple(blocks)))


def _summary(machine: Machine) -> str:
    gpus = counted(len(machine.gpus), "GPU") if machine.gpus else "No GPU"
    what = f"{gpus} here" + ("" if machine.gpus else ": the CPU is the device, and the same questions are asked of it")
    missing = counted(len(machine.gaps), "thing") + " cannot be measured" if machine.gaps else "everything is measured"
    return f"{what}; {missing}."


def _host(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "CPU", _told(machine.cpu)
    yield "cores", _cores(machine)
    limit = machine.memory_limit_bytes
    yield "memory", size(machine.memory_bytes) + (f", {size(limit)} allowed by cgroup" if limit is not None else "")
    yield "container", machine.container or "none seen"
    yield "platform", _told(machine.platform)
    yield "Python", _told(machine.python)
    yield "PyTorch", machine.torch or "not installed"
    yield "NVIDIA driver", machine.driver or "none found"
    visible = machine.cuda_visible_devices
    yield "CUDA_VISIBLE_DEVICES", "not set" if visible is None else visible or "empty: every GPU is hidden"


def _measured(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "of the cell", "CPU of each core, memory, and the line that the main thread is at"
    if machine.torch is None:
        return
    yield "of the loop", "step times, waits for data, DataLoader workers, operators"
    if machine.gpus and "+cpu" not in machine.torch:
        yield "of the GPU's work", "kernels, copies, launches and waits, by CUPTI"
    if machine.gpus and machine.driver:
        yield "of the GPU", f"{', '.join(sensor_columns.labels(GPU_SAMPLES))}, as far as not named below"


def _cores(machine: Machine) -> str:
    allowed = machine.cores_allowed
    usable = "how many may be used is not known" if allowed is None else f"{allowed:g} may be used"
    return f"{machine.cores or 'unknown number'}, {usable}"


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    yield "UUID", _told(gpu.uuid)
    yield "memory", size(gpu.memory_bytes)
    yield "multiprocessors", _told(gpu.multiprocessors)
    yield "compute capability", _told(gpu.compute_capability)
    yield "power limit", quantity(gpu.power_limit_w, "W")
    yield "MIG", "not told" if gpu.mig is None else "on" if gpu.mig else "off"


def _told(value: object) -> str:
    return "not told" if value is None or value == "" else str(value)


def _gaps(gaps: tuple[Gap, ...]) -> tuple[Block, ...]:
    if not gaps:
        return (Line("Nothing that gpulab asks for is missing here."),)
    rows = tuple(Row((gap.what, gap.why, gap.fix)) for gap in gaps)
    return (Table(header=("what", "why", "what would mend it"), rows=rows, left=3),)
