"""Rules about communication between GPUs: exposed collectives and small all-reduce buckets."""

from __future__ import annotations

from gpulab.analysis.ranks.collectives import (
    SEND_RECEIVE,
    SMALL_BYTES,
    Buckets,
    ExposedCommunication,
    all_reduce_buckets,
    exposed_collective_time,
)
from gpulab.analysis.ranks.parallel_axis import CONTEXT, EXPERT, TENSOR
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, Unjudged, known_numbers
from gpulab.rules.engine.phrases import range_over_steps, step_or_recording, step_spends
from gpulab.rules.ranks.parallelism import Parallelism, ddp_code, find_parallelism, overlap_code
from gpulab.run_facts import bucket_sizes, count_from_fact
from gpulab.wording import count, duration, metric, percent, plural, size

# TensorBoard's profiler plug-in uses 10 %, TraceLens 5 %; the fix is a few arguments, so the lower one is used.
_MIN_COMMUNICATION_FRAC = 0.05
# Any link between two GPUs of one machine is faster, even PCIe 3.0 x16 (12 GB/s): a slower rate is mostly waiting.
_SLOW_LINK_BYTES_PER_S = 8e9
_SLOW_NETWORK_BYTES_PER_S = 1.25e9  # 10 Gbit/s
_LARGE_BUCKET_BYTES = 50 << 20  # twice DDP's default: the user set a larger bucket
_TAIL_FRAC = 0.5  # of the exposed time, in the last all-reduce: it should be split

_WAITING_FRAC = 0.2  # of the communication; less waiting is jitter

_MIN_SMALL_FRAC = 0.03  # the fix is one argument
_MANY_SMALL = 8  # DDP's first bucket is small on purpose; buffers and metrics add a few small all-reduces
_MANY_BUCKETS = 3  # if they are known to be DDP's: the first may be small, and the last holds what is left

_REMOVED_FRACS = 0.3, 0.9  # of the exposed time of small all-reduces
_REMOVED_OF_ALL_FRAC = 0.5  # of all their time, on a CPU; a judgement: 0.2 was measured for 19 buckets on two ranks
_MOST_OF_CPU_STEP = 0.9

_OF_LAYERS = (TENSOR, EXPERT, CONTEXT)  # these exchange activations, not gradients
_OPERATIONS = {
    "all-reduce": "all-reduces of results",
    "all-gather": "all-gathers",
    "reduce-scatter": "reduce-scatters of results",
    "all-to-all": "all-to-all exchanges",
    SEND_RECEIVE: "sends and receives",
}


def exposed_communication(evidence: Evidence) -> Finding | None:
    """Exposed communication: the GPU exchanges data with other GPUs, or waits for them, while no kernel runs.

    Proof: collectives (NCCL, RCCL or similar) with no concurrent kernel.

    Confused with: communication that overlaps with the backward pass, which costs nothing and is not counted; waiting
    for a straggler (`straggler`), which a single rank cannot distinguish from slow communication; many small
    collectives (`small_buckets`).

    What to do: start the exchange earlier, so that compute overlaps with it, and send fewer bytes.
    """
    share = evidence.part_share("communication")
    collectives = evidence.cached(exposed_collective_time)
    if collectives is None or share < _MIN_COMMUNICATION_FRAC:
        return None
    exposed_ns = evidence.typical_step.sum_ns("communication")
    kind = collectives.by_kind[0][0]
    parallelism = find_parallelism(evidence, kind, collectives.group_of(kind).axis)
    fix, advice = overlap_code(
        evidence, parallelism, half_bytes=collectives.float32, bucket_mb=_smaller_bucket_mb(collectives)
    )
    return Finding(
        ledger_parts=("communication",),
        claim=f"Exposed communication takes {percent(share)} {step_or_recording(evidence)}: "
        f"{_operations(kind, parallelism)} do not overlap with compute.",
        evidence=(
            f"{step_spends(evidence, exposed_ns)} in collectives with no concurrent "
            f"{'kernel' if evidence.on_gpu else 'operator'} "
            f"({range_over_steps(evidence, 'communication')}).",
            f"{percent(collectives.hidden_frac)} of all communication overlaps with compute.",
            *_time_by_kind(collectives),
            *_rate(evidence, collectives),
            *_last_all_reduce(collectives, parallelism),
            *_wait_evidence(evidence),
        ),
        numbers=known_numbers(
            exposed_frac=share,
            exposed_ns=exposed_ns,
            hidden_frac=collectives.hidden_frac,
            per_step=collectives.per_step,
        ),
        fix=fix,
        advice=advice,
        gain=_overlap_gain(evidence, collectives, exposed_ns),
        rewrites=evidence.applicable_rewrites("overlap"),
        confidence=CERTAIN,
        spans=collectives.spans,
        caveats=_caveats(evidence),
    )


