"""A rule about work outside forward, backward and optimizer: logging, metrics, gradient clipping, EMA of weights."""

from __future__ import annotations

from gpulab.analysis.host.frames import deepest_frame
from gpulab.analysis.host.outside_model import CPU_PARTS, HOST_PARTS, OutsideModel
from gpulab.analysis.host.outside_model import outside_model as measure
from gpulab.analysis.host.python_time import classify_python_time
from gpulab.intervals import Spans, union_of
from gpulab.rules.engine.busiest_function import library_call_text, library_functions_text
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import duration_in_step, per_step, step_or_recording
from gpulab.wording import percent

_MIN_FRAC = 0.10
_MOST = 0.8  # of the long Python code
_COMPARABLE = 0.4  # the smaller part is at least this share of the larger one
_MIN_OPERATORS = 5  # fewer operators per step are no loop over parameters, and no metrics


def work_outside_model(evidence: Evidence) -> Finding | None:
    """The loop spends much of each step on operators outside its models, the optimizer and the DataLoader.

    Examples: gradient clipping and an EMA of the weights in a Python loop over parameters, metrics and logging in every
    step, labels that are assembled from many small tensors.

    Proof: operators, and the Python between them, that lie outside forward and backward passes, `Optimizer.step`,
    `zero_grad` and the DataLoader. A forward pass starts with the first operator that has a node in the backward pass.

    Confused with: long Python code without operators (`host_python`; where both alternate, it counts here); a model of
    many small operators (`dispatch_bound`); a frozen model or a teacher, whose layers are recognised and left out.

    What to do: run it less often, or for all tensors at once: torch._foreach_* functions, clip_grad_norm_, the
    AveragedModel of torch.optim.swa_utils.
    """
    outside = evidence.cached(measure)
    if outside is None or outside.operators < _MIN_OPERATORS:
        return None
    parts: tuple[str, ...] = HOST_PARTS if evidence.on_gpu else CPU_PARTS
    spans, cost_ns = outside.spans, evidence.unprofiled_ns(outside.cost_ns, *parts)
    if includes_python(evidence):
        parts, spans = (*parts, "python"), union_of(spans, outside.python)
        cost_ns += _python_ns(evidence)
    share = cost_ns / evidence.step_ns
    if share < _MIN_FRAC:
        return None
    return Finding(
        ledger_parts=parts,
        claim=f"{percent(share)} {step_or_recording(evidence)} is spent outside the models, the optimizer "
        f"and data loading: {_operators(evidence, outside)}.",
        evidence=(f"This work takes {duration_in_step(evidence, cost_ns)}.", *_place(evidence, spans, share)),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, per_step=outside.operators),
        advice="If the result is the same in every step, compute it once. Run metrics, logging and checks less often "
        "than in every step. Do the rest for all tensors at once: torch.nn.utils.clip_grad_norm_ to clip, "
        "torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(0.999) for a moving average, torch._foreach_* "
        "functions for other loops over parameters.",
        gain=evidence.gain_of_removing(
            cost_ns,
            "removing 30 to 100 % of this work",
            "no such work",
            (0.3, 1.0),
            spans,
        ),
        confidence=LIKELY,
        spans=spans,
    )


def includes_python(evidence: Evidence) -> bool:
    """Whether long Python code belongs to this work: both take much of a step, in the same places.

    A function that builds a graph with pandas and then converts it to tensors is one cause, not two.
    """
    outside = evidence.cached(measure)
    if outside is None or outside.operators < _MIN_OPERATORS:
        return False
    parts = HOST_PARTS if evidence.on_gpu else CPU_PARTS
    operators_ns, python_ns = evidence.unprofiled_ns(outside.cost_ns, *parts), _python_ns(evidence)
    smaller_ns, larger_ns = sorted((operators_ns, python_ns))
    same_places = outside.python.total_ns >= _MOST * evidence.ledger.spans["python"].total_ns
    return same_places and smaller_ns >= max(_MIN_FRAC * evidence.step_ns, _COMPARABLE * larger_ns)


def _python_ns(evidence: Evidence) -> int:
    return evidence.unprofiled_ns(evidence.cached(classify_python_time).user_code_ns, "python")


def _place(evidence: Evidence, spans: Spans, share: float) -> tuple[str, ...]:
    frame = deepest_frame(evidence.run, spans)
    if frame is None or not frame.is_known:
        return library_call_text(evidence, share)
    line = f"{percent(frame.frac)} of that time is in {frame.name}."
    return (line, *library_functions_text(evidence, frame.name))


def _operators(evidence: Evidence, outside: OutsideModel) -> str:
    return (
        f"{outside.operators:,} operators {per_step(evidence)} ({', '.join(outside.names)}) and the Python around them"
    )
