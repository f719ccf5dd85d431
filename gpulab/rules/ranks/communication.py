"""Rules about communication between GPUs: what nothing hides, and collectives too small to be worth their call."""

from __future__ import annotations

from gpulab.analysis.ranks.collectives import SMALL_BYTES, Buckets, Exposed, buckets, exposed
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, Unjudged, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step, range_over_steps
from gpulab.rules.ranks.parallelism import Parallel, overlapped, parallel, rewrapped
from gpulab.wording import duration, metric, percent, size

# TensorBoard's plug-in says 10 %, TraceLens 5 %: the fix is a few arguments, so it is worth telling at the earlier.
COMMUNICATION_WORTH_FRAC = 0.05
# Any link between two GPUs of one machine does better, PCIe 3.0 x16 among them (12 GB/s): slower is waiting.
SLOW_BYTES_PER_S = 8e9
SLOW_NETWORK_BYTES_PER_S = 1.25e9  # 10 Gbit/s
ONE_BUCKET_BYTES = 50 << 20  # twice DDP's own bucket: so much in one piece was asked for
TAIL_FRAC = 0.5  # the last all-reduce holds this much of what is exposed: it is the one to split

WAITING_FRAC = 0.2  # less of it than this is jitter

SMALL_WORTH_FRAC = 0.03  # one argument mends it
MANY_SMALL = 8  # DDP makes its first bucket small on purpose; buffers and metrics add a few more

_DOES = {
    "all-reduce": "adds up results with the other GPUs",
    "all-gather": "collects pieces of tensors from the other GPUs",
    "reduce-scatter": "adds up results with the other GPUs",
    "all-to-all": "exchanges data with the other GPUs",
}


def exposed_communication(evidence: Evidence) -> Finding | None:
    """The GPU exchanges data with other GPUs, or waits for them, while it computes nothing.

    Proof: collectives (NCCL, RCCL and their like) with no kernel beside them. Confused with: communication that runs
    behind the backward pass and costs nothing, which is not counted; waiting for a late rank (`straggler`), which one
    rank alone cannot tell from slow communication; many small collectives (`small_buckets`). What to do: start the
    exchange earlier, so that compute runs beside it, and move less.
    """
    share = evidence.ledger.share("communication")
    told = evidence.once(exposed)
    if told is None or share < COMMUNICATION_WORTH_FRAC:
        return None
    exposed_ns = evidence.ledger.median_ns("communication")
    kind = told.by_kind[0][0]
    how = parallel(evidence, kind)
    fix, advice = overlapped(evidence, how, half_bytes=told.float32, bucket_mb=_bucket(told))
    return Finding(
        parts=("communication",),
        claim=f"The GPU computes nothing {percent(share)} {of_each_step(evidence)} while it {_does(kind, how)}.",
        evidence=(
            f"{duration_in_step(evidence, exposed_ns)} in collectives with no kernel beside them "
            f"({range_over_steps(evidence, 'communication')}).",
            f"Compute hides {percent(told.hidden_frac)} of all communication.",
            *_kinds(told),
            *_rate(evidence, told),
            *_tail(told, how),
            *_waiting(evidence),
        ),
        numbers=figures(
            exposed_frac=share, exposed_ns=exposed_ns, hidden_frac=told.hidden_frac, per_step=told.per_step
        ),
        fix=fix,
        advice=advice,
        gain=_hidden(evidence, told, exposed_ns),
        rewrites=evidence.typed("overlap"),
        confidence=CERTAIN,
        shown_by=told.spans,
        caveats=_caveats(evidence),
    )


def _hidden(evidence: Evidence, told: Exposed, exposed_ns: int) -> Gain:
    basis = "the exposed communication, hidden or spared by 20 to 80 %"
    plain = evidence.bounded(evidence.plain_ns(exposed_ns), basis, "even free communication", (0.2, 0.8), told.spans)
    return evidence.predicted("overlap", plain)


def _does(kind: str, how: Parallel) -> str:
    does = _DOES.get(kind, "communicates with other GPUs")
    return does.replace("results", "gradients") if how.training else does


def _bucket(told: Exposed) -> int | None:
    """DDP's own bucket size, where one bucket holds so much that nothing can run beside it."""
    one = told.tail_bytes is not None and told.tail_bytes > ONE_BUCKET_BYTES
    return 25 if one and told.tail_ns >= TAIL_FRAC * told.exposed_ns else None


def _kinds(told: Exposed) -> tuple[str, ...]:
    worth = [(kind, dur_ns) for kind, dur_ns in told.by_kind if dur_ns >= 0.05 * told.exposed_ns]
    if len(worth) < 2:
        return ()
    return (f"By kind, per step: {', '.join(f'{kind} {duration(dur_ns)}' for kind, dur_ns in worth)}.",)