def _overlap_gain(evidence: Evidence, collectives: ExposedCommunication, exposed_ns: int) -> Gain:
    basis = "overlapping or avoiding 20 to 80 % of the exposed communication"
    gain = evidence.gain_of_removing(exposed_ns, basis, "communication at no cost", (0.2, 0.8), collectives.spans)
    return evidence.gain_of_named_rewrites("overlap", gain)


def _operations(kind: str, parallelism: Parallelism) -> str:
    operations = _OPERATIONS.get(kind, "collectives")
    if parallelism.axis in _OF_LAYERS:
        return f"{operations.replace(' of results', '')} of {parallelism.axis}-parallel layers"
    return operations.replace("results", "gradients") if parallelism.is_training else operations


def _smaller_bucket_mb(collectives: ExposedCommunication) -> int | None:
    """Return DDP's default bucket size (in MB) if the last bucket is too large to overlap, else None."""
    is_large = collectives.tail_bytes is not None and collectives.tail_bytes > _LARGE_BUCKET_BYTES
    return 25 if is_large and collectives.tail_ns >= _TAIL_FRAC * collectives.exposed_ns else None


def _time_by_kind(collectives: ExposedCommunication) -> tuple[str, ...]:
    main_kinds = [(kind, dur_ns) for kind, dur_ns in collectives.by_kind if dur_ns >= 0.05 * collectives.exposed_ns]
    if len(main_kinds) < 2:
        return ()
    return (f"By kind, per step: {', '.join(f'{kind} {duration(dur_ns)}' for kind, dur_ns in main_kinds)}.",)


def _rate(evidence: Evidence, collectives: ExposedCommunication) -> tuple[str, ...]:
    if collectives.rate_bytes_per_s is None:
        return ()
    kind = collectives.by_kind[0][0]
    rate = f"Each {kind} moves its data at {metric(collectives.rate_bytes_per_s, 'B/s')}"
    ranks = _world_size(evidence)
    on_one_machine = ranks is not None and ranks <= len(evidence.run.machine.gpus)
    is_slow = collectives.rate_bytes_per_s < (_SLOW_LINK_BYTES_PER_S if on_one_machine else _SLOW_NETWORK_BYTES_PER_S)
    if not is_slow or evidence.arrivals is not None:  # the arrival times of all ranks show the waiting
        return (f"{rate}.",)
    if on_one_machine:
        return (f"{rate}; links inside a machine reach 12 GB/s or more: most of the time is likely waiting.",)
    return (f"{rate}: either the network between the machines is slow, or most of the time is waiting.",)


def _world_size(evidence: Evidence) -> int | None:
    return count_from_fact(evidence.run, "world_size")


def _last_all_reduce(collectives: ExposedCommunication, parallelism: Parallelism) -> tuple[str, ...]:
    if not parallelism.ddp or collectives.tail_ns < _TAIL_FRAC * collectives.exposed_ns:
        return ()
    size_text = f" ({size(collectives.tail_bytes)})" if collectives.tail_bytes else ""
    return (
        f"{duration(collectives.tail_ns)} of that is the last all-reduce of the step{size_text}, which has no "
        "backward pass left to overlap with.",
    )


def _wait_evidence(evidence: Evidence) -> tuple[str, ...]:
    """Return how much of the communication is waiting for other ranks, if all of them were recorded."""
    arrivals = evidence.arrivals
    if arrivals is None:
        return ()
    wait_ns = next(
        (wait for side, wait in zip(arrivals.ranks, arrivals.waits_ns, strict=True) if side.run is evidence.run), 0
    )
    if wait_ns < _WAITING_FRAC * evidence.ledger.median_ns("communication"):
        return ("Hardly any of it is waiting for other ranks: the exchange itself takes the time.",)
    ranks = len(arrivals.ranks)
    return (f"{duration(wait_ns)} of it is waiting for the last of the {ranks} ranks to arrive.",)


def _caveats(evidence: Evidence) -> tuple[str, ...]:
    if evidence.peers:
        return ()
    return (
        "A single rank cannot distinguish the exchange from waiting for a straggler; load the traces of all ranks "
        "together.",
    )


