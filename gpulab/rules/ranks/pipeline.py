"""A rule about pipeline parallelism: stages that wait for each other."""

from __future__ import annotations

from gpulab.analysis.ranks.collectives import SEND_RECEIVE, ExposedCommunication, exposed_collective_time
from gpulab.analysis.ranks.parallel_axis import PIPELINE, micro_batches
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import range_over_steps, step_or_recording, step_spends
from gpulab.wording import count, percent

_MIN_WAIT_FRAC = 0.05  # of a step
_MORE = 4  # times as many micro-batches are proposed
# Smaller micro-batches may compute less efficiently. On two CPU ranks, where each micro-batch adds to all gradients,
# four micro-batches of 64 samples took 8 and 15 % longer than two of 128.
_LEAST_REMOVED_FRAC = {"gpu": 0.0, "cpu": -0.5}


def pipeline_bubble(evidence: Evidence) -> Finding | None:
    """Pipeline bubbles: this stage of a pipeline waits for activations or gradients of its neighbours.

    Proof: sends and receives of a process group for pipeline parallelism, or of a schedule of
    torch.distributed.pipelining, with no concurrent kernel.

    Confused with: a slow link between the stages, which all of them wait for equally; stages with unequal work, where
    the slowest one hardly waits; ring attention, which sends and receives, too.

    What to do: more micro-batches, an interleaved or zero-bubble schedule, and stages of equal work.
    """
    collectives = evidence.cached(exposed_collective_time)
    batches = micro_batches(evidence.run)
    if collectives is None or (collectives.group_of(SEND_RECEIVE).axis != PIPELINE and batches is None):
        return None
    exposed_ns = evidence.unprofiled_ns(dict(collectives.by_kind).get(SEND_RECEIVE, 0), "communication")
    share = evidence.step_share(exposed_ns)
    if share < _MIN_WAIT_FRAC:
        return None
    stages = _stages(evidence, collectives)
    return Finding(
        ledger_parts=("communication",),
        claim=f"Pipeline bubbles take {percent(share)} {step_or_recording(evidence)}: this stage waits for its "
        "neighbours.",
        evidence=(
            f"{step_spends(evidence, exposed_ns)} in sends and receives with no concurrent "
            f"{'kernel' if evidence.on_gpu else 'operator'} ({range_over_steps(evidence, 'communication')}, all "
            "communication).",
            *_expected(stages, batches),
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=exposed_ns, micro_batches=batches, stages=stages),
        advice="Split each batch into more micro-batches (n_microbatches of a schedule in "
        f"torch.distributed.pipelining), as long as each still fills the {'GPU' if evidence.on_gpu else 'cores'}: "
        "smaller ones may compute less efficiently, so measure. With several stages per rank, "
        "ScheduleInterleaved1F1B has shorter bubbles, and ScheduleZBVZeroBubble almost none. Stages with equal work "
        "wait least.",
        gain=_gain(evidence, exposed_ns, stages, batches),
        confidence=CERTAIN,
        spans=collectives.spans,
    )


def bubble_frac(stages: int, batches: int) -> float:
    """Return the share of a step in which each stage idles with GPipe or 1F1B, if all stages have equal work.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, section 2.2.
    """
    return (stages - 1) / (batches + stages - 1)


def _stages(evidence: Evidence, collectives: ExposedCommunication) -> int | None:
    """Return the number of stages; None if it is unknown."""
    ranks = collectives.group_of(SEND_RECEIVE).ranks
    return ranks if ranks is not None and ranks > 1 else len(evidence.peers) or None


def _expected(stages: int | None, batches: int | None) -> tuple[str, ...]:
    if stages is None or batches is None:
        return ()
    return (
        f"With {count(stages, 'stage')} and {count(batches, 'micro-batch')}, GPipe and 1F1B leave each stage idle "
        f"for {percent(bubble_frac(stages, batches))} of a step, if all stages have equal work.",
    )


def _gain(evidence: Evidence, exposed_ns: int, stages: int | None, batches: int | None) -> Gain:
    least = _LEAST_REMOVED_FRAC[evidence.ledger.device]
    if stages is None or batches is None:
        return evidence.gain_of_removing(
            exposed_ns, "removing up to 80 % of the bubbles", "stages that never wait", (least, 0.8)
        )
    removed = 1 - bubble_frac(stages, _MORE * batches) / bubble_frac(stages, batches)
    return evidence.gain_of_removing(
        exposed_ns,
        f"{count(_MORE * batches, 'micro-batch')} instead of {batches}; at best, with the same time per sample",
        "stages that never wait",
        (least, removed),
    )
