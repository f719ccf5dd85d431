"""The catalogue of the rules about evaluations and other code between the training steps."""

from __future__ import annotations

from gpulab.rules.engine.needs import HOST_SENSORS, REAL_MACHINE, STEP_MARKS
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.rules.steps.evaluation_calls import repeated_in_evaluations, small_evaluation_batches
from gpulab.rules.steps.frequent_evaluation import frequent_evaluation
from gpulab.rules.steps.kv_cache import no_kv_cache
from gpulab.rules.steps.work_between_epochs import work_between_epochs

EVALUATION_RULES: tuple[Rule, ...] = (
    Rule(
        check=frequent_evaluation,
        about="evaluations that take much of the run",
        stage=Stage.IDLE,
        needs=(STEP_MARKS,),
        masked_by=("slow_evaluation",),
    ),
    Rule(
        check=small_evaluation_batches,
        about="evaluations that call the model for few rows at a time",
        stage=Stage.IDLE,
        needs=(STEP_MARKS,),
    ),
    Rule(
        check=repeated_in_evaluations,
        about="modules that compute the same outputs again in evaluations",
        stage=Stage.IDLE,
        needs=(STEP_MARKS,),
    ),
    Rule(
        check=no_kv_cache,
        about="sequences that are generated without a KV cache",
        stage=Stage.IDLE,
        needs=(HOST_SENSORS,),
        lesson="14_attention",
    ),
    Rule(
        check=work_between_epochs,
        about="code between the epochs that takes much of the loop",
        stage=Stage.IDLE,
        needs=(STEP_MARKS, REAL_MACHINE),
        masked_by=("too_many_workers", "unbatched_calls"),
    ),
)