def small_buckets(evidence: Evidence) -> Finding | Unjudged | None:
    """Gradients are all-reduced in many small buckets, each of which costs a launch and a round between all GPUs.

    Proof: at least eight exposed all-reduces of less than 1 MiB per step; three, if they are known to be DDP's buckets.

    Confused with: DDP's first bucket, which is small on purpose; synchronised batch normalisation, whose statistics are
    small by nature; sharded inference, which all-reduces activations.

    What to do: use larger buckets, or DDP instead of one all-reduce per parameter.
    """
    parallelism = find_parallelism(evidence, "all-reduce")
    if not parallelism.is_training or parallelism.uses_sync_batch_norm:
        return None
    all_reduces = evidence.cached(all_reduce_buckets)
    if all_reduces is None:
        return _unknown_sizes(evidence)
    small_ns = evidence.unprofiled_ns(all_reduces.small_exposed_ns, "communication")
    share = small_ns / evidence.step_ns
    if all_reduces.small_per_step < _many_small(evidence) or share < _MIN_SMALL_FRAC:
        return None
    return Finding(
        ledger_parts=("communication",),
        claim=f"Exposed communication takes {percent(share)} {step_or_recording(evidence)}: gradients are all-reduced "
        "in "
        f"{round(all_reduces.small_per_step)} small buckets.",
        evidence=_bucket_evidence(evidence, all_reduces, small_ns),
        numbers=known_numbers(
            exposed_frac=share,
            exposed_ns=small_ns,
            per_step=all_reduces.small_per_step,
            median_bytes=all_reduces.median_bytes,
        ),
        fix=ddp_code(evidence, bucket_mb=_larger_bucket_mb(all_reduces), ddp=parallelism.ddp),
        advice=""
        if parallelism.ddp
        else "Remove the all_reduce of each parameter: DDP all-reduces buckets while the backward pass still runs.",
        gain=_larger_buckets_gain(evidence, all_reduces, small_ns),
        rewrites=evidence.applicable_rewrites(f"bucket_mb={_larger_bucket_mb(all_reduces)}"),
        confidence=LIKELY,
        spans=all_reduces.spans,
    )


def _larger_buckets_gain(evidence: Evidence, all_reduces: Buckets, small_ns: int) -> Gain:
    """Return the gain of larger buckets. On CPUs, exchanges also slow down what the same cores compute meanwhile."""
    if not evidence.on_gpu:
        # Exchanges may run during most of a step, which would not vanish without them.
        total_ns = max(small_ns, min(all_reduces.small_ns, round(_MOST_OF_CPU_STEP * evidence.step_ns)))
        return evidence.gain_of_removing(
            total_ns,
            "removing 30 % of the exposed time of small all-reduces, or half of all their time, in which they slow "
            "down the operators on the same cores",
            "small all-reduces that use no core",
            (_REMOVED_FRACS[0] * small_ns / total_ns, _REMOVED_OF_ALL_FRAC),
        )
    return evidence.gain_of_named_rewrites(
        f"bucket_mb={_larger_bucket_mb(all_reduces)}",
        evidence.gain_of_removing(
            small_ns,
            "removing 30 to 90 % of the exposed time of small all-reduces",
            "small all-reduces at no cost",
            _REMOVED_FRACS,
            all_reduces.spans,
        ),
    )


def _many_small(evidence: Evidence) -> int:
    """Return from which number on small all-reduces per step are too many."""
    return _MANY_BUCKETS if bucket_sizes(evidence.run) else _MANY_SMALL


def _unknown_sizes(evidence: Evidence) -> Unjudged | None:
    collectives = evidence.cached(exposed_collective_time)
    if collectives is None or collectives.by_kind[0][0] != "all-reduce" or collectives.per_step < _MANY_SMALL:
        return None
    return Unjudged(
        reason=f"there are {round(collectives.per_step)} collectives per step, but the trace does not hold their sizes",
        fix="record with PyTorch 2.2 or newer, which records them",
    )


def _bucket_evidence(evidence: Evidence, all_reduces: Buckets, small_ns: int) -> tuple[str, ...]:
    return (
        f"{round(all_reduces.small_per_step)} of {count(round(all_reduces.per_step), 'all-reduce')} per step "
        f"{plural(round(all_reduces.small_per_step), 'moves', 'move')} less than "
        f"{size(SMALL_BYTES)} each (median of all: {size(all_reduces.median_bytes)}; total "
        f"{size(all_reduces.total_bytes)}).",
        f"{step_spends(evidence, small_ns)} in the small ones, with no concurrent "
        f"{'kernel' if evidence.on_gpu else 'operator'}.",
    )


def _larger_bucket_mb(all_reduces: Buckets) -> int:
    """Return a bucket size in MB for about four buckets per step, between 25 and 100: fewer would prevent overlap."""
    return round(min(100, max(25, all_reduces.total_bytes / 4e6)))
