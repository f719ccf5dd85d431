"""Rules about the GPU itself: clock throttling, other processes, memory traffic."""

from __future__ import annotations

from gpulab.analysis.machine.clocks import (
    Clocks,
    clocks_under_load,
    gpu_samples_under_load,
    known_median,
    sensed_device,
)
from gpulab.analysis.machine.gpu_sharing import GpuSharing, gpu_sharing
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.needs import Need
from gpulab.wording import number, percent, quantity, size

_MIN_THROTTLED_FRAC = 0.01  # of the loop's time: the counters are exact, and a healthy GPU shows none
_MIN_REASON_FRAC = 0.05  # of the samples under load: a reason in one of twenty samples is not transient
_LOWERED_FRAC = 0.98  # a power limit this close to the default is the default
_MIN_LOSS_FRAC = 0.02  # lower clocks that cost less are reported for information only

_MIN_SHARED_FRAC = 0.05
_MIN_OTHERS_BYTES = 512 << 20  # an idle process's CUDA context takes up to 500 MiB

_MIN_UTIL_FRAC = 0.7  # memory traffic is judged only if kernels run most of the time
# Of the time: streaming kernels reach 0.7 and more, matrix products 0.1-0.4.
_HIGH_TRAFFIC_FRAC, _LOW_TRAFFIC_FRAC = 0.6, 0.1
_MIN_AGREEMENT_FRAC = 0.6  # of the kernels' time

GPU_LOAD = Need(
    "a GPU that reports its utilisation, which a MIG instance does not",
    lambda evidence: bool((evidence.run.gpu_rows["util_frac"] >= 0).any()),
    "the GPU does not report its utilisation",
    "profile on a whole GPU: a MIG instance has no such sensor",
    real_machine_only=True,
)
PROCESS_LIST = Need(
    "a driver that lists the processes on the GPU (in a container: started with --pid=host)",
    lambda evidence: gpu_sharing(evidence.run, evidence.steps) is not None,
    "the driver does not list the processes on the GPU",
    "profile outside a container, or in one started with --pid=host",
    real_machine_only=True,
)


def clock_throttling(evidence: Evidence) -> Finding | None:
    """The GPU runs at reduced clocks, because of heat, its power supply, or a lowered power limit.

    Proof: the driver's counters of throttled time increase while the loop runs, or its throttle reasons say so in the
    samples under load, and the clock is below its maximum.

    Confused with: the default power limit, which large matrix products reach on a healthy GPU (reported for
    information); clocks that fall because the GPU is idle, which samples under load exclude.

    What to do: for heat, improve cooling and airflow; if the power limit was lowered, restore the default; otherwise
    nothing.
    """
    now = clocks_under_load(evidence.run, evidence.steps)
    cause = None if now is None else _cause(now)
    if now is None or cause is None:
        return None
    lost_frac = None if now.lost_frac is None else now.lost_frac * _gpu_compute_share(evidence)
    is_costly = cause != "limit" and (lost_frac is None or lost_frac >= _MIN_LOSS_FRAC)
    counted = max(now.heat_throttled_frac or 0.0, now.power_throttled_frac or 0.0) >= _MIN_THROTTLED_FRAC
    return Finding(
        claim=_clock_claim(now, cause),
        evidence=_clock_evidence(now),
        numbers=_clock_numbers(now),
        fix=_power_limit_code(now) if cause == "lowered" else "",
        advice=_ADVICE[cause],
        gain=_gain(evidence, lost_frac, "recovering 30 to 100 % of the lost clock speed", "full clock speed")
        if is_costly
        else None,
        confidence=CERTAIN if counted else LIKELY,
        confidence_reason="" if counted else f"by {now.samples} samples; the driver has no counters of throttled time",
        from_steps=False,
        informs_only=not is_costly,
    )


_ADVICE = {
    "heat": "Ask the administrator to check airflow, dust, fans and the position in the rack. Until then "
    "another GPU may be faster.",
    "supply": "The power supply signals a power brake: ask the administrator to check the supply and its cables.",
    "lowered": "Raising the limit needs administrator rights; on a shared machine, ask why it was lowered. Lower "
    "precision (bfloat16) does more work for the same power.",
    "limit": "Nothing is wrong: dense matrix products reach the power limit on a healthy GPU. Lower precision "
    "(bfloat16) does more work for the same power.",
}


def _cause(now: Clocks) -> str | None:
    """Return what reduces the clocks: heat, the supply, a lowered limit, the default limit; None if nothing does."""
    if _is_throttled(now.heat_throttled_frac, now.heat_frac):
        return "heat"
    if (now.brake_frac or 0.0) >= _MIN_REASON_FRAC:
        return "supply"
    if not _is_throttled(now.power_throttled_frac, now.power_frac):
        return None
    limit, usual = now.gpu.power_limit_w, now.gpu.power_default_w
    return "lowered" if limit and usual and limit < _LOWERED_FRAC * usual else "limit"


def _is_throttled(counted_frac: float | None, sampled_frac: float | None) -> bool:
    """Whether the clock was reduced: by the counter if there is one, else by the reasons in samples."""
    return (
        counted_frac >= _MIN_THROTTLED_FRAC if counted_frac is not None else (sampled_frac or 0.0) >= _MIN_REASON_FRAC
    )


