"""Which names of phases mean training or evaluation: the batches of an evaluation are no training steps."""

from __future__ import annotations

import functools
import re

TRAINING, SANITY_CHECK, VALIDATION, EVALUATION = "training", "sanity check", "validation", "evaluation"
EVAL_MODE = "eval mode"  # of the trained models, in code whose name says nothing
TEST, PREDICTION, CHECKPOINT = "test", "prediction", "checkpoint"
_TRAINING = re.compile(r"(?:train\w*|fit|fitting)(?![a-z])", re.IGNORECASE)
_EVALUATION = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validat\w*|eval|evaluat\w*|tests?|testing|predict\w*|inference|sanity)(?![a-z])",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=1024)
def means_training(name: str) -> bool:
    """Whether a phase of this name is training: "training", "train", "fit"."""
    return _TRAINING.match(name) is not None


@functools.lru_cache(maxsize=1024)
def means_evaluation(name: str) -> bool:
    """Whether a phase of this name evaluates a model: "validation", "eval_loop", "sanity check", "test", "predict"."""
    return not means_training(name) and _EVALUATION.search(name) is not None
