"""Rules about what holds all Python code up: collections of garbage. What is asked of any stall stands here too."""

from __future__ import annotations

from gpulab.analysis.host.gc_and_compilation import Stalling, collecting
from gpulab.rules.engine.evidence import Evidence, warmed_ns
from gpulab.rules.engine.finding import CERTAIN, Finding, Gain, figures
from gpulab.rules.engine.phrases import of_each_step
from gpulab.wording import duration, percent

GC_WORTH_FRAC = 0.05  # as for the rest of the loop's Python: a twentieth of a step
ASKED = "gc.collect()"


def garbage_collection(evidence: Evidence) -> Finding | None:
    """Python searches its objects for garbage in the midst of the loop, and nothing else runs meanwhile.

    Proof: the interpreter itself tells when a collection begins and ends, and whether the code asked for it. What of
    it the device covers with work of its own is not counted. Confused with: Python code of the loop (`host_python`,
    which leaves this time out) and a pause of another kind at the same steps (`periodic_stalls`, likewise). What to
    do: where the loop calls gc.collect(), take that out; where Python decides, have it leave alone what was made
    before the loop (gc.freeze) and collect when it suits.
    """
    told = evidence.once(collecting)
    if told is None:
        return None
    exposed = 1.0 if told.exposed_frac is None else told.exposed_frac
    share = share_of(told) * exposed
    if share < GC_WORTH_FRAC:
        return None
    what, often = told.whats[0]
    asked = what.startswith(ASKED)
    where = what.removeprefix(ASKED).removeprefix(" in ")
    who = f"the loop calls gc.collect(){f' ({where})' if where else ''}" if asked else "Python collects garbage"
    return Finding(
        parts=("python",),
        claim=f"{percent(share)} {of_what(evidence, told)} is lost because {who}.",
        evidence=(
            f"{told.count} collections in {told.hit} of {told.steps} steps, {duration(told.mean_ns)} of an average "
            f"step of {duration(told.step_mean_ns)}; the longest takes {duration(told.longest_ns)}.",
            f"Most of that time goes to {often} {_kind(what, asked)}.",
        ),
        numbers=figures(exposed_frac=share, exposed_ns=told.per_step_ns * exposed, collections=told.count),
        fix=_taken_out(where) if asked else _frozen(),
        advice="PyTorch gives tensors back at once without it; only objects that refer to one another in a circle need "
        "it."
        if asked
        else "Call collect_sometimes(step) in the loop. A collection takes the longer the more objects "
        "there are: fewer small ones (tuples, dicts, lists of lists) help as well.",
        gain=per_step_gain(evidence, told, "the collections, removed by 80 to 100 %", "even none", (0.8, 1.0), exposed),
        confidence=CERTAIN,
        shown_by=told.spans,
    )


def share_of(told: Stalling) -> float:
    """What stalls take of the steps they were looked for in, 0-1: on average, as they may be rare."""
    return min(1.0, told.mean_ns / max(1, told.step_mean_ns))


def of_what(evidence: Evidence, told: Stalling) -> str:
    """What the share is a share of: what comes now and then is in few steps, and in those more than that."""
    return of_each_step(evidence) if told.in_most else "of the time"


def per_step_gain(
    evidence: Evidence,
    told: Stalling,
    basis: str,
    floor_means: str,
    realised: tuple[float, float],
    exposed: float = 1.0,
) -> Gain | None:
    """What a step without these stalls takes: the median one where most steps have one, else the average one."""
    if not told.in_most:
        return averaged(told.step_mean_ns, round(told.mean_ns * exposed), basis, floor_means, realised)
    lost_ns = min(evidence.step_ns - 1, round(told.typical_ns * exposed))
    return undisturbed(evidence.step_ns, lost_ns, basis, floor_means, realised[0])


def undisturbed(step_ns: int, lost_ns: int, basis: str, floor_means: str, worst: float) -> Gain:
    """The gain of taking away what interrupts: the rest is faster too, as it no longer finds cold caches.

    By how much follows from how long the interruptions are: after 190 ms of collecting, 6 ms of work took 10.
    """
    left_ns = max(1, step_ns - lost_ns)
    warm_ns = warmed_ns(left_ns, step_ns)
    return Gain(
        step_ns=step_ns,
        best_ns=warm_ns,
        worst_ns=max(warm_ns, round(step_ns - worst * lost_ns)),
        floor_ns=warm_ns,
        basis=basis,
        floor_means=floor_means,
    )


def averaged(
    step_ns: int, saved_ns: int, basis: str, floor_means: str, realised: tuple[float, float] = (0.7, 1.0)
) -> Gain | None:
    """The gain of what strikes now and then: of the average step."""
    if not 0 < saved_ns < step_ns:
        return None
    floor_ns = warmed_ns(step_ns - saved_ns, step_ns)
    return Gain(
        step_ns=step_ns,
        best_ns=round(step_ns - realised[1] * (step_ns - floor_ns)),
        worst_ns=round(step_ns - realised[0] * saved_ns),
        floor_ns=floor_ns,
        basis=f"averaged over all steps: {basis}",
        floor_means=floor_means,
        averaged=True,
    )


def _kind(what: str, asked: bool) -> str:
    if asked:
        return f"calls of {what}"
    young = {"generation 0": "the youngest objects", "generation 1": "young objects"}
    return f"searches of {young.get(what, 'all objects')}"


def _taken_out(where: str) -> str:
    return (
        f"# {where or 'in the loop'}: take gc.collect() out of the loop; where it must be, call this instead\n"
        "import gc\n\n"
        "def collect_sometimes(step, every=1000):\n"
        "    if step % every == 0:\n"
        "        gc.collect()"
    )


def _frozen() -> str:
    return (
        "import gc\n\n"
        "gc.collect()\n"
        "gc.freeze()   # before the loop: objects made so far are not searched again\n"
        "gc.disable()  # and none at a moment that Python picks\n\n"
        "def collect_sometimes(step, every=1000):\n"
        "    if step % every == 0:\n"
        "        gc.collect()"
    )
