"""Rules about host time outside PyTorch: the loop's own Python code, GIL contention, and unexplained waits."""

from __future__ import annotations

from gpulab.analysis.host.cpu_use import FULL_FRAC
from gpulab.analysis.host.frames import KNOWN_FRAC, Frame, library_call
from gpulab.analysis.host.gap_neighbors import gap_neighbors
from gpulab.analysis.host.other_programs import cores_used_by_others
from gpulab.analysis.host.python_time import PythonTime, classify_python_time
from gpulab.analysis.steps.ledger import DISPATCH_KEYS
from gpulab.analysis.steps.sampled_lines import MIN_SAMPLES
from gpulab.intervals import Spans, union_of
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, Unjudged, known_numbers
from gpulab.rules.engine.phrases import duration_in_step, idle_share, range_over_steps, step_or_recording, step_spends
from gpulab.rules.host.garbage_collection import gain_without_interruptions
from gpulab.rules.host.outside_model import includes_python
from gpulab.wording import count, duration, percent

_MIN_PYTHON_FRAC = 0.05  # 5 % of a step, as for data loading
_MIN_GIL_FRAC = 0.05
_MIN_IDLE_FRAC = 0.10  # below it, threads that wait for each other at the end of an operator look the same
_MIN_SAMPLES_OF_WAIT = 3  # of the main thread, to name the line that waits
_CORES_FULL = "all cores were busy, so the main thread may have waited for a core"
_ENTRY_POINTS = {"main", "run", "train", "fit", "train_step", "training_step", "forward", "wrapper"}  # call the loop
_MIN_PAIR_FRAC = 0.3
_WORTH_A_WORKER_NS = 2_000_000  # per step; see gpulab.replay.worker_count_model.HANDOVER_NS
_FEW_CORES = 4  # with fewer cores, work moved to a worker takes a core from a model on the CPU


def host_python(evidence: Evidence) -> Finding | Unjudged | None:
    """Python code in the training loop, outside PyTorch, runs while the device is idle.

    Proof: intervals of at least 0.2 ms in which the main thread is inside no PyTorch call and no DataLoader, the device
    is idle, and the thread uses the CPU. The line is named from recorded Python frames or from samples of the main
    thread.

    Confused with: the DataLoader, which is a separate part of the ledger; the short Python code between operators
    (`dispatch_bound`); garbage collection, compilation, other threads that hold the GIL, and waiting, all of which are
    subtracted first if they were recorded.

    What to do: do the work once before training, or on whole batches. Work of several milliseconds per batch can move
    to the Dataset, where workers do it.
    """
    times = evidence.cached(classify_python_time)
    code_ns = evidence.unprofiled_ns(times.user_code_ns, "python")
    share = code_ns / evidence.step_ns
    if share < _MIN_PYTHON_FRAC or includes_python(evidence):
        return None
    frame = evidence.python_frame
    is_known = frame is not None and frame.is_known
    if (unjudged := _unjudged_reason(evidence, times, share, is_known)) is not None:
        return unjudged
    confidence, why = _confidence(evidence, times, share, frame)
    code = f"Python code in {frame.name}" if frame is not None and is_known else "Python code outside PyTorch"
    few_cores = not evidence.on_gpu and (evidence.run.machine.cores_allowed or _FEW_CORES) < _FEW_CORES
    return Finding(
        ledger_parts=("python",),
        claim=f"{idle_share(evidence, share, code)}.",
        evidence=(
            f"{step_spends(evidence, code_ns)} in code outside PyTorch and the DataLoader, while the "
            f"{'GPU is idle' if evidence.on_gpu else 'model waits'}{_range(evidence, times)}.",
            *(_frame_evidence(frame) if is_known else _operators_around(evidence)),
            *_subtracted_times(times),
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=code_ns),
        advice=_move_advice(evidence, times, frame if is_known else None),
        gain=evidence.gain_of_removing(
            code_ns,
            f"removing {'35' if few_cores else '70'} to 100 % of the time in this Python code",
            "no such Python code",
            (0.35 if few_cores else 0.7, 1.0),
            evidence.ledger.spans["python"],
        ),
        confidence=confidence,
        confidence_reason=why,
        spans=evidence.ledger.spans["python"],
    )


