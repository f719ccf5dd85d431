"""What a batch script or a pod requests, and a linter that compares it with what the program uses.

The parser knows the options of sbatch that concern resources. It is no replacement for `sbatch --test-only` or
`kubectl apply --dry-run=server`, which ask the cluster itself; those accept every request that could be granted,
however wasteful.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gpulab.wording import count, duration, size

MIB, GIB = 2**20, 2**30
CONTAINER_SHM_BYTES = 64 * MIB  # of /dev/shm in a container, unless it is mounted
GPU_RESOURCE = "nvidia.com/gpu"
_MINUTE_NS = 60 * 10**9
_MOST_TIMES = 3  # a time limit of more than three times the measured time is too long
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

SBATCH = "sbatch(1)"
SLURM_ADVICE = "Slurm, scheduling configuration"
TORCH = "PyTorch, DataLoader"
K8S_GPU = "Kubernetes, Schedule GPUs"
K8S_VOLUME = "Kubernetes, emptyDir"
K8S_MEMORY = "Kubernetes, Resource Management"
NOT_READABLE = "not readable"  # the rule of a problem that hides all others
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|[kMGT]|[KMGT]i)?")


@dataclass(frozen=True, kw_only=True)
class ProgramUse:
    """What a program was measured to use."""

    gpus: int
    workers: int  # of its DataLoader; the main process comes in addition
    batch_bytes: int
    host_gib: float
    minutes: int
    prefetch_factor: int = 2

    @property
    def cores(self) -> int:
        """Cores that its processes can use at once."""
        return self.workers + 1

    @property
    def shared_bytes(self) -> int:
        """Bytes of /dev/shm that its workers fill with batches that wait for the main process."""
        return self.workers * self.prefetch_factor * self.batch_bytes


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """What is requested; None: not stated. `mistakes`: problems with the text itself, each with its source.

    `tasks`: how many times Slurm starts the program.
    """

    gpus: int
    cores: float
    memory_bytes: float | None
    shm_bytes: float | None  # None: that of the host
    minutes: float | None
    needs_limit: bool
    tasks: int = 1
    mistakes: tuple[RequestProblem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RequestProblem:
    """One problem of a request: a short name of the rule, what is wrong, and who says so."""

    rule: str
    text: str
    source: str


def find_problems(request: ResourceRequest, use: ProgramUse) -> tuple[RequestProblem, ...]:
    """Compare a request with what the program uses. If a part of it is not readable, return only the mistakes."""
    if any(problem.rule == NOT_READABLE for problem in request.mistakes):
        return request.mistakes
    return (*request.mistakes, *_gpu_and_core_problems(request, use), *_memory_and_time_problems(request, use))


def _gpu_and_core_problems(request: ResourceRequest, use: ProgramUse) -> Iterator[RequestProblem]:
    if request.gpus > use.gpus:
        text = f"{request.gpus} GPUs are reserved, the program uses {use.gpus}"
        yield RequestProblem(rule="idle GPUs", text=text, source="measured use")
    if request.gpus < use.gpus:
        text = f"{request.gpus} GPUs are reserved, the program needs {use.gpus}"
        yield RequestProblem(rule="too few GPUs", text=text, source="measured use")
    if request.tasks > max(use.gpus, 1):
        text = f"{request.tasks} tasks start the program {request.tasks} times; its workers belong to one task"
        yield RequestProblem(rule="too many tasks", text=text, source=SBATCH)
    if request.cores < use.cores:
        text = f"{count(request.cores, 'core')} for {count(use.workers, 'worker')} and the main process"
        yield RequestProblem(rule="too few cores", text=text, source=TORCH)


def _memory_and_time_problems(request: ResourceRequest, use: ProgramUse) -> Iterator[RequestProblem]:
    shm_bytes = 0.0 if request.shm_bytes is None else request.shm_bytes  # a memory-backed volume counts as memory
    shm_bytes = use.shared_bytes if math.isinf(shm_bytes) else shm_bytes  # no limit: what the program stores there
    needed = use.host_gib * GIB + (shm_bytes if shm_bytes > CONTAINER_SHM_BYTES else 0)
    if request.memory_bytes is None:
        is_pod = request.shm_bytes is not None
        text = (
            "no memory limit, so nothing is reserved" if is_pod else "no memory is stated: the site's default applies"
        )
        yield RequestProblem(rule="no memory", text=text, source=K8S_MEMORY if is_pod else SBATCH)
    elif request.memory_bytes < needed:
        text = f"{size(request.memory_bytes)} of memory, {size(needed)} are needed"
        yield RequestProblem(rule="too little memory", text=text, source="measured use")
    if request.shm_bytes is not None and request.shm_bytes < use.shared_bytes:
        text = f"/dev/shm has {size(request.shm_bytes)}, batches of the workers {size(use.shared_bytes)}"
        yield RequestProblem(rule="too little shared memory", text=text, source=K8S_VOLUME)
    limit, work = (duration(None if time is None else time * _MINUTE_NS) for time in (request.minutes, use.minutes))
    if request.needs_limit and request.minutes is None:
        text = "no time limit, so the default of the partition applies"
        yield RequestProblem(rule="no time limit", text=text, source=SLURM_ADVICE)
    elif request.minutes is not None and request.minutes > _MOST_TIMES * use.minutes:
        text = f"a limit of {limit} for {work} of work: few gaps are long enough"
        yield RequestProblem(rule="time limit too long", text=text, source=SLURM_ADVICE)
    elif request.minutes is not None and request.minutes < use.minutes:
        text = f"a limit of {limit} for {work} of work"
        yield RequestProblem(rule="time limit too short", text=text, source=SBATCH)


class _Options(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _sbatch_options() -> _Options:
    parser = _Options(add_help=False, allow_abbrev=False)
    parser.add_argument("-G", "--gpus", type=_gpu_count)
    for name in ("gpus-per-node", "gpus-per-task"):
        parser.add_argument(f"--{name}", type=_gpu_count)
    parser.add_argument("--gres", type=_gres_gpus)
    parser.add_argument("-c", "--cpus-per-task", type=int)
    parser.add_argument("--cpus-per-gpu", type=int)
    parser.add_argument("-n", "--ntasks", type=int)
    parser.add_argument("-N", "--nodes", type=int, default=1)
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        parser.add_argument(f"--{name}", type=_slurm_bytes)
    parser.add_argument("-t", "--time", type=slurm_minutes)
    return parser


def parse_sbatch(script: str) -> ResourceRequest:
    """Return what a batch script requests. Like sbatch, stop at the first line that is neither comment nor blank."""
    arguments: list[str] = []
    mistakes: list[RequestProblem] = []
    is_over = False
    for line in script.strip().splitlines():
        directive = line.startswith("#SBATCH")
        if directive and is_over:
            text = f"{line!r} comes after the first command, and is ignored"
            mistakes.append(RequestProblem(rule="ignored option", text=text, source=SBATCH))
        elif directive:
            arguments += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            is_over = True
    try:
        options, _ = _sbatch_options().parse_known_args(arguments)
    except ValueError as error:
        text = re.sub(r"invalid \w+ value", "invalid value", str(error))
        mistakes.append(RequestProblem(rule=NOT_READABLE, text=text, source=SBATCH))
        options = _sbatch_options().parse_args([])
    return _slurm_request(options, (*mistakes, *_conflicts(options), *_srun_problems(script, options)))


def _conflicts(options: argparse.Namespace) -> Iterator[RequestProblem]:
    if options.cpus_per_gpu and options.cpus_per_task:
        text = "--cpus-per-gpu and --cpus-per-task exclude each other"
        yield RequestProblem(rule="conflict", text=text, source=SBATCH)
    if options.gpus_per_task and not (options.ntasks or options.gpus):
        text = "--gpus-per-task requires --ntasks or --gpus"
        yield RequestProblem(rule="conflict", text=text, source=SBATCH)


def _srun_problems(script: str, options: argparse.Namespace) -> Iterator[RequestProblem]:
    """Find calls of srun that do not repeat --cpus-per-task, which they do not inherit since Slurm 22.05."""
    if (options.cpus_per_task or 1) == 1 or "SRUN_CPUS_PER_TASK" in script:
        return
    for line in script.replace("\\\n", " ").splitlines():
        arguments = line.split()
        if arguments[:1] == ["srun"] and not any(word.startswith(("--cpus-per-task", "-c")) for word in arguments):
            text = f"srun does not inherit --cpus-per-task={options.cpus_per_task} from sbatch (since Slurm 22.05)"
            yield RequestProblem(rule="cores not passed on", text=text, source=SBATCH)


def _slurm_request(options: argparse.Namespace, mistakes: tuple[RequestProblem, ...]) -> ResourceRequest:
    per_node = options.gres or options.gpus_per_node or 0
    tasks = options.ntasks or 1
    gpus = options.gpus or (options.gpus_per_task or 0) * tasks or per_node * options.nodes
    cores = options.cpus_per_gpu * gpus if options.cpus_per_gpu else (options.cpus_per_task or 1) * tasks
    memory: float | None = math.inf if options.mem == 0 else options.mem  # --mem=0 is all memory of the node
    if options.mem_per_cpu:
        memory = options.mem_per_cpu * cores
    if options.mem_per_gpu:
        memory = options.mem_per_gpu * gpus
    return ResourceRequest(
        gpus=gpus,
        cores=cores,
        memory_bytes=memory,
        shm_bytes=None,
        minutes=options.time,
        needs_limit=True,
        tasks=tasks,
        mistakes=mistakes,
    )


def _gpu_count(text: str) -> int:
    """Return the number in "2" or "h100:2"."""
    return int(text.rpartition(":")[2])


def _gres_gpus(text: str) -> int:
    """Return the GPUs in "gpu", "gpu:2" or "gpu:h100:2", among other resources."""
    for part in text.split(","):
        name, _, rest = part.partition(":")
        if name == "gpu":
            last = rest.rpartition(":")[2]
            return int(last) if last.isdigit() else 1
    return 0


def _slurm_bytes(text: str) -> float:
    """Return "64G" or "500" (MiB, without a unit) in bytes; units of Slurm are powers of 1024."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if match is None:
        raise ValueError(text)
    return float(int(match[1]) * 2 ** {"K": 10, "": 20, "M": 20, "G": 30, "T": 40}[match[2]])


