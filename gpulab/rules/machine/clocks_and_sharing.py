"""Rules about the GPU as a machine: clocks that are held down, other processes on it, its memory's traffic."""

from __future__ import annotations

from gpulab.analysis.machine.clocks import Clocks, clocks, loaded, median, sensed_device
from gpulab.analysis.machine.gpu_sharing import Sharing, sharing
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, figures
from gpulab.rules.engine.needs import Need
from gpulab.wording import number, percent, quantity, size

HELD_FRAC = 0.01  # of the loop's time: the counters are exact, and a healthy GPU shows none
REASON_FRAC = 0.05  # of the samples under load: a reason in one of twenty is no passing moment
LOWERED_FRAC = 0.98  # a limit this close to the default is the default
LOSS_WORTH_FRAC = 0.02  # lower clocks that cost less than this are worth knowing, and no more

SHARED_WORTH_FRAC = 0.05
HELD_BYTES = 512 << 20  # an idle process's CUDA context takes up to 500 MiB

STEADY_FRAC = 0.7  # the memory controller is judged beside kernels: these must be there most of the time
MUCH_FRAC, LITTLE_FRAC = 0.6, 0.1  # of the time: kernels that stream data reach 0.7 and more, matrix products 0.1-0.4
AGREE_FRAC = 0.6  # of the kernels' time

GPU_LOAD = Need(
    lambda evidence: bool((evidence.run.gpu_rows["util_frac"] >= 0).any()),
    "the GPU does not tell how busy it is",
    "profile on a whole GPU: a MIG instance has no such sensor",
    real=True,
)
OTHERS = Need(
    lambda evidence: sharing(evidence.run, evidence.steps) is not None,
    "the driver does not tell from here which processes use the GPU",
    "profile outside a container, or in one started with --pid=host",
    real=True,
)


def clock_throttling(evidence: Evidence) -> Finding | None:
    """The GPU's clocks are held down, by heat, by its power supply, or by a power limit that somebody lowered.

    Proof: the driver's counters of time held down grew while the loop ran, or its reasons say so in the samples under
    load, and the clock is lower than it could be. Confused with: the power limit the GPU comes with, which large
    matrix products reach on a healthy GPU (told aside); clocks that fall because the GPU idles, which no sample under
    load shows. What to do: cooling and airflow for heat; the default power limit where it was lowered; otherwise
    nothing.
    """
    now = clocks(evidence.run, evidence.steps)
    cause = None if now is None else _cause(now)
    if now is None or cause is None:
        return None
    lost = None if now.lost_frac is None else now.lost_frac * _computing(evidence)
    worth = cause != "limit" and (lost is None or lost >= LOSS_WORTH_FRAC)
    counted = max(now.held_by_heat or 0.0, now.held_by_power or 0.0) >= HELD_FRAC
    return Finding(
        claim=_slowed(now, cause),
        evidence=_clock_evidence(now),
        numbers=_clock_numbers(now),
        fix=_raise_limit(now) if cause == "lowered" else "",
        advice=ADVICE[cause],
        gain=_gain(evidence, lost, "the lower clock, made up for by 30 to 100 %", "even a full clock")
        if worth
        else None,
        confidence=CERTAIN if counted else LIKELY,
        why_confidence="" if counted else f"by {now.samples} samples; the driver does not count the time",
        from_steps=False,
        aside=not worth,
    )


ADVICE = {
    "heat": "Heat is for whoever has the machine in hand: airflow, dust, fans, a cooler place in the rack. Until then "
    "another GPU may be faster.",
    "supply": "The board's power supply asks for less: cables and the supply itself, for whoever runs the machine.",
    "lowered": "Raising the limit needs administrator rights; on a shared machine ask why it was lowered. Lower "
    "precision (bfloat16) does more work for the same power.",
    "limit": "Nothing is wrong: dense arithmetic reaches the limit on a healthy GPU. Lower precision (bfloat16) does "
    "more work for the same power.",
}


def _cause(now: Clocks) -> str | None:
    """What holds the clocks down: heat, the supply, a lowered limit, the limit it comes with; None: nothing does."""
    if _held(now.held_by_heat, now.heat_frac):
        return "heat"
    if (now.brake_frac or 0.0) >= REASON_FRAC:
        return "supply"
    if not _held(now.held_by_power, now.power_frac):
        return None
    limit, usual = now.gpu.power_limit_w, now.gpu.power_default_w
    return "lowered" if limit and usual and limit < LOWERED_FRAC * usual else "limit"


