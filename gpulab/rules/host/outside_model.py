"""A rule about work outside forward, backward and optimizer: logging, metrics, gradient clipping, EMA of weights."""

from __future__ import annotations

from gpulab.analysis.host.outside_model import CPU_PARTS, HOST_PARTS, OutsideModel
from gpulab.analysis.host.outside_model import outside_model as measure
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import duration_in_step, per_step, step_or_recording
from gpulab.wording import percent

_MIN_FRAC = 0.10
_MIN_OPERATORS = 5  # fewer operators per step are no loop over parameters, and no metrics


def work_outside_model(evidence: Evidence) -> Finding | None:
    """The loop spends much of each step on operators outside its models, the optimizer and the DataLoader.

    Examples: gradient clipping and an EMA of the weights in a Python loop over parameters, metrics and logging in every
    step, labels that are assembled from many small tensors.

    Proof: operators, and the Python between them, that lie outside forward and backward passes, `Optimizer.step`,
    `zero_grad` and the DataLoader. A forward pass starts with the first operator that has a node in the backward pass.

    Confused with: long Python code without operators (`host_python`); a model of many small operators
    (`dispatch_bound`); a frozen model or a teacher, whose layers are recognised and left out.

    What to do: run it less often, or for all tensors at once: torch._foreach_* functions, clip_grad_norm_, the
    AveragedModel of torch.optim.swa_utils.
    """
    outside = evidence.cached(measure)
    if outside is None or outside.operators < _MIN_OPERATORS:
        return None
    parts = HOST_PARTS if evidence.on_gpu else CPU_PARTS
    cost_ns = evidence.unprofiled_ns(outside.cost_ns, *parts)
    share = cost_ns / evidence.step_ns
    if share < _MIN_FRAC:
        return None
    return Finding(
        ledger_parts=parts,
        claim=f"{percent(share)} {step_or_recording(evidence)} is spent outside the models, the optimizer "
        f"and data loading: {_operators(evidence, outside)}.",
        evidence=(f"This work takes {duration_in_step(evidence, cost_ns)}.",),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, per_step=outside.operators),
        advice="Run metrics, logging and checks less often than in every step. Do the rest for all tensors at once: "
        "torch.nn.utils.clip_grad_norm_ to clip, torch.optim.swa_utils.AveragedModel with "
        "get_ema_multi_avg_fn(0.999) for a moving average, torch._foreach_* functions for other loops over "
        "parameters.",
        gain=evidence.gain_of_removing(
            cost_ns,
            "removing 30 to 100 % of this work",
            "no such work",
            (0.3, 1.0),
            outside.spans,
        ),
        confidence=LIKELY,
        spans=outside.spans,
    )


def _operators(evidence: Evidence, outside: OutsideModel) -> str:
    return (
        f"{outside.operators:,} operators {per_step(evidence)} ({', '.join(outside.names)}) and the Python around them"
    )
