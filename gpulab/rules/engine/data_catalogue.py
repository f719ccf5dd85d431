"""The catalogue of the rules about loading data, and about the programs and the memory that it competes with."""

from __future__ import annotations

from gpulab.rules.data.item_cost import cpu_bound_loading, slow_storage
from gpulab.rules.data.no_workers import no_workers
from gpulab.rules.data.page_cache import cold_cache, page_cache_thrashing
from gpulab.rules.data.slow_evaluation import slow_evaluation
from gpulab.rules.data.slow_worker import slow_worker
from gpulab.rules.data.worker_count import too_few_workers, too_many_workers
from gpulab.rules.engine.needs import HOST_SENSORS, LEDGER, STEP_MARKS
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.rules.host.cpu_threads import cpu_oversubscription
from gpulab.rules.machine.shared_cpu import shared_cpu
from gpulab.rules.memory.swapping import swap_in

LATE_BATCH_RULES = ("no_workers", "too_few_workers", "slow_storage", "cpu_bound_loading")

DATA_RULES: tuple[Rule, ...] = (
    Rule(
        check=no_workers,
        about="a DataLoader without workers (num_workers=0)",
        stage=Stage.IDLE,
        lesson="05_data_loading",
    ),
    Rule(check=too_few_workers, about="too few DataLoader workers", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(check=slow_storage, about="data loading that waits for storage", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(check=cpu_bound_loading, about="CPU-bound data loading", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(
        check=slow_evaluation,
        about="evaluations that wait for data",
        stage=Stage.IDLE,
        needs=(STEP_MARKS,),
        lesson="05_data_loading",
    ),
    Rule(check=shared_cpu, about="other programs on the same cores", stage=Stage.ENVIRONMENT, needs=(HOST_SENSORS,)),
    Rule(
        check=cpu_oversubscription,
        about="more CPU threads than cores",
        stage=Stage.ENVIRONMENT,
        needs=(LEDGER, HOST_SENSORS),
    ),
    Rule(
        check=too_many_workers,
        about="too many DataLoader workers",
        stage=Stage.IDLE,
        needs=(STEP_MARKS, LEDGER),
        lesson="05_data_loading",
    ),
    Rule(
        check=slow_worker,
        about="a DataLoader worker that is slower than the others",
        stage=Stage.IDLE,
        needs=(LEDGER, HOST_SENSORS),
        lesson="05_data_loading",
    ),
    Rule(
        check=page_cache_thrashing,
        about="epochs that read everything from storage again",
        stage=Stage.IDLE,
        needs=(STEP_MARKS, HOST_SENSORS),
        lesson="05_data_loading",
    ),
    Rule(
        check=cold_cache,
        about="a first epoch that reads from storage",
        stage=Stage.IDLE,
        needs=(STEP_MARKS, HOST_SENSORS),
        lesson="05_data_loading",
    ),
    Rule(check=swap_in, about="memory that is read back from swap", stage=Stage.ENVIRONMENT, needs=(HOST_SENSORS,)),
)