def _held(counted: float | None, given: float | None) -> bool:
    """By the counter where there is one; a reason in samples is second best."""
    return counted >= HELD_FRAC if counted is not None else (given or 0.0) >= REASON_FRAC


def _slowed(now: Clocks, cause: str) -> str:
    limit, usual = now.gpu.power_limit_w or 0.0, now.gpu.power_default_w or 0.0
    clock = quantity(now.clock_mhz, "MHz") if now.clock_mhz else "a lower clock"
    most = f" instead of {number(now.free_mhz)}" if now.free_mhz and now.clock_mhz else ""
    why = {
        "heat": "it is too hot" + (f" ({quantity(now.temperature_c, 'degrees C')})" if now.temperature_c else ""),
        "supply": "its power supply asks for less",
        "lowered": f"its power limit was lowered to {quantity(limit, 'W')} of {quantity(usual, 'W')}",
        "limit": "it works at its power limit" + (f" ({quantity(limit, 'W')})" if limit else "") + ", as it may",
    }[cause]
    return f"The GPU runs at {clock}{most} because {why}."


def _clock_evidence(now: Clocks) -> tuple[str, ...]:
    told = []
    for held, what in ((now.held_by_heat, "heat"), (now.held_by_power, "power")):
        if held is not None and held >= HELD_FRAC:
            told.append(f"The driver counted {percent(held)} of the loop's time with clocks held down by {what}.")
    reasons = (("heat", now.heat_frac), ("power", now.power_frac), ("the power supply", now.brake_frac))
    given = [f"{what} in {percent(frac)}" for what, frac in reasons if frac is not None and frac >= REASON_FRAC]
    if given:
        told.append(f"Reasons given for lower clocks, in {now.samples} samples under load: {', '.join(given)}.")
    if now.first_mhz and now.last_mhz and now.last_mhz < 0.97 * now.first_mhz:
        told.append(f"Under load the clock fell from {number(now.first_mhz)} to {quantity(now.last_mhz, 'MHz')}.")
    if now.power_w and now.gpu.power_limit_w:
        told.append(f"It draws {quantity(now.power_w, 'W')}; the limit is {quantity(now.gpu.power_limit_w, 'W')}.")
    return tuple(told)


def _clock_numbers(now: Clocks) -> dict[str, float]:
    return figures(
        held_by_heat_frac=now.held_by_heat,
        held_by_power_frac=now.held_by_power,
        clock_mhz=now.clock_mhz,
        free_clock_mhz=now.free_mhz,
        temperature_c=now.temperature_c,
    )


def _raise_limit(now: Clocks) -> str:
    return (
        "import subprocess\n\n"
        "# needs administrator rights without a password; lasts until the machine is started again\n"
        f'subprocess.run(["sudo", "-n", "nvidia-smi", "-i", "{now.gpu.uuid or now.gpu.index}", '
        f'"-pl", "{now.gpu.power_default_w:.0f}"], check=True)'
    )


def shared_gpu(evidence: Evidence) -> Finding | None:
    """Other processes use the GPU at the same time, and take turns with this one.

    Proof: the driver's list of processes, and the share of time in which they had kernels on it. Confused with: this
    process's own children; a notebook that was left open, which holds memory and uses no time (told aside); inside a
    container the lists may not tell, and then the memory and use that this process does not account for are looked
    at. What to do: another GPU; shut old kernels down; a MIG instance of one's own.
    """
    found = sharing(evidence.run, evidence.steps)
    if found is None:
        return None
    used, held = found.util_frac or 0.0, found.memory_bytes or 0.0
    busy = used >= SHARED_WORTH_FRAC
    if not busy and held < HELD_BYTES:
        return None
    lost = used * _computing(evidence)
    return Finding(
        claim=_others_do(found, busy),
        evidence=_of_others(found),
        numbers=figures(others_util_frac=used, others_memory_bytes=held),
        fix=_another_gpu(evidence, found),
        advice="See who it is with nvidia-smi. Notebooks that were left open keep their memory until their kernel is "
        "shut down (jupyter server list; Running Terminals and Kernels).",
        gain=_gain(
            evidence, lost, "the others' share of the GPU's time, won back by 30 to 100 %", "even a GPU to itself"
        )
        if busy
        else None,
        confidence=CERTAIN if found.listed else SUSPECT,
        why_confidence="" if found.listed else "by what this process does not account for",
        from_steps=False,
        caveats=("With others on it, times vary from run to run: compare again when it is free.",) if busy else (),
        aside=not busy,
    )