def gil_contention(evidence: Evidence) -> Finding | None:
    """Another Python thread of this process holds the GIL, and the training loop waits for it.

    Python runs one thread of a process at a time. A thread that wants to run waits for the global interpreter lock
    (GIL), up to 5 ms after each PyTorch operator that released it.

    Proof: outside PyTorch, or inside a DataLoader without workers, the main thread uses no CPU although it waits for
    nothing, and other Python threads of the process use the CPU meanwhile.

    Confused with: the loop's own Python code, which uses the CPU in the main thread (`host_python`); PyTorch's intra-op
    threads, which are no Python threads; a lack of cores; waiting while no thread computes (`unexplained_idle`).

    What to do: move the other work to a separate process, or do less of it.
    """
    times = evidence.cached(classify_python_time)
    lost_ns = times.gil_ns + times.other_gil_ns
    parts = _contended_parts(evidence, times)
    share = evidence.step_share(lost_ns, *parts)
    if times.threads is None or share < _MIN_GIL_FRAC:
        return None
    threads = times.threads
    confidence, why = LIKELY, ""
    if threads.may_wait_for_core(share):
        confidence, why = SUSPECT, "all cores were busy, so part of this may be a wait for a core"
    location = f": {threads.others_line}" if threads.others_line else ""
    return Finding(
        ledger_parts=parts,
        claim=f"{idle_share(evidence, share, 'another Python thread that holds the GIL')}{location}.",
        evidence=(
            f"Other Python threads of this process used {percent(threads.others_frac)} of a core while the loop ran; "
            f"the main thread used {percent(threads.main_frac)}. Only one thread can hold the GIL at a time.",
            f"For {duration_in_step(evidence, evidence.unprofiled_ns(lost_ns, *parts))} "
            "the main thread neither computed nor waited for data or the "
            "device.",
        ),
        numbers=known_numbers(
            exposed_frac=share, exposed_ns=lost_ns, others_frac=threads.others_frac or 0.0, main_frac=threads.main_frac
        ),
        advice=f"Run {_function_name(threads.others_line or '') or 'the work of that thread'} in a "
        "multiprocessing.Process instead of a threading.Thread: a separate process has its own GIL. Pass work to it "
        "through a multiprocessing.Queue. On macOS and Windows its function must be in a .py file. If the work must "
        "stay in a thread, let it sleep between rounds.",
        gain=_gain_without_threads(evidence, evidence.unprofiled_ns(lost_ns, *parts)),
        confidence=confidence,
        confidence_reason=why,
        spans=_contention_spans(evidence, times),
    )


def unexplained_idle(evidence: Evidence) -> Finding | None:
    """The device and the CPU are both idle: the loop waits for something that the profiler does not record.

    Proof: outside PyTorch and the DataLoader, the main thread uses hardly any CPU, no other Python thread does either,
    and cores were free: the thread sleeps, or waits for a lock, a file, the network or another process. The line that
    waits is named from samples.

    Confused with: Python code that computes (`host_python`); waits for batches (`no_workers`, `too_few_workers`); waits
    for the device; another thread that holds the GIL (`gil_contention`); a lack of cores.

    What to do: request the result in advance, in a thread, so that it is there when the loop needs it; or request it
    less often.
    """
    times = evidence.cached(classify_python_time)
    wait_ns = evidence.unprofiled_ns(times.absent_ns, "python")
    share = wait_ns / evidence.step_ns
    if times.threads is None or share < _MIN_IDLE_FRAC:
        return None
    spans = evidence.ledger.spans["python"]
    frame, library_function = evidence.python_frame, library_call(evidence.run, spans)
    # A waiting thread has released the GIL, so samples find it.
    is_known = frame is not None and frame.frac >= KNOWN_FRAC and _has_enough_samples(frame)
    confidence, why = (LIKELY, "") if is_known else (SUSPECT, "the reason for the wait was not recorded")
    device = "GPU and CPU" if evidence.on_gpu else "the CPU"
    wait = _wait_in(frame.name, library_function) if frame is not None and is_known else "A wait of unknown cause"
    return Finding(
        ledger_parts=("python",),
        claim=f"{wait} leaves {device} idle for {percent(share)} {step_or_recording(evidence)}.",
        evidence=(
            f"For {duration_in_step(evidence, wait_ns)} no operator, DataLoader or Python code ran. "
            f"The main thread used the CPU {percent(times.threads.main_frac)} of the time.",
            *_frame_evidence(frame),
            *((f"That line calls {library_function}.",) if library_function else ()),
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=wait_ns, main_frac=times.threads.main_frac),
        fix=_prefetch_code(name) if (name := _function_name(frame.name) if frame and is_known else None) else "",
        advice="The loop sleeps, or waits for a lock, the network, a file or another process. Move the wait out of the "
        "loop, or request the next result while the model works on this one.",
        gain=_overlap_gain(evidence, wait_ns, 0.7 if is_known else 0.0),
        confidence=confidence,
        confidence_reason=why,
        spans=spans,
    )


