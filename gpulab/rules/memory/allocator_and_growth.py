"""Rules about the GPU's memory: asked for anew in every step, stranded in pieces, growing, or hardly used."""

from __future__ import annotations

from gpulab.analysis.memory.allocator import Requests, Room, requests, rooms
from gpulab.analysis.memory.growth import LEAST_STEPS, Growth, growths
from gpulab.analysis.memory.holders import Growing, growing
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Unjudged, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.memory.oom_remedies import EXPANDABLE
from gpulab.wording import count, duration, percent, size

THRASH_WORTH_FRAC = 0.03  # as with copies: the fix is to leave a call out, or one setting
STRANDED_FRAC = 0.20  # of what is held; a fifth is what blocks of 2 and 20 MiB leave over in a healthy run at most
PRESSURE_FRAC = 0.80  # of the GPU: with more room than that, what is stranded is only a cache
GROWN_FRAC = 0.02  # of what was there at first: a page cache, a table of strings grows too
GROWN_BYTES = 16 << 20
PEAK_FOLLOWS = 1.5  # the peak rises by what is left between steps if that leaks; by far more if inputs grow
LONGER_FRAC = 0.3  # steps that get longer by this much over the run have more to do in each
URGENT_RUNS = 20  # memory that is gone before so many runs of this length are over is gone before training is
UNUSED_FRAC = 0.5  # the articles say "mostly free": more than half
SIZE_UNKNOWN = Unjudged(
    why="how much memory the GPU has is not known",
    fix="profile here on a machine with an NVIDIA GPU and its driver's NVML",
)


def allocator_thrash(evidence: Evidence) -> Finding | Unjudged | None:
    """GPU memory is asked of the driver and given back in every step, instead of being kept and given out again.

    Proof: `cudaMalloc` and `cudaFree` calls in the interior steps, with the GPU idle while the host is inside them, and
    PyTorch's own count of its requests rising. Confused with: the first steps, which fill the cache and do not count;
    expandable segments, which map memory by other calls; libraries that allocate beside PyTorch, where its own count
    stays. What to do: no `torch.cuda.empty_cache()` in the loop; where the cache was emptied because the GPU was full,
    expandable segments, batches of one shape, a smaller batch.
    """
    found = evidence.once(requests)
    share = evidence.ledger.share("alloc")
    if found is None or not found.asked or (share < THRASH_WORTH_FRAC and not found.retries):
        return None
    if not found.freed and not found.retries:
        return None  # asked and never given back: memory grows, which is another cause
    if (doubt := _who_asks(evidence, found)) is not None:
        return doubt
    exposed_ns = evidence.ledger.median_ns("alloc")
    return Finding(
        parts=("alloc",),
        claim=f"GPU idle {percent(share)} {of_each_step(evidence)} while memory is asked of the driver and given back"
        f"{_although(found)}.",
        evidence=_requests(evidence, found, exposed_ns),
        numbers=figures(
            exposed_frac=share,
            exposed_ns=exposed_ns,
            asked_per_step=found.asked,
            freed_per_step=found.freed,
            retries=found.retries,
        ),
        fix=_expandable() if found.retries else "",
        advice=" ".join(_keeping(found)),
        gain=evidence.predicted(
            "no_alloc",
            evidence.bounded(
                evidence.plain_ns(exposed_ns),
                "the idle time inside these calls, removed by 70 to 100 %",
                "even memory without asking",
                spans=evidence.ledger.spans["alloc"],
            ),
        ),
        rewrites=evidence.typed("no_alloc"),
        confidence=CERTAIN if found.by_pytorch else LIKELY,
        shown_by=evidence.ledger.spans["alloc"],
    )


