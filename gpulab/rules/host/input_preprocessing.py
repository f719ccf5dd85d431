"""A rule about operators on each batch before the model, which could run once instead of in every epoch."""

from __future__ import annotations

from gpulab.analysis.data.training_loader import passes_over_data
from gpulab.analysis.host.frames import deepest_frame
from gpulab.analysis.host.outside_model import outside_model
from gpulab.analysis.steps.before_forward import preprocessing
from gpulab.intervals import Spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.wording import percent

_MIN_SHARE = 0.15  # of a step
_MIN_OPERATORS = 5
_REMOVED = (0.6, 0.95)  # stored results are loaded instead, and may be larger than the inputs
_MIN_FRAME_FRAC = 0.3


def input_preprocessing(evidence: Evidence) -> Finding | None:
    """Each step computes features from its batch before the first trained layer, again in every epoch.

    Proof: operators on the main thread between the arrival of a batch and the first operator that has a node in the
    backward pass. None of them draws random numbers or is a layer with weights: the same batch gives the same result.

    Confused with: a frozen model in front of the trained one (`frozen_outputs`); random augmentation, which differs in
    every epoch (reported in error if its random numbers come from Python or NumPy); metrics, logging and gradient
    clipping, which follow the forward pass (`work_outside_model`).

    What to do: if the samples repeat, compute the features once before training, and train on them. Otherwise compute
    them in the Dataset, where workers do it while the model trains.
    """
    outside = evidence.cached(outside_model)
    if outside is None or outside.operators < _MIN_OPERATORS:
        return None
    if evidence.on_gpu or any(loader.iterable for loader in evidence.run.loaders):
        return None
    work = preprocessing(evidence.run, outside)
    if work is None or work.is_random:
        return None
    cost_ns = evidence.unprofiled_ns(evidence.steps.typical_covered_ns(work.spans), "compute", "dispatch", "glue")
    share = cost_ns / evidence.step_ns
    if share < _MIN_SHARE:
        return None
    passes = passes_over_data(evidence.run)
    return Finding(
        ledger_parts=("compute", "dispatch", "glue"),
        claim=f"{percent(share)} {step_or_recording(evidence)} computes features from the batch before the first "
        "trained layer, again in every epoch.",
        evidence=(
            f"{step_spends(evidence, cost_ns)} between the arrival of the batch and the first operator with a backward "
            f"pass, mostly in {', '.join(work.names)}.",
            *_location(evidence, work.spans),
        ),
        numbers=known_numbers(share=share, cost_ns=cost_ns, passes=passes),
        advice="If the samples repeat and this code has no randomness: compute the features once for the whole dataset "
        "before training, keep them in a tensor, and train on torch.utils.data.TensorDataset(features, targets). "
        "Otherwise move this code to __getitem__ of the Dataset, where DataLoader workers run it while the model "
        "trains.",
        gain=evidence.gain_of_removing(
            cost_ns,
            "loading stored features, which removes 60 to 95 % of this work from the second epoch on",
            "no features to compute",
            _REMOVED,
        ),
        confidence=LIKELY if passes and passes > 1 else SUSPECT,
        confidence_reason="" if passes and passes > 1 else "whether samples repeat was not recorded",
        spans=work.spans,
    )


def _location(evidence: Evidence, spans: Spans) -> tuple[str, ...]:
    frame = deepest_frame(evidence.run, spans)
    if frame is None or frame.frac < _MIN_FRAME_FRAC:
        return ()
    return (f"{percent(frame.frac)} of that time is in {frame.name}.",)
