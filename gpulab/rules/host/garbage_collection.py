"""A rule about garbage collection, and the gain of removing stalls of the Python interpreter."""

from __future__ import annotations

from gpulab.analysis.data.worker_starts import loop_with_starts_ns
from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.host.gc_and_compilation import StallCost, gc_cost
from gpulab.analysis.steps.phases import gaps_between_epochs
from gpulab.intervals import Spans, covered_ns
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_or_recording
from gpulab.run import Run
from gpulab.tables import MarkKind, StallKind
from gpulab.wording import count, duration, percent

_MIN_GC_FRAC = 0.05  # 5 % of a step, as for other Python code
_EXPLICIT = "gc.collect()"
_MIN_CALLS, _MIN_CALLS_FRAC = 2, 0.1  # of gc.collect() outside the steps, and their share of the loop
_NO_NEED = "Tensors are freed without gc.collect(), as soon as nothing refers to them; only reference cycles need it."


def garbage_collection(evidence: Evidence) -> Finding | None:
    """Python collects garbage inside the loop, and no other Python code runs meanwhile.

    Proof: the interpreter reports when a collection starts and ends, and whether the code asked for it. Time that the
    device covers with its own work is not counted.

    Confused with: Python code in the loop (`host_python`) and other stalls (`periodic_stalls`): both exclude this time.

    Calls of gc.collect() between the steps count, too, such as one after each fold, if they take much of the loop.

    What to do: if the loop calls gc.collect(), remove the call. If Python decides, call gc.freeze() before the loop, so
    that existing objects are not searched, and collect at a time of your choice.
    """
    collections = evidence.cached(gc_cost)
    if collections is None or (share := _exposed_share(collections)) < _MIN_GC_FRAC:
        return _outside_steps(evidence)
    exposed_frac = 1.0 if collections.exposed_frac is None else collections.exposed_frac
    trigger, times = collections.counts_by_name[0]
    explicit = trigger.startswith(_EXPLICIT)
    location = trigger.removeprefix(_EXPLICIT).removeprefix(" in ")
    cause = (
        f"the loop calls gc.collect(){f' ({location})' if location else ''}"
        if explicit
        else "Python starts it automatically"
    )
    return Finding(
        ledger_parts=("python",),
        claim=f"{percent(share)} {stall_share_of(evidence, collections)} is garbage collection: {cause}.",
        evidence=(
            f"{count(collections.count, 'collection')} in {collections.steps_with_stall} of {collections.steps} steps, "
            f"{duration(collections.mean_ns)} of an average "
            f"step of {duration(collections.step_mean_ns)}; the longest takes {duration(collections.longest_ns)}.",
            f"Most of that time goes to {times} {_kind(trigger, explicit)}.",
        ),
        numbers=known_numbers(
            exposed_frac=share, exposed_ns=collections.per_step_ns * exposed_frac, collections=collections.count
        ),
        fix=_without_gc_calls(location) if explicit else _with_gc_freeze(),
        advice=_NO_NEED
        if explicit
        else "Call collect_sometimes(step) in the loop. The time of a collection grows with the number of objects: "
        "fewer small objects (tuples, dicts, nested lists) also help.",
        gain=stall_gain(
            evidence, collections, "removing 80 to 100 % of the collections", "no collection", (0.8, 1.0), exposed_frac
        ),
        confidence=CERTAIN,
        spans=collections.spans,
    )


def _exposed_share(collections: StallCost) -> float:
    """Return the share of time that collections take and the device does not cover with its own work, 0-1."""
    return stall_share(collections) * (1.0 if collections.exposed_frac is None else collections.exposed_frac)


def _outside_steps(evidence: Evidence) -> Finding | None:
    """Return the finding about calls of gc.collect() between the steps, as after each fold.

    Those between the epochs of one DataLoader belong to `work_between_epochs`.
    """
    run = evidence.run
    calls, locations = _calls_outside_epochs(run)
    updates = len(run.mark_rows.of_kind(MarkKind.OPTIMIZER))
    if len(locations) < _MIN_CALLS or not updates:
        return None
    loop_ns = loop_with_starts_ns(run, evidence.steps, int(calls.end_ns.max()))
    share = calls.total_ns / loop_ns
    if share < _MIN_CALLS_FRAC:
        return None
    location = max(sorted(set(locations)), key=locations.count)
    in_line = f" ({location})" if location else ""
    return Finding(
        claim=f"{percent(share)} of the loop is garbage collection outside the training steps: the code calls "
        f"gc.collect(){in_line} {count(len(locations), 'time')}, each of which takes "
        f"{duration(calls.total_ns / len(locations))}.",
        evidence=(
            f"All of these calls take {duration(calls.total_ns)}; the loop takes {duration(loop_ns)} for "
            f"{count(updates, 'update')}.",
        ),
        numbers=known_numbers(frac=share, collections=len(locations), cost_ns=calls.total_ns),
        fix=_without_gc_calls(location),
        advice=_NO_NEED,
        gain=mean_step_gain(
            round(loop_ns / updates),
            round(calls.total_ns / updates),
            "removing these calls: at worst, later collections take 40 % of their time instead",
            "no such call",
            (0.6, 1.0),
        ),
        confidence=LIKELY,
        from_steps=False,
        spans=calls,
    )