def _who_asks(evidence: Evidence, found: Requests) -> Unjudged | None:
    """Why the requests may be none of PyTorch's in every step, if they may."""
    if evidence.steps.found_by == "whole run" or evidence.steps.few:
        why = "the driver is asked for memory, but there are too few steps to tell a loop from the filling of the cache"
        fix = "record more steps"
    elif found.by_pytorch is False:
        often = count(found.asked, "time")
        why = f"the driver is asked {often} per step, not by PyTorch's allocator: a library does that"
        fix = "look for the call on the timeline of a recording with --level deep"
    else:
        return None
    return Unjudged(why=why, fix=fix)


def _although(found: Requests) -> str:
    if found.retries is None:
        return ""
    return ": the GPU is full" if found.retries else ", though PyTorch could keep it"


def _keeping(found: Requests) -> tuple[str, ...]:
    """What to do: where the GPU is full one thing, where it is not another, and both where that is not known."""
    emptied = (
        "Take torch.cuda.empty_cache() out of the loop: what it gives back PyTorch would give out again, and each step "
        "then waits for the driver."
    )
    full = "Let all batches have one shape (pad or bucket them), and leave some of the GPU free: a smaller batch."
    if found.retries is None:
        return emptied, f"If there is none, the GPU is full: {full[:1].lower()}{full[1:]}"
    return (full,) if found.retries else (emptied,)


def _requests(evidence: Evidence, found: Requests, exposed_ns: int) -> tuple[str, ...]:
    told = [
        f"{found.asked} requests for memory and {found.freed} returns per step hold the host for "
        f"{duration(found.blocked_ns)}; the GPU is idle for {duration_in_step(evidence, exposed_ns)} meanwhile.",
    ]
    if found.retries:
        told.append(f"{count(found.retries, 'time')} the GPU was full, and PyTorch gave back all it kept to ask again.")
    elif found.retries == 0:
        told.append("The GPU was never full: nothing forces PyTorch to give memory back.")
    return tuple(told)


def fragmentation(evidence: Evidence) -> Finding | Unjudged | None:
    """The GPU is nearly full, and much of it is held in pieces that fit nothing.

    Proof: PyTorch holds a fifth more than it gave out even when most was given out, free pieces inside blocks that are
    in use make up as much, and the GPU is over 80 % full. Confused with: a cache that is large after a peak, with
    room beside it, which does no harm; memory that other processes hold. What to do: expandable segments, which let
    blocks grow in place; batches of one shape.
    """
    for room in rooms(evidence.run, evidence.steps):
        if room.used_frac is None:
            return SIZE_UNKNOWN
        stranded = room.stranded_bytes / max(1, room.reserved_bytes)
        pieces = (room.split_frac or 0.0) >= STRANDED_FRAC
        if stranded >= STRANDED_FRAC and pieces and room.used_frac >= PRESSURE_FRAC:
            return _fragmented(room)
    return None


def _fragmented(room: Room) -> Finding:
    retried = bool(room.retries or room.refused)
    share = percent(room.stranded_bytes / room.reserved_bytes)
    evidence = [
        f"PyTorch holds up to {size(room.reserved_bytes)} of GPU {room.device} and gives out at most "
        f"{size(room.allocated_bytes)} of it; the GPU is {percent(room.used_frac)} full.",
        f"Free pieces inside blocks in use: {percent(room.split_frac)} of what is held in the typical step.",
    ]
    if room.retries:
        evidence.append(f"PyTorch emptied its cache {count(room.retries, 'time')} as a request found no room.")
    return Finding(
        claim=f"{size(room.stranded_bytes)} of GPU memory ({share} of what PyTorch holds) lies in pieces that fit "
        "nothing, and the GPU is nearly full.",
        evidence=tuple(evidence),
        numbers=figures(
            stranded_bytes=room.stranded_bytes,
            reserved_bytes=room.reserved_bytes,
            split_frac=room.split_frac or 0.0,
            used_frac=room.used_frac or 0.0,
        ),
        fix=_expandable(),
        advice="Batches of one shape (pad or bucket them) leave fewer pieces. To see every block: "
        "torch.cuda.memory._record_memory_history() before, torch.cuda.memory._dump_snapshot() after.",
        confidence=LIKELY if retried else SUSPECT,
        why_confidence="" if retried else "no request was refused for it yet",
        from_steps=False,
        caveats=("It gains room for a larger batch, not time.",),
    )


