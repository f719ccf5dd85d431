"""Rules about the loop's own Python code: what ran in it, what held it up, and when nothing ran at all."""

from __future__ import annotations

from gpulab.analysis.host.frames import Frame, library_call
from gpulab.analysis.host.python_time import Outside, outside
from gpulab.analysis.host.threads import FULL_FRAC
from gpulab.intervals import Spans, merged
from gpulab.rules.engine.evidence import Evidence, warmed_ns
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, Unjudged, figures
from gpulab.rules.engine.phrases import duration_in_step, idle_share, range_over_steps
from gpulab.rules.host.garbage_collection import undisturbed
from gpulab.wording import duration, percent

PYTHON_WORTH_FRAC = 0.05  # as for the loader: a twentieth of a step
KNOWN_FRAC = 0.5  # a frame behind this much of the time is named as the cause
GIL_WORTH_FRAC = 0.05
IDLE_WORTH_FRAC = 0.10  # threads that wait for one another at the end of an operator look alike: below, it may be that
FULL = "all cores were busy, so the main thread may just have waited for one"
KNOWN_SAMPLES = 5  # a sample is taken where the thread lets go of the GIL: a few of them may all be of one place
FEW_CORES = 4  # with fewer, work that moves to a worker takes a core from a model that computes on the CPU


def host_python(evidence: Evidence) -> Finding | Unjudged | None:
    """The loop's own Python code runs while the device has nothing to do.

    Proof: stretches of 0.2 ms and more in which the main thread is inside no PyTorch call and no DataLoader, with
    the device idle, and the thread uses the CPU. The line is named from recorded Python frames, or from samples of
    the main thread. Confused with: the DataLoader (its time is its own part of the ledger), the short Python
    stretches between operators (`dispatch_bound`), collections of garbage, compilations, other threads that hold the
    GIL, and plain waiting, which are taken off first where they were recorded. What to do: move the work into the
    Dataset, so that workers do it, or do it once before.
    """
    told = evidence.once(outside)
    share = evidence.step_share(told.own_ns)
    if share < PYTHON_WORTH_FRAC:
        return None
    frame = evidence.python_frame
    named = _is_known(frame)
    if (doubt := _doubt(evidence, told, share, named)) is not None:
        return doubt
    confidence, why = _confidence(evidence, told, share, frame)
    where = f": {frame.name}" if frame is not None and named else " outside PyTorch"
    crowded = not evidence.on_gpu and (evidence.run.machine.cores_allowed or FEW_CORES) < FEW_CORES
    return Finding(
        parts=("python",),
        claim=f"{idle_share(evidence, share)} for Python code of the loop{where}.",
        evidence=(
            f"{duration_in_step(evidence, told.own_ns)} outside PyTorch and "
            f"DataLoader with the {'GPU' if evidence.on_gpu else 'model'} idle{_spread(evidence, told)}.",
            *_who(frame),
            *_computing(told),
        ),
        numbers=figures(exposed_frac=share, exposed_ns=told.own_ns),
        fix=_into_the_dataset(evidence, frame if named else None),
        advice="Work that depends only on the sample belongs in the Dataset, where workers do it beside the model. "
        "What cannot move: do it with NumPy or torch on the whole batch at once, or once before training.",
        gain=evidence.bounded(
            evidence.plain_ns(told.own_ns),
            f"the exposed Python time, removed by {'35' if crowded else '70'} to 100 %",
            "even no such code",
            (0.35 if crowded else 0.7, 1.0),
            evidence.ledger.spans["python"],
        ),
        confidence=confidence,
        why_confidence=why,
        shown_by=evidence.ledger.spans["python"],
    )


def gil_contention(evidence: Evidence) -> Finding | None:
    """Another Python thread of this process runs, and the loop waits for its turn.

    Python code of one process runs one thread at a time: who wants to run waits for the lock of the interpreter (the
    GIL), up to 5 ms each time PyTorch has done an operator. Proof: outside PyTorch, or inside a DataLoader without
    workers, the recorded thread uses no CPU although it waits for nothing, and meanwhile other Python threads of the
    process do. Confused with: Python code of the loop itself, which uses the CPU in the recorded thread
    (`host_python`); threads of PyTorch's operators, which are no Python threads; want of a core; plain waiting with
    nobody computing (`unexplained_idle`). What to do: give the other work a process of its own, or less to do.
    """
    told = evidence.once(outside)
    lost_ns = told.gil_ns + told.other_gil_ns
    share = evidence.step_share(lost_ns)
    if told.threads is None or share < GIL_WORTH_FRAC:
        return None
    who = told.threads
    confidence, why = LIKELY, ""
    if who.may_lack_a_core(share):
        confidence, why = SUSPECT, "all cores were busy, so part of it may be want of a core"
    named = f": {who.others_at}" if who.others_at else ""
    return Finding(
        parts=("python",),
        claim=f"{idle_share(evidence, share)} while another Python thread runs{named}.",
        evidence=(
            f"Python lets one thread run at a time. Other Python threads of this process used "
            f"{percent(who.others_frac)} of a core while the loop ran; the loop's own used "
            f"{percent(who.main_frac)}.",
            f"For {duration_in_step(evidence, lost_ns)} the loop neither computed nor waited for data or device.",
        ),
        numbers=figures(
            exposed_frac=share, exposed_ns=lost_ns, others_frac=who.others_frac or 0.0, main_frac=who.main_frac
        ),
        fix=_in_a_process(_function(who.others_at or "")),
        advice="A process has a lock of its own; what it shall work on goes through a multiprocessing.Queue. On macOS "
        "and Windows its function must be in a .py file. What must stay in a thread: let it sleep between rounds.",
        gain=_undisturbed(evidence, lost_ns),
        confidence=confidence,
        why_confidence=why,
        shown_by=_held_up(evidence, told),
    )


