"""A rule about CPU cores that other programs use at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.machine.core_sharing import (
    CoreSharing,
    DelayedOperators,
    UnevenSteps,
    core_sharing,
    delayed_operators,
    uneven_steps,
)
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import OTHER_THREADS, step_spends
from gpulab.run_facts import CLEAR_SLOWDOWN
from gpulab.wording import count, duration, number, percent

# Cores of other programs, and share of the loop in which the main thread waits for a core: with less, one thread was
# sometimes slower than two.
_MIN_OTHERS_CORES, _MIN_DELAYED_FRAC = 0.5, 0.3
# Findings about the time of operators, of which an unknown part is this wait.
_DISTORTED = (
    "device_bound",
    "dropout_on_cpu",
    "nchw_on_cpu",
    "no_bfloat16_on_cpu",
    "unfused_elementwise",
    "unfused_optimizer",
)
_MIN_FRAC = 0.5  # of a step in operators that may wait
# What remains of a step on one thread: of operators that do little but wait, of longer ones, and of all else, where
# the main thread waits for a core, too. Measured for four small models beside two kinds of programs on two cores:
# steps became 1.1 to 230 times as fast.
# At best, at worst, and at the bound:
_REMAINING = (0.003, 0.25, 0.05), (0.6, 0.95, 1.0), (0.002, 0.02, 0.02)
_MIN_UNEVENNESS = 1.5  # of the mean step to a fast one
# What remains of the fastest tenth of the steps on one thread. Measured for nineteen loops beside other programs, on
# two cores: 0.46 to 1.6 times as long; up to three times if steps are so short that the fastest ones never lose their
# core. At best, at worst, and at the bound:
_REMAINING_OF_FAST = 0.45, 1.6, 1 / 3
_REMAINING_OF_SHORT = 3.0
_SHORT_STEP_NS = 8_000_000  # as long as the scheduler lets a thread run


def shared_cpu(evidence: Evidence) -> Finding | None:
    """Other programs compute on the same cores, and operators on several threads wait for the thread without a core.

    Proof: other programs use cores while none is free, the main thread often waits for a core, and the untraced steps
    are uneven, or most of a step is spent in operators that are long enough to run on several threads. The confidence
    is high if an addition on all threads, measured right after the loop, takes many times as long as on one thread.

    Confused with: more threads than the machine has cores (`cpu_oversubscription`); operators that are simply
    expensive; a program on another core, which delays nothing.

    What to do: stop the other programs, or leave them their cores: use fewer threads. Operators then compute on fewer
    cores, but no longer wait for one.
    """
    proof = _proof(evidence)
    if proof is None:
        return None
    shared, uneven = proof.shared, proof.uneven
    return Finding(
        ledger_parts=("compute",) if proof.operators else (),
        claim=f"Other programs use {number(shared.others, 2)} of {count(int(shared.cores), 'CPU core')}: operators "
        f"on {shared.threads} threads wait for the thread that has no core.",
        evidence=_evidence(evidence, proof),
        numbers=known_numbers(
            others_cores=shared.others,
            waiting_ns=proof.waiting_ns,
            delayed_frac=shared.delayed_frac,
            parallel_ns=shared.parallel_ns,
            serial_ns=shared.serial_ns,
            fast_step_ns=None if uneven is None else uneven.fast_ns,
            mean_step_ns=None if uneven is None else uneven.mean_ns,
        ),
        fix=f"import torch\n\ntorch.set_num_threads({_free_cores(shared)})  # as long as the other programs run",
        advice="Better still, stop the other programs and record again: with them, the other findings are uncertain.",
        gain=_gain(evidence, proof),
        confidence=CERTAIN if proof.is_measured else SUSPECT,
        confidence_reason="" if proof.is_measured else "how long operators wait for a core was not measured",
        from_steps=False,
        distorts_others=proof.is_measured,
        caveats=(OTHER_THREADS,),
        explains=_DISTORTED,
    )


@dataclass(frozen=True, kw_only=True)
class _Proof:
    """What shows that operators wait for cores that other programs use."""

    shared: CoreSharing
    operators: DelayedOperators | None
    waiting_ns: int | None  # of a step, in operators that may wait; None without a ledger
    uneven: UnevenSteps | None  # None if the untraced steps are alike

    @property
    def is_measured(self) -> bool:
        """Whether an addition on all threads takes many times as long as on one."""
        return self.shared.slowdown >= CLEAR_SLOWDOWN


def _proof(evidence: Evidence) -> _Proof | None:
    shared = None if evidence.on_gpu else core_sharing(evidence.run, evidence.steps)
    if shared is None or shared.others < _MIN_OTHERS_CORES or shared.delayed_frac < _MIN_DELAYED_FRAC:
        return None
    if shared.threads <= _free_cores(shared):
        return None
    operators = evidence.cached(delayed_operators) if evidence.optional_ledger else None
    waiting_ns = _unprofiled(evidence, operators.short_ns + operators.long_ns) if operators else None
    uneven = uneven_steps(evidence.steps)
    uneven = uneven if uneven and uneven.slowdown >= _MIN_UNEVENNESS else None
    proof = _Proof(shared=shared, operators=operators, waiting_ns=waiting_ns, uneven=uneven)
    waits_long = proof.is_measured if waiting_ns is None else waiting_ns >= _MIN_FRAC * evidence.step_ns
    return proof if uneven or waits_long else None


def _evidence(evidence: Evidence, proof: _Proof) -> tuple[str, ...]:
    shared, operators, uneven = proof.shared, proof.operators, proof.uneven
    sentences = [f"The main thread waits for a core during {percent(shared.delayed_frac)} of the loop."]
    if uneven is not None:
        mean, fast = duration(uneven.mean_ns), duration(uneven.fast_ns)
        sentences.insert(0, f"Steps take {mean} on average, but the fastest 10 % of them {fast} or less.")
    elif operators is not None and proof.waiting_ns is not None:
        spent = f"{step_spends(evidence, proof.waiting_ns)} in {count(operators.count, 'operator')} of at least 0.2 ms."
        sentences.insert(0, spent)
    if proof.is_measured:
        sentences.append(
            f"Test right after the loop: the sum of two tensors took {duration(shared.parallel_ns)} on "
            f"{shared.threads} threads and {duration(shared.serial_ns)} on one thread."
        )
    return tuple(sentences)


def _free_cores(shared: CoreSharing) -> int:
    """Return the number of threads that leaves the other programs their cores."""
    return max(1, round(shared.cores - shared.others))


def _unprofiled(evidence: Evidence, traced_ns: int) -> int:
    return min(evidence.unprofiled_ns(traced_ns, "compute"), evidence.step_ns - 1)


def _gain(evidence: Evidence, proof: _Proof) -> Gain | None:
    if proof.uneven is not None:
        return _gain_of_fast_steps(proof.uneven, proof.shared, is_measured=proof.is_measured)
    return None if proof.operators is None else _gain_of_short_operators(evidence, proof.operators)


def _gain_of_short_operators(evidence: Evidence, operators: DelayedOperators) -> Gain:
    short_ns, long_ns = (_unprofiled(evidence, part_ns) for part_ns in (operators.short_ns, operators.long_ns))
    rest_ns = max(0, evidence.step_ns - short_ns - long_ns)
    best, worst, floor = (
        max(1, round(short * short_ns + longer * long_ns + rest * rest_ns)) for short, longer, rest in _REMAINING
    )
    return Gain(
        step_ns=evidence.step_ns,
        best_ns=best,
        worst_ns=min(worst, evidence.step_ns),
        floor_ns=floor,
        basis="how much faster other models became on another machine",
        floor_assumes="operators of at least 0.2 ms at hardly any cost, and no wait for a core elsewhere",
    )


def _gain_of_fast_steps(uneven: UnevenSteps, shared: CoreSharing, *, is_measured: bool) -> Gain:
    """Return the gain if threads wait for each other much longer in some steps than in the fastest ones.

    A program that does not share its cores has the others' cores, too: that is part of the bound. Without the
    measurement of an addition, steps may be uneven for another reason.
    """
    best, worst, floor = (frac * uneven.fast_ns for frac in _REMAINING_OF_FAST)
    if uneven.fast_ns < _SHORT_STEP_NS:
        worst = _REMAINING_OF_SHORT * uneven.fast_ns
    floor_ns = max(1, round(floor * (shared.cores - shared.others) / shared.cores))
    return Gain(
        step_ns=uneven.mean_ns,
        best_ns=max(floor_ns, round(best)),
        worst_ns=min(round(worst), uneven.mean_ns) if is_measured else uneven.mean_ns,
        floor_ns=floor_ns,
        basis="the fastest tenth of the steps, and how long other loops took on one thread",
        floor_assumes="no other program on the cores, and two thirds of the fastest steps spent waiting for a core",
        is_mean=True,
    )