def _calls_outside_epochs(run: Run) -> tuple[Spans, list[str]]:
    """Return when the code called gc.collect() after the first update, and where; not between epochs."""
    rows = run.stall_rows.of_kind(StallKind.GC)
    rows = rows.select(rows.matching(lambda word: word.startswith(_EXPLICIT), "what"))
    start_ns, end_ns = rows["start_ns"], rows["start_ns"] + rows["dur_ns"]
    updates = run.mark_rows.of_kind(MarkKind.OPTIMIZER)["end_ns"]
    between = gaps_between_epochs(run)
    counts = (start_ns > updates.min(initial=2**62)) & (covered_ns(pauses_of(run), start_ns, end_ns) == 0)
    if between is not None:
        counts &= covered_ns(between, start_ns, end_ns) == 0
    names = rows.select(counts).text("what").to_list()
    locations = [(name or "").removeprefix(_EXPLICIT).removeprefix(" in ") for name in names]
    return Spans(start_ns[counts], end_ns[counts]), locations


def stall_share(stalls: StallCost) -> float:
    """Return the share of time that stalls take, 0-1, averaged over the steps they were looked for in."""
    return min(1.0, stalls.mean_ns / max(1, stalls.step_mean_ns))


def stall_share_of(evidence: Evidence, stalls: StallCost) -> str:
    """Return the whole of that share: "of each step", or "of the time" if few steps have a stall."""
    return step_or_recording(evidence) if stalls.in_most else "of the time"


def stall_gain(
    evidence: Evidence,
    stalls: StallCost,
    basis: str,
    floor_means: str,
    realised: tuple[float, float],
    exposed: float = 1.0,
) -> Gain | None:
    """Return the gain without these stalls: of the median step if most steps have one, else of the mean step."""
    if not stalls.in_most:
        return mean_step_gain(stalls.step_mean_ns, round(stalls.mean_ns * exposed), basis, floor_means, realised)
    lost_ns = min(evidence.step_ns - 1, round(stalls.typical_ns * exposed))
    return gain_without_interruptions(evidence.step_ns, lost_ns, basis, floor_means, realised[0])


def gain_without_interruptions(step_ns: int, lost_ns: int, basis: str, floor_means: str, worst: float) -> Gain:
    """Return the gain of removing interruptions: the rest of the step speeds up too, as it no longer finds cold caches.

    The speed-up depends on the length of the interruption: after 190 ms of garbage collection, 6 ms of work took 10 ms.
    """
    rest_ns = max(1, step_ns - lost_ns)
    warm_ns = with_warm_caches_ns(rest_ns, step_ns)
    return Gain(
        step_ns=step_ns,
        best_ns=warm_ns,
        worst_ns=max(warm_ns, round(step_ns - worst * lost_ns)),
        floor_ns=warm_ns,
        basis=basis,
        floor_assumes=floor_means,
        cold_floor_ns=rest_ns,
    )


def mean_step_gain(
    step_ns: int, saved_ns: int, basis: str, floor_means: str, realised: tuple[float, float] = (0.7, 1.0)
) -> Gain | None:
    """Return the gain of removing a rare cause, for the mean step; None if nothing would be saved."""
    if not 0 < saved_ns < step_ns:
        return None
    floor_ns = with_warm_caches_ns(step_ns - saved_ns, step_ns)
    return Gain(
        step_ns=step_ns,
        best_ns=round(step_ns - realised[1] * (step_ns - floor_ns)),
        worst_ns=round(step_ns - realised[0] * saved_ns),
        floor_ns=floor_ns,
        basis=f"{basis}, averaged over all steps",
        floor_assumes=floor_means,
        cold_floor_ns=step_ns - saved_ns,
        is_mean=True,
    )


def _kind(trigger: str, explicit: bool) -> str:
    if explicit:
        return f"calls of {trigger}"
    young = {"generation 0": "the youngest objects", "generation 1": "young objects"}
    return f"searches of {young.get(trigger, 'all objects')}"


def _without_gc_calls(location: str) -> str:
    return (
        f"# {location or 'in the loop'}: remove gc.collect(); if you need it, call this instead\n"
        "import gc\n\n"
        "def collect_sometimes(step, every=1000):\n"
        "    if step % every == 0:\n"
        "        gc.collect()"
    )


def _with_gc_freeze() -> str:
    return (
        "import gc\n\n"
        "gc.collect()\n"
        "gc.freeze()   # before the loop: existing objects are not searched again\n"
        "gc.disable()  # no automatic collections\n\n"
        "def collect_sometimes(step, every=1000):\n"
        "    if step % every == 0:\n"
        "        gc.collect()"
    )