def _wait_in(line: str, library_function: str | None) -> str:
    """Return the wait with its line and, if the line calls a library, the function that waits."""
    return f"Waiting in {library_function}, called by {line}," if library_function else f"A wait in {line}"


def _has_enough_samples(frame: Frame) -> bool:
    """Whether the line of a wait is more than chance: one or two samples may show any line."""
    return frame.source == "recorded" or (frame.samples or 0) >= _MIN_SAMPLES_OF_WAIT


def _unjudged_reason(evidence: Evidence, times: PythonTime, share: float, is_known: bool) -> Unjudged | None:
    """Return why the time outside PyTorch may have a cause other than Python code in the loop; None if it has not."""
    if is_known:
        return None
    if _cores_were_full(evidence, times, share):
        why = _CORES_FULL
        fix = "profile with fewer workers, or fewer threads: torch.set_num_threads(1)"
    elif evidence.steps.too_few:
        why = (
            "this code may be around the loop instead of in it: too few steps and no Python frames were recorded to "
            "tell"
        )
        fix = 'record more steps, or record Python frames: --level deep, in scripts gpulab.profile(level="deep")'
    else:
        return None
    return Unjudged(
        reason=f"{percent(share)} of the time is in Python code outside PyTorch, but {why}",
        fix=fix,
        unexplained_frac=share,
    )


def _confidence(evidence: Evidence, times: PythonTime, share: float, frame: Frame | None) -> tuple[str, str]:
    if frame is None:
        return SUSPECT, "the code that ran was not recorded"
    if _cores_were_full(evidence, times, share):
        return LIKELY, _CORES_FULL
    return CERTAIN if frame.is_known else LIKELY, ""


def _cores_were_full(evidence: Evidence, times: PythonTime, share: float) -> bool:
    """Whether all cores were busy and the main thread may not have had one for most of that time."""
    threads = times.threads
    if threads is None:
        return evidence.loading is not None and (evidence.loading.cores_frac or 0) >= FULL_FRAC
    return threads.may_wait_for_core(share)


def _frame_evidence(frame: Frame | None) -> tuple[str, ...]:
    if frame is None:
        return ()
    if frame.source == "recorded":
        return (f"{percent(frame.frac)} of that time is in {frame.name} (by recorded Python frames).",)
    samples = frame.samples or 0
    if samples < MIN_SAMPLES:
        inside = round(frame.frac * samples)
        verb = "is" if inside == 1 else "are"
        return (f"{inside} of {count(samples, 'sample')} of the main thread in that time {verb} in {frame.name}.",)
    return (
        f"{percent(frame.frac)} of that time is in {frame.name} (in {count(samples, 'sample')} of the main thread).",
    )


def _range(evidence: Evidence, times: PythonTime) -> str:
    """Return the range over steps; empty if time was subtracted, as the result is unknown for single steps."""
    return f" ({range_over_steps(evidence, 'python')})" if times.user_code_ns == times.python_ns else ""


def _subtracted_times(times: PythonTime) -> tuple[str, ...]:
    """Return the time that was subtracted because the thread did not run the loop's own code."""
    subtracted = [
        f"{duration(dur_ns)} {reason}"
        for dur_ns, reason in (
            (times.own_ns, "of gpulab itself, which is slow while Python frames are recorded"),
            (times.collecting_ns, "of garbage collection"),
            (times.compiling_ns, "of compilation"),
            (times.gil_ns, "in which another Python thread held the GIL"),
            (times.absent_ns, "of waiting"),
        )
        if dur_ns > times.python_ns // 50
    ]
    return (f"Not included: {', '.join(subtracted)}.",) if subtracted else ()


def _contended_parts(evidence: Evidence, times: PythonTime) -> tuple[str, ...]:
    """Return the parts of the ledger in which the main thread waits for the GIL."""
    if not times.other_gil_ns:
        return ("python",)
    operators = ("compute",) if evidence.ledger.device == "cpu" else ()
    return ("python", "loader", *operators, *DISPATCH_KEYS)


def _contention_spans(evidence: Evidence, times: PythonTime) -> Spans:
    """Return when the contention occurred, as far as known: outside PyTorch, or also inside the DataLoader."""
    spans = evidence.ledger.spans
    return union_of(spans["python"], spans["loader"]) if times.other_gil_ns else spans["python"]