def unexplained_idle(evidence: Evidence) -> Finding | None:
    """The device is idle and so is the CPU: the loop waits for something that nothing here records.

    Proof: in the time outside PyTorch and DataLoader the recorded thread uses hardly any CPU, no other Python thread
    does either, and there were cores to be had: it sleeps, or waits for a lock, a file, the network or another
    process. The line that waits is named from samples. Confused with: Python code that computes (`host_python`),
    waits for batches (`no_workers`, `too_few_workers`), waits for the device, another thread that holds the GIL
    (`gil_contention`), want of a core. What to do: have it asked for beforehand, in a thread, so that the answer is
    there when the loop needs it; or not in every step.
    """
    told = evidence.once(outside)
    share = evidence.step_share(told.absent_ns)
    if told.threads is None or share < IDLE_WORTH_FRAC:
        return None
    spans = evidence.ledger.spans["python"]
    frame, asked = evidence.python_frame, library_call(evidence.run, spans)
    named = frame is not None and frame.frac >= KNOWN_FRAC  # who waits has let go of the GIL: samples find it there
    confidence, why = (LIKELY, "") if named else (SUSPECT, "what it waited for was not recorded")
    device = "GPU and CPU idle" if evidence.on_gpu else "The CPU is idle"
    where = f", waiting in {frame.name}" if frame is not None and named else ": the loop waits for something"
    return Finding(
        parts=("python",),
        claim=f"{device} {percent(share)} of each step{where}.",
        evidence=(
            f"For {duration_in_step(evidence, told.absent_ns)} nothing ran: no operator, no DataLoader, no Python "
            "code. "
            f"The loop's thread used the CPU {percent(told.threads.main_frac)} of the time.",
            *_who(frame),
            *((f"There it calls {asked}.",) if asked else ()),
        ),
        numbers=figures(exposed_frac=share, exposed_ns=told.absent_ns, main_frac=told.threads.main_frac),
        fix=_ahead((_function(frame.name) if frame is not None and named else None) or "ask"),
        advice="It waits for a lock, the network, a file or another program. Take the wait out of the loop, or ask for "
        "the next answer while the model works on this one.",
        gain=_hidden(evidence, evidence.plain_ns(told.absent_ns)),
        confidence=confidence,
        why_confidence=why,
        shown_by=spans,
    )


def _doubt(evidence: Evidence, told: Outside, share: float, named: bool) -> Unjudged | None:
    """Why the time outside PyTorch may have another cause than the loop's Python code, if it may."""
    if named:
        return None
    if _cores_were_full(evidence, told, share):
        why = FULL
        fix = "profile with fewer workers, or fewer threads: torch.set_num_threads(1)"
    elif evidence.steps.few:
        why = "there are too few steps to tell a loop from its surroundings, and which Python code ran is not recorded"
        fix = "record more steps, or Python frames too: --level deep"
    else:
        return None
    return Unjudged(
        why=f"{percent(share)} of the time is outside PyTorch, but {why}",
        fix=fix,
        open_frac=share,
    )


def _confidence(evidence: Evidence, told: Outside, share: float, frame: Frame | None) -> tuple[str, str]:
    if frame is None:
        return SUSPECT, "what ran there was not recorded"
    if _cores_were_full(evidence, told, share):
        return LIKELY, FULL
    return CERTAIN if _is_known(frame) else LIKELY, ""


def _is_known(frame: Frame | None) -> bool:
    """Whether the frame may be named as what ran there."""
    return frame is not None and frame.frac >= KNOWN_FRAC and (frame.samples or KNOWN_SAMPLES) >= KNOWN_SAMPLES


def _cores_were_full(evidence: Evidence, told: Outside, share: float) -> bool:
    """All cores were busy, and nothing tells that the recorded thread had one of them for most of that time."""
    who = told.threads
    if who is None:
        return evidence.feeding is not None and (evidence.feeding.cores_frac or 0) >= FULL_FRAC
    return who.may_lack_a_core(share)