def _clock_claim(now: Clocks, cause: str) -> str:
    limit, usual = now.gpu.power_limit_w or 0.0, now.gpu.power_default_w or 0.0
    clock = quantity(now.clock_mhz, "MHz") if now.clock_mhz else "a lower clock"
    normal_clock = f" instead of {number(now.unthrottled_mhz)}" if now.unthrottled_mhz and now.clock_mhz else ""
    reason = {
        "heat": "it is too hot" + (f" ({quantity(now.temperature_c, 'degrees C')})" if now.temperature_c else ""),
        "supply": "its power supply signals a power brake",
        "lowered": f"its power limit was lowered from {quantity(usual, 'W')} to {quantity(limit, 'W')}",
        "limit": "it reached its default power limit" + (f" ({quantity(limit, 'W')})" if limit else ""),
    }[cause]
    return f"The GPU runs at {clock}{normal_clock} because {reason}."


def _clock_evidence(now: Clocks) -> tuple[str, ...]:
    sentences = []
    for throttled_frac, cause in ((now.heat_throttled_frac, "heat"), (now.power_throttled_frac, "power")):
        if throttled_frac is not None and throttled_frac >= _MIN_THROTTLED_FRAC:
            sentences.append(
                f"The driver counted {percent(throttled_frac)} of the loop's time as throttled by {cause}."
            )
    reasons = (("heat", now.heat_frac), ("power", now.power_frac), ("the power supply", now.brake_frac))
    reason_texts = [
        f"{cause} in {percent(frac)}" for cause, frac in reasons if frac is not None and frac >= _MIN_REASON_FRAC
    ]
    if reason_texts:
        sentences.append(f"Throttle reasons in {now.samples} samples under load: {', '.join(reason_texts)}.")
    if now.first_mhz and now.last_mhz and now.last_mhz < 0.97 * now.first_mhz:
        sentences.append(f"Under load, the clock fell from {number(now.first_mhz)} to {quantity(now.last_mhz, 'MHz')}.")
    if now.power_w and now.gpu.power_limit_w:
        sentences.append(f"It draws {quantity(now.power_w, 'W')}; the limit is {quantity(now.gpu.power_limit_w, 'W')}.")
    return tuple(sentences)


def _clock_numbers(now: Clocks) -> dict[str, float]:
    return known_numbers(
        held_by_heat_frac=now.heat_throttled_frac,
        held_by_power_frac=now.power_throttled_frac,
        clock_mhz=now.clock_mhz,
        free_clock_mhz=now.unthrottled_mhz,
        temperature_c=now.temperature_c,
    )


def _power_limit_code(now: Clocks) -> str:
    return (
        "import subprocess\n\n"
        "# needs administrator rights without a password; lasts until the next reboot\n"
        f'subprocess.run(["sudo", "-n", "nvidia-smi", "-i", "{now.gpu.uuid or now.gpu.index}", '
        f'"-pl", "{now.gpu.power_default_w:.0f}"], check=True)'
    )


def shared_gpu(evidence: Evidence) -> Finding | None:
    """Other processes use the GPU at the same time and share its compute time with this one.

    Proof: the driver's list of processes, and the share of time in which they had kernels on the GPU.

    Confused with: this process's own children; an open notebook that holds memory but uses no time (reported for
    information). Inside a container the driver may list no processes; then the memory and utilisation that this process
    cannot account for are used.

    What to do: use another GPU; shut down old kernels; use a separate MIG instance.
    """
    sharing_now = gpu_sharing(evidence.run, evidence.steps)
    if sharing_now is None:
        return None
    util_frac, held_bytes = sharing_now.util_frac or 0.0, sharing_now.memory_bytes or 0.0
    is_busy = util_frac >= _MIN_SHARED_FRAC
    if not is_busy and held_bytes < _MIN_OTHERS_BYTES:
        return None
    lost_frac = util_frac * _gpu_compute_share(evidence)
    return Finding(
        claim=_sharing_claim(sharing_now, is_busy),
        evidence=_sharing_evidence(sharing_now),
        numbers=known_numbers(others_util_frac=util_frac, others_memory_bytes=held_bytes),
        fix=_other_gpu_code(evidence, sharing_now),
        advice="List the processes with nvidia-smi. Open notebooks keep their GPU memory until their kernel is shut "
        "down (jupyter server list; Running Terminals and Kernels).",
        gain=_gain(
            evidence, lost_frac, "recovering 30 to 100 % of the GPU time of other processes", "exclusive use of the GPU"
        )
        if is_busy
        else None,
        confidence=CERTAIN if sharing_now.listed else SUSPECT,
        confidence_reason=""
        if sharing_now.listed
        else "by the memory and utilisation that this process does not account for",
        from_steps=False,
        caveats=("With other processes on the GPU, times vary between runs: compare again when it is free.",)
        if is_busy
        else (),
        informs_only=not is_busy,
    )