def _expandable() -> str:
    return (
        "import os   # before torch is imported, so in the first cell of a restarted kernel\n"
        f'os.environ["{EXPANDABLE}"] = "expandable_segments:True"'
    )


def memory_growth(evidence: Evidence) -> Finding | Unjudged | None:
    """Memory grows from step to step: something is kept that each step adds to.

    Proof: what is given out where a step begins, or the resident memory of the process, rises steadily over 20 steps
    and more (Theil-Sen slope, 95 % interval above zero), and goes on rising in the second half. Confused with: an
    optimizer's state, made in the first steps, and caches and workers, which level off; inputs that grow, where the
    peak rises by more than what stays, or the steps get longer; a process that an earlier run has left room, whose size
    tells nothing: there a list tells, whose graphs were counted. What to do: keep numbers instead of losses, as
    `loss.item()`; under `torch.no_grad()` what will not be learnt from.
    """
    told, names = growths(evidence.run, evidence.steps), growing(evidence.run)
    growth = max(told, key=lambda each: each.last_bytes - each.first_bytes, default=None)
    if growth is None or not _grows(growth):
        if names and (names[0].bytes or 0) >= GROWN_BYTES:
            return _hidden(names[0])
        return None if growth else _TOO_SHORT
    if not names and (rival := _inputs_grow(growth)) is not None:
        return Unjudged(why=rival, fix=_SAME_INPUTS)
    left = growth.steps_left
    urgent = left is not None and left < URGENT_RUNS * len(evidence.steps)
    vague = growth.device is None and not names  # the heap of a process settles for long, and nobody keeps anything
    end = "" if left is None else f", which is full in about {_rounded(left)} more"
    memory = "host memory" if growth.device is None else f"GPU {growth.device}'s memory"
    return Finding(
        claim=f"Each step keeps another {size(growth.per_step.slope)} of {memory}{end}"
        f"{f': {names[0].name} keeps graphs' if names else ''}.",
        evidence=(*_growth(growth), *map(_grew, names[:3])),
        numbers=figures(
            per_step_bytes=growth.per_step.slope,
            low_bytes=growth.per_step.low,
            high_bytes=growth.per_step.high,
            steps_left=left,
        ),
        fix=_number(names[0].name) if names else _WHAT_GROWS,
        advice=_KEEPING,
        confidence=CERTAIN if names else SUSPECT if vague else LIKELY,
        why_confidence="the heap of a process settles for long, and no list was seen to grow" if vague else "",
        from_steps=False,
        urgent=urgent,
        aside=vague and not urgent,
    )


def _hidden(grew: Growing) -> Finding:
    """The process does not show it, as an earlier run has left it room: the collection itself does."""
    return Finding(
        claim=f"{grew.name} keeps a graph with each entry: {size(grew.each_bytes)} each, {size(grew.bytes)} by now.",
        evidence=(
            _grew(grew),
            "The process has not grown by it yet: it still has room that was used before, by an earlier run perhaps.",
        ),
        numbers=figures(kept_bytes=grew.bytes or 0, entries=grew.entries),
        fix=_number(grew.name),
        advice=_KEEPING,
        confidence=CERTAIN,
        from_steps=False,
    )


def _grew(each: Growing) -> str:
    kept = "" if each.bytes is None else f", and these keep {size(each.bytes)}"
    return f"{each.name} grew by {each.entries:,} entries with their graphs{kept}."