def _who(frame: Frame | None) -> tuple[str, ...]:
    if frame is None:
        return ()
    how = "by recorded Python frames" if frame.by == "recorded" else f"in {frame.samples} samples of the main thread"
    return (f"{percent(frame.frac)} of that time is in {frame.name} ({how}).",)


def _spread(evidence: Evidence, told: Outside) -> str:
    """How it varies over the steps; where something was taken off, that is not known of single steps."""
    return f" ({range_over_steps(evidence, 'python')})" if told.own_ns == told.python_ns else ""


def _computing(told: Outside) -> tuple[str, ...]:
    """Whether the thread used the CPU, and what was taken off."""
    off = [
        f"{duration(dur_ns)} {what}"
        for dur_ns, what in (
            (told.collecting_ns, "of garbage collections"),
            (told.compiling_ns, "of compilations"),
            (told.gil_ns, "in which another Python thread ran"),
            (told.absent_ns, "of waiting"),
        )
        if dur_ns > told.python_ns // 50
    ]
    return (f"Not counted in it: {', '.join(off)}.",) if off else ()


def _held_up(evidence: Evidence, told: Outside) -> Spans:
    """When it happened, as well as is known: where the loop was outside PyTorch, or built a batch."""
    spans = evidence.ledger.spans
    return merged(spans["python"], spans["loader"]) if told.other_gil_ns else spans["python"]


def _undisturbed(evidence: Evidence, lost_ns: int) -> Gain:
    basis = "the time lost to the other threads, removed by 70 to 100 %"
    return undisturbed(evidence.step_ns, evidence.plain_ns(lost_ns), basis, "even no other thread", 0.7)


def _hidden(evidence: Evidence, waits_ns: int) -> Gain:
    """Asked for beforehand, a wait is hidden behind the rest of the step, at most as much as that is long."""
    step_ns = evidence.step_ns
    left_ns = max(1, step_ns - waits_ns)
    floor_ns = left_ns if evidence.on_gpu else warmed_ns(left_ns, step_ns)
    return Gain(
        step_ns=step_ns,
        best_ns=min(step_ns, max(floor_ns, waits_ns)),
        worst_ns=round(step_ns - 0.7 * min(waits_ns, left_ns)),
        floor_ns=floor_ns,
        basis="the wait, hidden behind the rest of the step by 70 to 100 %",
        floor_means="even no waiting",
    )


def _into_the_dataset(evidence: Evidence, frame: Frame | None) -> str:
    name = _function(frame.name) if frame else None
    loader = next(iter(evidence.run.loaders), None)
    workers = max(1, min(4, int(evidence.run.machine.cores_allowed or 2) - 1))
    batch = loader.batch_size if loader and loader.batch_size else 32
    made = f"batch_size={batch}, shuffle=True, num_workers={workers}, persistent_workers=True)"
    return (
        "from torch.utils.data import DataLoader, Dataset\n\n"
        + ("" if name else "def preprocess(sample): return sample  # in its place: what the loop does with one\n\n")
        + "class Prepared(Dataset):  # the DataLoader's workers do the work, beside the model\n"
        "    def __init__(self, data): self.data = data\n"
        "    def __len__(self): return len(self.data)\n"
        "    def __getitem__(self, index):\n"
        "        sample, *rest = self.data[index]\n"
        f"        return {name or 'preprocess'}(sample), *rest  # one sample instead of a batch\n\n"
        + (
            f"{evidence.names.loader} = DataLoader(Prepared({evidence.names.dataset}),\n    {made}"
            if loader
            else f"def batches(samples):  # samples: what the loop goes over now\n"
            f"    return DataLoader(Prepared(samples), {made}"
        )
    )


def _in_a_process(name: str | None) -> str:
    stub = "" if name else "def work(): pass  # in its place: what the thread does now\n\n"
    return (
        f"import multiprocessing\n\n{stub}"
        f"# instead of threading.Thread(target={name or 'work'}): a process does not share the loop's lock\n"
        f"helper = multiprocessing.Process(target={name or 'work'}, daemon=True)\n"
        "helper.start()"
    )


def _ahead(name: str) -> str:
    return (
        "from concurrent.futures import ThreadPoolExecutor\n\n"
        "def ahead(ask, questions):  # asks for the next answer while the model works on this one\n"
        "    with ThreadPoolExecutor(1) as pool:\n"
        "        pending = None\n"
        "        for question in questions:\n"
        "            asked = pool.submit(ask, question)\n"
        "            if pending is not None:\n"
        "                yield pending.result()\n"
        "            pending = asked\n"
        "        if pending is not None:\n"
        "            yield pending.result()\n\n"
        f"# for answer in ahead({name}, questions): the answer is there when the loop needs it"
    )


def _function(frame: str) -> str | None:
    """The function's name in "name (file.py:12)" or "file.py(12): name"; None where the line is in none."""
    name = frame.split(": ")[-1].split(" (")[0]
    return name if name.isidentifier() else None