def _others_do(found: Sharing, busy: bool) -> str:
    if busy:
        return f"Other processes use the GPU {percent(found.util_frac)} of the time, in turns with this one."
    return f"Other processes hold {size(found.memory_bytes)} of the GPU's memory."


def _of_others(found: Sharing) -> tuple[str, ...]:
    if not found.listed:
        held, used = found.memory_bytes, found.util_frac
        return tuple(
            text
            for text in (
                f"{size(held)} more are in use than this process can account for." if held else None,
                f"The GPU was {percent(used)} busy while this process asked nothing of it." if used else None,
            )
            if text
        )
    memory = "" if found.memory_bytes is None else f" and hold {size(found.memory_bytes)} of its memory"
    time = "" if found.util_frac is None else f"have kernels on it {percent(found.util_frac)} of the time"
    doing = f"{time}{memory}" if time else memory.removeprefix(" and ")
    return (f"By the driver's list of processes, others {doing}.",)


def _another_gpu(evidence: Evidence, found: Sharing) -> str:
    other = next((gpu for gpu in evidence.run.machine.gpus if gpu.index != found.gpu.index), None)
    if other is None:
        return ""
    number = evidence.run.machine.cuda_visible_devices
    shown = f'"{other.uuid or other.index}"' if number is None else f'"{other.uuid}"'
    return (
        "import os\n\n"
        f'os.environ["CUDA_VISIBLE_DEVICES"] = {shown}  # {other.name}; first thing after a restart of the kernel'
    )


def memory_traffic(evidence: Evidence) -> Finding | None:
    """What keeps the GPU busy, by its memory controller: moving data, or something else.

    Proof: sensors alone: the share of time in which device memory is read or written, beside the share in which
    kernels run. High: kernels wait for memory, and faster arithmetic will not help. Low: kernels compute from
    registers and caches, or there are too few threads to keep memory busy. Confused with: a GPU that waits for the
    host, where both are low, which is not judged here; and how much is moved, which these shares do not tell. What to
    do: fuse operators and use smaller types where memory is the limit; tensor cores and larger batches where not.
    """
    rows = loaded(evidence.run, evidence.steps, sensed_device(evidence.run))
    util, memory = median(rows["util_frac"]), median(rows["memory_util_frac"])
    if util is None or memory is None or util < STEADY_FRAC or LITTLE_FRAC < memory / util < MUCH_FRAC:
        return None
    much = memory / util >= MUCH_FRAC
    agree = _kernels_agree(evidence, much)
    return Finding(
        claim=f"The GPU's memory is read or written {percent(memory)} of the time: "
        + ("moving data sets the pace, not arithmetic." if much else "moving data does not set the pace."),
        evidence=(
            f"Memory controller {percent(memory)}, kernels {percent(util)}: medians of {len(rows)} samples under load.",
            *((agree,) if agree else ()),
        ),
        numbers=figures(memory_util_frac=memory, util_frac=util),
        advice="Do more with each byte that is read: torch.compile fuses operators, bfloat16 halves what is moved."
        if much
        else "Faster arithmetic helps: bfloat16 or TF32 on tensor cores, and batches that fill the GPU.",
        confidence=LIKELY if agree else SUSPECT,
        why_confidence="" if agree else "by the sensors alone",
        from_steps=False,
        aside=True,
    )


def _kernels_agree(evidence: Evidence, much: bool) -> str | None:
    """What the recorded kernels say to it, where they say the same."""
    if evidence.accounts is None or not evidence.on_gpu:
        return None
    matrix, other = evidence.ledger.share("matmul"), evidence.ledger.share("kernels")
    share = (other if much else matrix) / max(1e-9, matrix + other)
    if share < AGREE_FRAC:
        return None
    kind = "no matrix products" if much else "matrix products"
    return f"The kernels agree: {percent(share)} of their time they are {kind}."


def _computing(evidence: Evidence) -> float:
    """The share of a step that follows the GPU's clock, and that others' kernels lengthen."""
    if evidence.accounts is not None and evidence.on_gpu:
        return evidence.ledger.share("matmul", "kernels")
    rows = loaded(evidence.run, evidence.steps, sensed_device(evidence.run))
    return median(rows["util_frac"]) or 0.0


def _gain(evidence: Evidence, lost: float | None, basis: str, floor_means: str) -> Gain | None:
    step_ns = evidence.steps.step_ns
    if step_ns is None or not lost:
        return None
    return evidence.bounded(round(lost * step_ns), basis, floor_means, (0.3, 1.0))
