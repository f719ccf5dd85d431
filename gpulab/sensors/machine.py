"""The machine as a value: hardware and software, and what cannot be measured on it, why, and the fix."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from gpulab.hardware.architectures import has_counters
from gpulab.run import Gap, Gpu, Machine
from gpulab.sensors.host.cgroup import cores_allowed, memory_limit_bytes
from gpulab.sensors.host.environment import TorchBuild, cpu_name, detect_container, find_torch_build
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.sensors.nvidia.nvml_errors import HIDDEN
from gpulab.wording import number


def describe_machine(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Machine:
    """Describe this machine; never raises because something is missing.

    `root` stands for `/`, so that tests can lay out another system's files.
    """
    environ = os.environ if environ is None else environ
    nvml = Nvml(environ, root)
    nvml.open()
    for gpu in nvml.gpus:  # reads every sensor once, so that missing ones are known
        nvml.read(gpu)
    nvml.close()
    torch = find_torch_build()
    container_name = detect_container(environ, root)
    cores, allowed = os.cpu_count(), cores_allowed(root)
    gaps = (
        *(
            gap for gap in nvml.gaps if container_name is None or gap.why != HIDDEN.why
        ),  # `_sharing_gaps` covers containers
        *_torch_gaps(torch, nvml.gpus),
        *_sharing_gaps(container_name, nvml.gpus),
        *_counter_gaps(nvml.gpus),
        *_core_gaps(cores, allowed),
    )
    return Machine(
        gpus=nvml.gpus,
        driver=nvml.driver,
        torch=torch.version if torch else None,
        python=platform.python_version(),
        platform=_platform(),
        cpu=cpu_name(root),
        cores=cores,
        cores_allowed=allowed,
        memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=memory_limit_bytes(root),
        container=container_name,
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        gaps=gaps,
    )


def _platform() -> str:
    """Return system, release and machine. platform.platform() starts a process, `uname -p`, in the user's program."""
    library = "".join(platform.libc_ver())
    parts = (platform.system(), platform.release(), platform.machine(), library and f"with-{library}")
    return "-".join(filter(None, parts))


def _torch_gaps(torch: TorchBuild | None, gpus: Sequence[Gpu]) -> list[Gap]:
    subject = "operators, kernels and steps"
    if torch is None:
        return [Gap(what=subject, why="PyTorch is not installed in this environment", fix="pip install torch")]
    if gpus and torch.cuda is False:
        target = "AMD GPUs" if torch.rocm else "the CPU only"
        return [
            Gap(
                what="anything on the GPU",
                why=f"PyTorch {torch.version} is built for {target}, but this machine has an NVIDIA GPU",
                fix="install a CUDA build: pytorch.org/get-started has the command for this system",
            )
        ]
    return []


def _sharing_gaps(container_name: str | None, gpus: Sequence[Gpu]) -> list[Gap]:
    """GPU readings cover the whole device; in a container, the driver's process list cannot be split by process."""
    if not gpus or container_name is None:
        return []
    return [
        Gap(
            what="this process's share of GPU load and memory",
            why=f"inside {container_name}, the driver's process ids differ from the ones visible here",
            fix="read the values as those of the whole GPU; torch.cuda.memory_allocated() covers this process alone",
        )
    ]


def _counter_gaps(gpus: Sequence[Gpu]) -> list[Gap]:
    if not gpus:
        return []
    old = [gpu for gpu in gpus if has_counters(gpu) is False]
    why = "gpulab does not read the driver's counters (GPM) yet"
    if old:
        why = f"the driver has these counters from Hopper (9.0) on; {old[0].name} has {old[0].compute_capability}"
    fix = "look at the kernels in the trace, or measure single kernels with Nsight Compute"
    return [Gap(what="tensor core utilisation from hardware counters", why=why, fix=fix)]


def _core_gaps(cores: int | None, allowed: float | None) -> list[Gap]:
    if cores is None or allowed is None or allowed >= cores:
        return []
    return [
        Gap(
            what=f"the load of the {number(allowed)} cores this process may use",
            why=f"a cgroup quota or CPU affinity sets this limit; the CPU load shown covers all {cores} cores",
            fix=f"choose num_workers for {number(allowed)} cores; in a container, docker run --cpus raises the limit",
        )
    ]