def _rate(evidence: Evidence, told: Exposed) -> tuple[str, ...]:
    if told.rate_bytes_per_s is None:
        return ()
    kind = told.by_kind[0][0]
    rate = f"Each {kind} moves its data at {metric(told.rate_bytes_per_s, 'B/s')}"
    ranks = _ranks(evidence)
    inside = ranks is not None and ranks <= len(evidence.run.machine.gpus)
    slow = told.rate_bytes_per_s < (SLOW_BYTES_PER_S if inside else SLOW_NETWORK_BYTES_PER_S)
    if not slow or evidence.arrivals is not None:  # all ranks side by side tell of waiting without a guess
        return (f"{rate}.",)
    if inside:
        return (f"{rate}; links inside a machine carry 12 and more: most of the time is likely waiting.",)
    return (f"{rate}: either the network between the machines is slow, or most of the time is waiting.",)


def _ranks(evidence: Evidence) -> int | None:
    told = evidence.run.facts.get("world_size", "")
    return int(told) if told.isdecimal() else None


def _tail(told: Exposed, how: Parallel) -> tuple[str, ...]:
    if not how.ddp or told.tail_ns < TAIL_FRAC * told.exposed_ns:
        return ()
    bytes_ = f" ({size(told.tail_bytes)})" if told.tail_bytes else ""
    return (
        f"{duration(told.tail_ns)} of it is the last all-reduce of the step{bytes_}, with no backward pass left beside "
        "it.",
    )


def _waiting(evidence: Evidence) -> tuple[str, ...]:
    """How much of it is waiting for other ranks, where all of them were recorded."""
    arrived = evidence.arrivals
    if arrived is None:
        return ()
    wait_ns = next(
        (wait for side, wait in zip(arrived.sides, arrived.waits_ns, strict=True) if side.run is evidence.run), 0
    )
    if wait_ns < WAITING_FRAC * evidence.ledger.median_ns("communication"):
        return ("Hardly any of it is waiting for other ranks: it is the exchange itself that takes the time.",)
    ranks = len(arrived.sides)
    return (f"{duration(wait_ns)} of it is waiting for whichever of the {ranks} ranks comes last in a step.",)


def _caveats(evidence: Evidence) -> tuple[str, ...]:
    if evidence.peers:
        return ()
    return (
        "One rank alone does not tell moving data from waiting for a late rank; the traces of all ranks, loaded "
        "together, do.",
    )


def small_buckets(evidence: Evidence) -> Finding | Unjudged | None:
    """Gradients are added up in many small pieces, each of which costs a call and a round among all GPUs.

    Proof: eight and more all-reduces of less than a mebibyte in a step, exposed. Confused with: DDP's first bucket,
    which is small on purpose; batch normalisation that is synchronised, whose statistics are small by nature; sharded
    inference, which adds up activations. What to do: larger buckets, or DDP in place of one all-reduce a parameter.
    """
    how = parallel(evidence, "all-reduce")
    if not how.training or how.small_by_nature:
        return None
    told = evidence.once(buckets)
    if told is None:
        return _unknown_sizes(evidence)
    share = evidence.step_share(told.small_exposed_ns)
    if told.small_per_step < MANY_SMALL or share < SMALL_WORTH_FRAC:
        return None
    return Finding(
        parts=("communication",),
        claim=f"The GPU computes nothing {percent(share)} {of_each_step(evidence)} while gradients are added up with "
        f"the other GPUs in {round(told.small_per_step)} small pieces.",
        evidence=_pieces(evidence, told),
        numbers=figures(
            exposed_frac=share,
            exposed_ns=told.small_exposed_ns,
            per_step=told.small_per_step,
            median_bytes=told.median_bytes,
        ),
        fix=rewrapped(evidence, bucket_mb=_larger(told), ddp=how.ddp),
        advice=""
        if how.ddp
        else "Leave out the all_reduce of each parameter: DDP does it in buckets, while the backward pass still runs.",
        gain=evidence.predicted(
            f"bucket_mb={_larger(told)}",
            evidence.bounded(
                evidence.plain_ns(told.small_exposed_ns),
                "the exposed time of the small all-reduces, lessened by 30 to 90 %",
                "even free small all-reduces",
                (0.3, 0.9),
                told.spans,
            ),
        ),
        rewrites=evidence.typed(f"bucket_mb={_larger(told)}"),
        confidence=LIKELY,
        shown_by=told.spans,
    )


def _unknown_sizes(evidence: Evidence) -> Unjudged | None:
    told = evidence.once(exposed)
    if told is None or told.by_kind[0][0] != "all-reduce" or told.per_step < MANY_SMALL:
        return None
    return Unjudged(
        why=f"there are {round(told.per_step)} collectives a step, but the trace does not tell their sizes",
        fix="record with PyTorch 2.2 or newer, which tells them",
    )


def _pieces(evidence: Evidence, told: Buckets) -> tuple[str, ...]:
    return (
        f"{round(told.small_per_step)} of {round(told.per_step)} all-reduces a step move less than "
        f"{size(SMALL_BYTES)} each (median of all {size(told.median_bytes)}, together "
        f"{size(told.total_bytes)}).",
        f"{duration_in_step(evidence, told.small_exposed_ns)} goes to the small ones with no kernel beside them.",
    )


def _larger(told: Buckets) -> int:
    """About four buckets a step, of 25 MB at least and 100 MB at most: fewer would leave nothing to overlap."""
    return round(min(100, max(25, told.total_bytes / 4e6)))
