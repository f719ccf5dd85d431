"""The rules about several GPUs and ranks: part of the catalogue of all rules."""

from __future__ import annotations

from gpulab.rules.engine.needs import ALL_RANKS, COLLECTIVES, GPU_WORK, HOST_SENSORS, LEDGER, OPERATORS
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.rules.ranks.communication import exposed_communication, small_buckets
from gpulab.rules.ranks.data_parallel import OTHER_GPUS, data_parallel, idle_gpus
from gpulab.rules.ranks.pipeline import pipeline_bubble
from gpulab.rules.ranks.shared_cores import ranks_share_cores
from gpulab.rules.ranks.slow_link import slow_link
from gpulab.rules.ranks.stragglers import straggler
from gpulab.rules.ranks.unequal_work import uneven_batches

RANK_RULES: tuple[Rule, ...] = (
    Rule(
        check=ranks_share_cores,
        about="more ranks on a machine than its CPU cores can run",
        stage=Stage.ENVIRONMENT,
        needs=(ALL_RANKS, LEDGER, HOST_SENSORS),
    ),
    Rule(check=straggler, about="stragglers among the ranks", stage=Stage.ENVIRONMENT, needs=(ALL_RANKS, COLLECTIVES)),
    Rule(
        check=uneven_batches,
        about="batches that need unequal work on the ranks",
        stage=Stage.ENVIRONMENT,
        needs=(ALL_RANKS, COLLECTIVES),
        masked_by=("straggler",),
    ),
    Rule(
        check=slow_link,
        about="a slow link between the ranks",
        stage=Stage.ENVIRONMENT,
        needs=(ALL_RANKS, COLLECTIVES),
    ),
    Rule(check=pipeline_bubble, about="pipeline bubbles", stage=Stage.BUSY, needs=(COLLECTIVES,)),
    Rule(
        check=exposed_communication,
        about="exposed communication",
        stage=Stage.BUSY,
        needs=(COLLECTIVES,),
        masked_by=("straggler", "uneven_batches", "slow_link", "pipeline_bubble", "small_buckets", "data_parallel"),
    ),
    Rule(
        check=small_buckets,
        about="all-reduce buckets that are too small",
        stage=Stage.BUSY,
        needs=(COLLECTIVES,),
        masked_by=("straggler",),
    ),
    Rule(
        check=data_parallel,
        about="DataParallel instead of DistributedDataParallel",
        stage=Stage.BUSY,
        needs=(GPU_WORK, OPERATORS),
    ),
    Rule(check=idle_gpus, about="idle GPUs", stage=Stage.ENVIRONMENT, needs=(OTHER_GPUS,)),
)
