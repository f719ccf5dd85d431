"""A rule about autograd's anomaly detection, a debugging mode that is left on."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.steps.forward_backward import backward_passes, forward_backward_spans
from gpulab.intervals import Spans, intersect, subtract
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.wording import percent

_CHECK = "aten::isnan"
_CHECK_OPS = (_CHECK, "aten::ne", "aten::_is_any_true", "aten::any", "aten::item")
_ACCUMULATE = "AccumulateGrad"  # has no output to check
_MIN_CHECKS = 0.8  # per node
_MIN_NODES = 20
_OF_CHECKS = 0.8
_MAX_OF_FORWARD = 0.8  # each operator of the forward pass stores a traceback, inside its own time


def anomaly_detection(evidence: Evidence) -> Finding | None:
    """torch.autograd.detect_anomaly is on: each operator stores a traceback, and each gradient is checked for NaN.

    Proof: in the backward pass, each autograd node is followed by `aten::isnan` on its outputs.

    Confused with: a program that checks its own gradients, which comes after the backward pass.

    What to do: use this mode only while you look for the origin of a NaN, and switch it off for training.
    """
    passes = backward_passes(evidence.run)
    if passes is None:
        return None
    events, nodes = evidence.run.event_rows, passes.nodes
    checks = events.select(np.flatnonzero(events.matching(_CHECK_OPS.__contains__)))
    spans = intersect(checks.spans(), nodes.spans())
    checked = int(checks.matching(lambda word: word == _CHECK).sum())
    node_count = len(nodes) - int(nodes.matching(lambda word: word.endswith(_ACCUMULATE)).sum())
    if node_count < _MIN_NODES or checked < _MIN_CHECKS * node_count or not spans.total_ns:
        return None
    checks_ns = evidence.unprofiled_ns(evidence.steps.typical_covered_ns(spans))
    return Finding(
        claim="torch.autograd.detect_anomaly is on: each operator of the forward pass stores a traceback, and each "
        "gradient is checked for NaN.",
        evidence=(
            f"{step_spends(evidence, checks_ns)} on these checks in the backward pass "
            f"({percent(checks_ns / evidence.step_ns)} {step_or_recording(evidence)}).",
            "The tracebacks make operators of the forward pass longer.",
        ),
        numbers=known_numbers(checks_ns=checks_ns, checks=checked, nodes=node_count),
        advice="Remove torch.autograd.set_detect_anomaly(True), the detect_anomaly() context, or "
        "detect_anomaly=True of the Trainer. Switch it on again when a NaN appears.",
        gain=_gain(evidence, spans, checks_ns),
        confidence=CERTAIN,
        spans=spans,
    )


def _gain(evidence: Evidence, checks: Spans, checks_ns: int) -> Gain:
    both, passes = forward_backward_spans(evidence.run), backward_passes(evidence.run)
    assert both is not None, "there is a backward pass"
    assert passes is not None, "there is a backward pass"
    forward_ns = evidence.unprofiled_ns(evidence.steps.typical_covered_ns(subtract(both, passes.spans)))
    cost_ns = checks_ns + forward_ns
    return evidence.gain_of_removing(
        cost_ns,
        "removing 80 % of the checks, to all checks and 80 % of the forward pass",
        "no checks and no forward pass",
        (_OF_CHECKS * checks_ns / cost_ns, (checks_ns + _MAX_OF_FORWARD * forward_ns) / cost_ns),
        checks if evidence.on_gpu else None,
    )