def slurm_minutes(text: str) -> float:
    """Return a time limit in minutes: "90", "90:00", "1:30:00", "2-0", "2-00:00" or "2-00:00:00"."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def parse_pod(pod: Mapping[str, Any]) -> ResourceRequest:
    """Return what the first container of a pod requests."""
    spec: Mapping[str, Any] = pod.get("spec", {})
    container: Mapping[str, Any] = next(iter(spec.get("containers", ())), {})
    resources: Mapping[str, Any] = container.get("resources", {})
    limits: Mapping[str, Any] = resources.get("limits") or {}
    requests: Mapping[str, Any] = {**limits, **(resources.get("requests") or {})}
    memory = limits.get("memory")
    return ResourceRequest(
        gpus=math.ceil(_quantity(limits.get(GPU_RESOURCE, 0))),
        cores=_quantity(requests.get("cpu", 0)),
        memory_bytes=None if memory is None else _quantity(memory),
        shm_bytes=_shm_bytes(spec, container),
        minutes=None,
        needs_limit=False,
        mistakes=tuple(_pod_mistakes(resources.get("requests") or {}, limits)),
    )


def _pod_mistakes(requests: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[RequestProblem]:
    for name, value in (*requests.items(), *limits.items()):
        if _QUANTITY.fullmatch(str(value)) is None:
            text = f"{name}: {value!r} is not a quantity, such as 5, 500m or 24Gi"
            yield RequestProblem(rule=NOT_READABLE, text=text, source=K8S_MEMORY)
    limit, request = limits.get(GPU_RESOURCE), requests.get(GPU_RESOURCE)
    if request is not None and limit is None:
        text = f"{GPU_RESOURCE} belongs in limits; in requests alone it is refused"
        yield RequestProblem(rule="GPU not in limits", text=text, source=K8S_GPU)
    elif request is not None and _quantity(request) != _quantity(limit):
        text = f"{GPU_RESOURCE} must be the same in requests and limits"
        yield RequestProblem(rule="GPU request is not the limit", text=text, source=K8S_GPU)
    if limit is not None and _quantity(limit) % 1:
        text = f"{limit} of {GPU_RESOURCE}: it is a whole number; a part of a GPU is another resource"
        yield RequestProblem(rule="part of a GPU", text=text, source=K8S_GPU)


def _shm_bytes(spec: Mapping[str, Any], container: Mapping[str, Any]) -> float:
    """Return the size of /dev/shm: that of a memory-backed volume mounted there, or of the container's own.

    A volume without `sizeLimit` is limited by the memory of the pod only: infinity.
    """
    mounts: Sequence[Mapping[str, Any]] = container.get("volumeMounts", ())
    names = {mount.get("name") for mount in mounts if mount.get("mountPath") == "/dev/shm"}
    for volume in spec.get("volumes", ()):
        directory = volume.get("emptyDir") or {}
        if volume.get("name") in names and directory.get("medium") == "Memory":
            limit = directory.get("sizeLimit")
            return math.inf if limit is None else _quantity(limit)
    return CONTAINER_SHM_BYTES


def _quantity(value: object) -> float:
    """Return a Kubernetes quantity as a number: 2, "500m", "16Gi"."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return 0.0
    return float(match[1]) * (1e-3 if match[2] == "m" else _UNITS[match[2] or ""])