def _sharing_claim(sharing_now: GpuSharing, busy: bool) -> str:
    if busy:
        return f"Other processes use the GPU {percent(sharing_now.util_frac)} of the time."
    return f"Other processes hold {size(sharing_now.memory_bytes)} of the GPU's memory."


def _sharing_evidence(sharing_now: GpuSharing) -> tuple[str, ...]:
    if not sharing_now.listed:
        held_bytes, util_frac = sharing_now.memory_bytes, sharing_now.util_frac
        return tuple(
            text
            for text in (
                f"{size(held_bytes)} of GPU memory are in use that this process does not account for."
                if held_bytes
                else None,
                f"The GPU was {percent(util_frac)} busy while this process ran nothing on it." if util_frac else None,
            )
            if text
        )
    memory_text = (
        "" if sharing_now.memory_bytes is None else f" and hold {size(sharing_now.memory_bytes)} of its memory"
    )
    time_text = (
        "" if sharing_now.util_frac is None else f"have kernels on it {percent(sharing_now.util_frac)} of the time"
    )
    usage = f"{time_text}{memory_text}" if time_text else memory_text.removeprefix(" and ")
    return (f"According to the driver, other processes {usage}.",)


def _other_gpu_code(evidence: Evidence, sharing_now: GpuSharing) -> str:
    other = next((gpu for gpu in evidence.run.machine.gpus if gpu.index != sharing_now.gpu.index), None)
    if other is None:
        return ""
    visible_devices = evidence.run.machine.cuda_visible_devices
    device = f'"{other.uuid or other.index}"' if visible_devices is None else f'"{other.uuid}"'
    return (
        "import os\n\n"
        f'os.environ["CUDA_VISIBLE_DEVICES"] = {device}  # {other.name}; run this first after a kernel restart'
    )


def memory_traffic(evidence: Evidence) -> Finding | None:
    """Whether memory traffic or arithmetic keeps the GPU busy, by its memory controller.

    Proof: sensors only: the share of time in which device memory is read or written, compared with the share in which
    kernels run. If it is high, kernels wait for memory, and faster arithmetic does not help. If it is low, kernels
    compute from registers and caches, or too few threads run to saturate the memory.

    Confused with: a GPU that waits for the host, where both shares are low and this rule does not judge; the amount of
    data moved, which these shares do not show.

    What to do: if memory is the limit, fuse operators and use smaller dtypes; if not, use tensor cores and larger
    batches.
    """
    rows = gpu_samples_under_load(evidence.run, evidence.steps, sensed_device(evidence.run))
    util, memory = known_median(rows["util_frac"]), known_median(rows["memory_util_frac"])
    if (
        util is None
        or memory is None
        or util < _MIN_UTIL_FRAC
        or _LOW_TRAFFIC_FRAC < memory / util < _HIGH_TRAFFIC_FRAC
    ):
        return None
    is_high = memory / util >= _HIGH_TRAFFIC_FRAC
    agreement = _kernel_agreement(evidence, is_high)
    return Finding(
        claim=f"GPU memory is read or written {percent(memory)} of the time: "
        + ("memory traffic is the limit, not arithmetic." if is_high else "memory traffic is not the limit."),
        evidence=(
            f"Memory controller {percent(memory)}, kernels {percent(util)} (medians of {len(rows)} samples under "
            "load).",
            *((agreement,) if agreement else ()),
        ),
        numbers=known_numbers(memory_util_frac=memory, util_frac=util),
        advice="Move fewer bytes: torch.compile fuses operators, and bfloat16 halves the traffic."
        if is_high
        else "Use faster arithmetic: bfloat16 or TF32 on tensor cores, and batches that fill the GPU.",
        confidence=LIKELY if agreement else SUSPECT,
        confidence_reason="" if agreement else "by sensors only",
        from_steps=False,
        informs_only=True,
    )


def _kernel_agreement(evidence: Evidence, is_high: bool) -> str | None:
    """Return a sentence if the recorded kernels support the sensors, else None."""
    if evidence.optional_ledger is None or not evidence.on_gpu:
        return None
    matrix, other = evidence.ledger.typical_frac("matmul"), evidence.ledger.typical_frac("kernels")
    share = (other if is_high else matrix) / max(1e-9, matrix + other)
    if share < _MIN_AGREEMENT_FRAC:
        return None
    kind = "other kernels than matrix products" if is_high else "matrix products"
    return f"The kernels agree: {percent(share)} of kernel time is in {kind}."


def _gpu_compute_share(evidence: Evidence) -> float:
    """Return the share of a step that scales with the GPU's clock and that other processes' kernels lengthen."""
    if evidence.optional_ledger is not None and evidence.on_gpu:
        return evidence.ledger.typical_frac("matmul", "kernels")
    rows = gpu_samples_under_load(evidence.run, evidence.steps, sensed_device(evidence.run))
    return known_median(rows["util_frac"]) or 0.0


def _gain(evidence: Evidence, lost_frac: float | None, basis: str, floor_means: str) -> Gain | None:
    step_ns = evidence.steps.step_ns
    if step_ns is None or not lost_frac:
        return None
    return evidence.gain_of_removing(round(lost_frac * step_ns), basis, floor_means, (0.3, 1.0))