def _gain_without_threads(evidence: Evidence, lost_ns: int) -> Gain:
    basis = "removing 70 to 100 % of the time lost to other threads"
    return gain_without_interruptions(evidence.step_ns, lost_ns, basis, "no other Python thread", 0.7)


def _overlap_gain(evidence: Evidence, wait_ns: int, least_frac: float) -> Gain:
    """Return the gain of requesting a result in advance: the wait overlaps with the rest of the step.

    `least_frac`: the share of it that surely overlaps; none if it is unknown what waits.
    """
    step_ns = evidence.step_ns
    rest_ns = max(1, step_ns - wait_ns)
    floor_ns = rest_ns if evidence.on_gpu else with_warm_caches_ns(rest_ns, step_ns)
    return Gain(
        step_ns=step_ns,
        best_ns=min(step_ns, max(floor_ns, wait_ns)),
        worst_ns=round(step_ns - least_frac * min(wait_ns, rest_ns)),
        floor_ns=floor_ns,
        basis=f"overlapping {'70 to 100 %' if least_frac else 'up to all'} of the wait with the rest of the step",
        floor_assumes="no wait",
        cold_floor_ns=rest_ns,
    )


def _operators_around(evidence: Evidence) -> tuple[str, ...]:
    """Return between which operators most of the time lies, if one pair of them stands out."""
    around = gap_neighbors(evidence.run, evidence.ledger.spans["python"])
    if around is None or around.frac < _MIN_PAIR_FRAC:
        return ()
    names = f"the operators {around.before} and {around.after}, in this order"
    if around.before == around.after:
        names = f"two calls of {around.before}"
    return (f"{percent(around.frac)} of that time lies between {names}.",)


def _move_advice(evidence: Evidence, times: PythonTime, frame: Frame | None) -> str:
    """Return where else the code can run: before training, on whole batches, or in the workers of a DataLoader.

    No code is printed: whether the function takes one sample or a batch cannot be read from a recording.
    """
    name = _function_name(frame.name) if frame else None
    action = f"Do the work of {name}() once" if name else "Do this work once"
    once = f"{action} before training, or with NumPy or torch on the whole batch at once."
    per_step_ns = evidence.unprofiled_ns(times.user_code_ns, "python")
    has_workers = any(loader.workers for loader in evidence.run.loaders)
    if per_step_ns < _WORTH_A_WORKER_NS:
        if has_workers:
            return once
        return f"{once} Workers of a DataLoader would hardly help: taking a batch from a worker takes up to 1.5 ms."
    workers = f"{once} If it prepares samples, move it to {_worker_place(evidence)}."
    if evidence.on_gpu:
        return workers
    return f"{workers} Measure the result: on a CPU, workers and model share the cores."


def _worker_place(evidence: Evidence) -> str:
    loader = evidence.loading.loader if evidence.loading else next(iter(evidence.run.loaders), None)
    if loader is not None and loader.workers:
        return "the Dataset or the collate_fn of the DataLoader, whose workers then do it while the model computes"
    others = cores_used_by_others(evidence.run, evidence.steps, evidence.steps.interior) or 0.0
    number = max(1, min(4, int((evidence.run.machine.cores_allowed or 2) - others) - 1))
    place = "a Dataset that a DataLoader reads" if loader is None else "the Dataset or the collate_fn of the DataLoader"
    return f"{place}, and set num_workers={number}: workers then do it while the model computes"


def _prefetch_code(name: str) -> str:
    """Return code that requests the next result while the model works on the current one."""
    return (
        "from concurrent.futures import ThreadPoolExecutor\n\n"
        "def prefetch(request, inputs):  # requests the next result while the model works on this one\n"
        "    with ThreadPoolExecutor(1) as pool:\n"
        "        pending = None\n"
        "        for value in inputs:\n"
        "            future = pool.submit(request, value)\n"
        "            if pending is not None:\n"
        "                yield pending.result()\n"
        "            pending = future\n"
        "        if pending is not None:\n"
        "            yield pending.result()\n\n"
        f"# for result in prefetch({name}, inputs): the result is there when the loop needs it"
    )


def _function_name(frame: str) -> str | None:
    """Return the function name in "name (file.py:12)" or "file.py(12): name"; None for a line in no function.

    A function that contains the loop is None, too: it cannot be called with one sample.
    """
    name = frame.split(": ")[-1].split(" (")[0]
    return name if name.isidentifier() and name not in _ENTRY_POINTS else None
