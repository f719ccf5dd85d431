"""A rule about CPU cores that other programs use at the same time."""

from __future__ import annotations

from gpulab.analysis.machine.core_sharing import CoreSharing, DelayedOperators, core_sharing, delayed_operators
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import OTHER_THREADS, step_spends
from gpulab.wording import count, duration, number, percent

# Cores of other programs, and share of the loop in which the main thread waits for a core: with less, one thread was
# sometimes slower than two.
_MIN_OTHERS_CORES, _MIN_DELAYED_FRAC = 0.5, 0.3
_MIN_SLOWDOWN = 5.0  # of an addition on all threads, which is faster than on one if cores are free
# Findings about the time of operators, of which an unknown part is this wait.
_DISTORTED = ("device_bound", "no_bfloat16_on_cpu", "unfused_elementwise", "unfused_optimizer")
_MIN_FRAC = 0.5  # of a step in operators that may wait
# What remains of a step on one thread: of operators that do little but wait, of longer ones, and of all else, where
# the main thread waits for a core, too. Measured for four small models beside two kinds of programs on two cores:
# steps became 1.1 to 230 times as fast.
# At best, at worst, and at the bound:
_REMAINING = (0.003, 0.25, 0.05), (0.6, 0.95, 1.0), (0.0, 0.0, 0.02)


def shared_cpu(evidence: Evidence) -> Finding | None:
    """Other programs compute on the same cores, and operators on several threads wait for the thread without a core.

    Proof: other programs use cores while none is free, the main thread often waits for a core, and most of a step is
    spent in operators that are long enough to run on several threads. The confidence is high if an addition on all
    threads, measured right after the loop, takes many times as long as on one thread.

    Confused with: more threads than the machine has cores (`cpu_oversubscription`); operators that are simply
    expensive; a program on another core, which delays nothing.

    What to do: stop the other programs, or leave them their cores: use fewer threads. Operators then compute on fewer
    cores, but no longer wait for one.
    """
    shared = None if evidence.on_gpu else core_sharing(evidence.run, evidence.steps)
    if shared is None or shared.others < _MIN_OTHERS_CORES or shared.delayed_frac < _MIN_DELAYED_FRAC:
        return None
    is_measured = shared.slowdown >= _MIN_SLOWDOWN
    operators = evidence.cached(delayed_operators) if evidence.optional_ledger else None
    waiting_ns = _unprofiled(evidence, operators.short_ns + operators.long_ns) if operators else None
    if shared.threads <= _free_cores(shared) or not (operators or is_measured):
        return None
    if waiting_ns is not None and waiting_ns < _MIN_FRAC * evidence.step_ns:
        return None
    return Finding(
        ledger_parts=("compute",) if operators else (),
        claim=f"Other programs use {number(shared.others, 2)} of {count(int(shared.cores), 'CPU core')}: operators "
        f"on {shared.threads} threads wait for the thread that has no core.",
        evidence=_evidence(evidence, shared, operators, waiting_ns),
        numbers=known_numbers(
            others_cores=shared.others,
            waiting_ns=waiting_ns,
            delayed_frac=shared.delayed_frac,
            parallel_ns=shared.parallel_ns,
            serial_ns=shared.serial_ns,
        ),
        fix=f"import torch\n\ntorch.set_num_threads({_free_cores(shared)})  # as long as the other programs run",
        advice="Better still, stop the other programs, or run one training at a time.",
        gain=_gain(evidence, operators) if operators else None,
        confidence=CERTAIN if is_measured else SUSPECT,
        confidence_reason="" if is_measured else "how long operators wait for a core was not measured",
        from_steps=False,
        caveats=(OTHER_THREADS,),
        explains=_DISTORTED,
    )


def _evidence(
    evidence: Evidence, shared: CoreSharing, operators: DelayedOperators | None, waiting_ns: int | None
) -> tuple[str, ...]:
    sentences = [f"The main thread waits for a core during {percent(shared.delayed_frac)} of the loop."]
    if operators is not None and waiting_ns is not None:
        spent = f"{step_spends(evidence, waiting_ns)} in {count(operators.count, 'operator')} of at least 0.2 ms."
        sentences.insert(0, spent)
    if shared.slowdown >= _MIN_SLOWDOWN:
        sentences.append(
            f"Right after the loop, an addition took {duration(shared.parallel_ns)} on {shared.threads} threads and "
            f"{duration(shared.serial_ns)} on one."
        )
    return tuple(sentences)


def _free_cores(shared: CoreSharing) -> int:
    """Return the number of threads that leaves the other programs their cores."""
    return max(1, round(shared.cores - shared.others))


def _unprofiled(evidence: Evidence, traced_ns: int) -> int:
    return min(evidence.unprofiled_ns(traced_ns, "compute"), evidence.step_ns - 1)


def _gain(evidence: Evidence, operators: DelayedOperators) -> Gain:
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
        floor_assumes="operators of at least 0.2 ms at no cost, and no wait for a core elsewhere",
    )
