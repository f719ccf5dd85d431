"""A rule about a model that a Python loop calls for one item at a time."""

from __future__ import annotations

from gpulab.analysis.host.launches import short_recurrent_layers_ns
from gpulab.analysis.host.model_calls import calls_between_steps, model_calls
from gpulab.analysis.steps.ledger import DISPATCH_KEYS
from gpulab.analysis.steps.pauses import find_pauses
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import per_step, range_over_steps, step_spends
from gpulab.rules.host.dispatch import batching_gain, dispatch_share
from gpulab.rules.host.garbage_collection import mean_step_gain
from gpulab.wording import count, duration, percent

_MIN_PASSES = 4  # per batch; two or three are a siamese network, or a model with tied weights
_SMALL_CALL_NS = 100_000  # a longer layer call does enough work
_MIN_SHARE = 0.15  # of a step in dispatch
_REMOVED = (0.3, 0.95)  # of dispatch at worst, and of all small operators at best
_MIN_PHASE_FRAC = 0.3  # of the time
_MIN_PHASE_PASSES = 16  # in a row; an evaluation of a few batches has fewer
_REMOVED_OF_PHASE = (0.4, 0.9)


def unbatched_calls(evidence: Evidence) -> Finding | None:
    """A Python loop calls the model for one item, task or time step at a time, many times per training step.

    Proof: layers with weights run many times as often in a step as the model has parameters, each call is short, and
    dispatch takes much of the step. Frozen models, which have no backward pass, and the micro-batches of gradient
    accumulation do not count. The same holds for code that runs between every N steps, such as a rollout.

    Confused with: a model of many small layers (`dispatch_bound`); one layer that runs over all time steps in a single
    call, such as nn.LSTM; higher derivatives, which add backward calls only. The trace does not show whether a call
    needs the result of the one before, as in an ODE solver: such calls cannot be joined, but each can do more work.

    What to do: call the model once for all items: stack the inputs, use torch.vmap for weights that differ by item,
    vectorised environments in reinforcement learning, nn.LSTM in place of a cell in a loop.
    """
    return _in_each_step(evidence) or _between_steps(evidence)


def _in_each_step(evidence: Evidence) -> Finding | None:
    calls = evidence.cached(model_calls)
    share, exposed_ns = dispatch_share(evidence)
    if calls is None or calls.least_passes < _MIN_PASSES or calls.median_ns > _SMALL_CALL_NS or share < _MIN_SHARE:
        return None
    scope = "for each micro-batch" if calls.batches > 1 else per_step(evidence)
    dispatch_ns = evidence.typical_step.sum_ns(*DISPATCH_KEYS)
    return Finding(
        ledger_parts=DISPATCH_KEYS,
        claim=f"The model runs at least {calls.least_passes} times {scope}, one call after another, with little work "
        f"per call (a layer takes {duration(calls.median_ns)}).",
        evidence=(
            f"{calls.calls:,} calls of layers {scope}, for {count(calls.tensors, 'parameter tensor')}.",
            f"{step_spends(evidence, dispatch_ns)} on short operators, dispatch and the Python code between them "
            f"({range_over_steps(evidence, *DISPATCH_KEYS)}).",
        ),
        numbers=known_numbers(
            passes=calls.least_passes, calls=calls.calls, median_ns=calls.median_ns, exposed_frac=share
        ),
        advice="Call the model once for all items: stack the inputs along the batch dimension (torch.stack, "
        "pad_sequence). If each item has weights of its own, use torch.func.vmap; for the gradient of each item, use "
        "it with torch.func.grad. If the calls are time steps of a recurrent layer, pass the whole sequence to "
        "nn.LSTM or nn.GRU in one call. "
        "If each call needs the result of the one before, as in an ODE solver, use a larger batch per call. "
        "In reinforcement learning, act without gradient in several environments at once, and compute the loss of "
        "an episode in one forward pass.",
        gain=batching_gain(evidence, exposed_ns, _REMOVED, _recurrent_ns(evidence)),
        confidence=LIKELY,
        spans=evidence.ledger.spans["dispatch"],
    )


def _recurrent_ns(evidence: Evidence) -> int:
    return 0 if evidence.on_gpu else evidence.unprofiled_ns(evidence.cached(short_recurrent_layers_ns), "compute")


def _between_steps(evidence: Evidence) -> Finding | None:
    """Return the finding about code that comes every N steps and calls the model many times, such as a rollout."""
    phase, calls = find_pauses(evidence.run, evidence.steps), evidence.cached(calls_between_steps)
    if phase is None or calls is None or not phase.period_steps or phase.frac < _MIN_PHASE_FRAC:
        return None
    calls_per_phase = round(calls.calls / calls.recorded_ns * phase.typical_cost_ns)
    passes = calls_per_phase // calls.tensors
    if passes < _MIN_PHASE_PASSES or calls.median_ns > _SMALL_CALL_NS:
        return None
    location = f" ({phase.frame})" if phase.frame else ""
    cost_ns = round(phase.total_ns / phase.steps)
    return Finding(
        claim=f"{percent(phase.frac)} of the time goes to code between the training steps{location}, which runs the "
        f"model at least {passes} times in a row with little work per call.",
        evidence=(
            f"Every {phase.period_steps} steps it takes {duration(phase.typical_cost_ns)}; a training step takes "
            f"{duration(phase.step_median_ns)}. Per training step, that is {duration(cost_ns)}.",
            f"About {calls_per_phase:,} calls of layers each time, for {count(calls.tensors, 'parameter tensor')}; a "
            f"call takes {duration(calls.median_ns)}.",
        ),
        numbers=known_numbers(frac=phase.frac, passes=passes, calls=calls_per_phase, median_ns=calls.median_ns),
        advice="Do this work for more items per call. In reinforcement learning: act in more environments at once, for "
        "fewer time steps each. When generating text: several sequences at once, with a KV cache.",
        gain=mean_step_gain(
            phase.step_mean_ns,
            cost_ns,
            "removing 40 to 90 % of the time in this code, with several times as many items per call",
            "a loop without this code",
            _REMOVED_OF_PHASE,
        ),
        confidence=LIKELY,
        from_steps=False,
        explains=("periodic_stalls",),
        spans=phase.spans,
    )