_TOO_SHORT = Unjudged(
    why=f"it takes {LEAST_STEPS} steps, and a reading of memory in most, after the recorded ones",
    fix="let the loop run on for some seconds under %%gpuprofile",
)
_KEEPING = (
    "A loss that is kept keeps its graph, and that keeps everything that was computed for it. "
    "total += loss.detach() and losses.append(loss.item()) keep a number."
)
_SAME_INPUTS = "profile again with inputs of one size: what still grows then is kept"
_WHAT_GROWS = (
    "import gc, torch   # run this between two steps, twice: what is longer the second time is what grows\n"
    "alive = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]\n"
    "print(len(alive), sorted(((each.nbytes, tuple(each.shape)) for each in alive), reverse=True)[:10])"
)


def _grows(growth: Growth) -> bool:
    """Steadily, to the end, and by an amount worth a word."""
    slope, late = growth.per_step, growth.late
    grown = slope.slope * growth.steps
    if not slope.rises or grown < max(GROWN_BYTES, GROWN_FRAC * growth.first_bytes):
        return False
    return late is not None and late.rises and late.slope >= slope.slope / 2


def _inputs_grow(growth: Growth) -> str | None:
    """Why the growth may be that of the inputs, which no one keeps."""
    peak, time = growth.peak, growth.step_time
    if peak is not None and peak.rises and peak.slope > PEAK_FOLLOWS * growth.per_step.slope:
        return (
            f"the peak of each step grows by {size(peak.slope)} a step and what is left after it by "
            f"{size(growth.per_step.slope)}: the inputs seem to grow"
        )
    if growth.device is None and time is not None and time.rises:
        longer = time.slope * growth.steps / max(1, growth.step_ns)
        if longer > LONGER_FRAC:
            return f"memory grows, but steps get longer too ({percent(longer)} over the run): the inputs seem to grow"
    return None


def _growth(growth: Growth) -> tuple[str, ...]:
    slope = growth.per_step
    told = [
        f"From {size(growth.first_bytes)} to {size(growth.last_bytes)} over {growth.steps} steps; "
        f"{size(slope.low)} to {size(slope.high)} a step (95 % interval of {slope.points} readings).",
    ]
    if growth.late is not None:
        told.append(f"In the second half of them it still grows, by {size(growth.late.slope)} a step.")
    if growth.room_bytes is not None:
        told.append(f"{size(growth.room_bytes)} is left.")
    return tuple(told)


def _rounded(steps: float) -> str:
    """Two figures of a large number: it is a projection."""
    return count(int(float(f"{steps:.2g}")), "step")


def _number(name: str) -> str:
    return f"{name}.append(loss.item())   # a number: the tensor would keep all that it was computed from"


def unused_gpu_memory(evidence: Evidence) -> Finding | Unjudged | None:
    """Most of the GPU's memory is free: there is room for a larger batch.

    Proof: at its fullest, all processes together use less than half of it. Confused with: a GPU that starves or waits
    for the host, which a larger batch does not feed: those findings come in place of this one; and a GPU whose kernels
    fill it already, which gains little. What to do: double the batch while samples per second still rise, and scale
    the learning rate with it.
    """
    for room in rooms(evidence.run, evidence.steps):
        if room.used_frac is None:
            return SIZE_UNKNOWN
        if room.used_frac < UNUSED_FRAC:
            return _unused(evidence, room)
    return None


def _unused(evidence: Evidence, room: Room) -> Finding:
    used, capacity = room.used_bytes, room.capacity_bytes or 1
    batch = next((loader.batch_size for loader in evidence.run.loaders if loader.batch_size), None)
    now = f" from {batch} to {2 * batch}" if batch else ""
    return Finding(
        claim=f"{percent(1 - used / capacity)} of the memory of GPU {room.device} is never used.",
        evidence=(f"At its fullest, {size(used)} of {size(capacity)} is in use, by all processes together.",),
        numbers=figures(used_bytes=used, capacity_bytes=capacity, used_frac=used / capacity),
        advice=f"Double the batch size{now}, and look whether samples per second rise: they do where kernels are too "
        "small for the GPU, and not where it is full of work already. The learning rate may then be raised with it.",
        confidence=LIKELY,
        why_confidence="free memory is no fault by itself",
        from_steps=False,
        aside=True,
    )
