"""Every rule there is. To add one: write its function in the file of its family, and name it here.

Equal findings are shown in this order. `masked_by` names rules whose finding about the same time explains this one's.
"""

from __future__ import annotations

from gpulab.rules.copies.host_to_device import built_on_host, copies_in_turn, pageable_copies
from gpulab.rules.data.item_cost import heavy_items, slow_storage
from gpulab.rules.data.no_workers import starving
from gpulab.rules.data.worker_count import few_workers, many_workers
from gpulab.rules.engine.needs import ALLOCATOR, GPU_SENSORS, GPU_WORK, HOST_SENSORS, LEDGER, MARKS, PEERS, REAL, STALLS
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.rules.host.cpu_threads import many_threads
from gpulab.rules.host.dispatch import dispatch_bound, recompiling
from gpulab.rules.host.garbage_collection import garbage_collection
from gpulab.rules.host.python_code import gil_contention, host_python, unexplained_idle
from gpulab.rules.host.syncs import host_syncs
from gpulab.rules.kernels.device_bound import device_bound
from gpulab.rules.kernels.fusion import memory_bound, scattered_access, unfused
from gpulab.rules.kernels.optimizer import slow_optimizer
from gpulab.rules.kernels.precision import NVIDIA, full_precision, no_tf32
from gpulab.rules.kernels.shapes_and_layout import layout_conversions, misaligned
from gpulab.rules.kernels.small_batch import small_batch
from gpulab.rules.machine.clocks_and_sharing import GPU_LOAD, OTHERS, memory_traffic, shared_gpu, throttled
from gpulab.rules.machine.held_gpu import held_gpu
from gpulab.rules.machine.slow_link import LINK, slow_link
from gpulab.rules.machine.wrong_device import wrong_device
from gpulab.rules.memory.allocator_and_growth import allocator_thrash, fragmentation, memory_growth, memory_unused
from gpulab.rules.memory.out_of_memory import out_of_memory
from gpulab.rules.ranks.communication import exposed_communication, small_buckets
from gpulab.rules.ranks.data_parallel import OTHER_GPUS, data_parallel, idle_gpus
from gpulab.rules.ranks.stragglers import stragglers
from gpulab.rules.steps.pauses import first_step, periodic_pause

_LATE_BATCHES = ("starving", "few_workers", "slow_storage", "heavy_items")

RULES: tuple[Rule, ...] = (
    # How the run ended.
    Rule(
        ask=out_of_memory, about="memory that ran out", stage=Stage.ENDING, needs=(), lesson="09_memory_anatomy_and_oom"
    ),
    # The machine.
    Rule(
        ask=wrong_device,
        about="a model on the CPU beside a GPU",
        stage=Stage.ENVIRONMENT,
        lesson="01_what_is_utilisation",
    ),
    Rule(ask=throttled, about="clocks that are held down", stage=Stage.ENVIRONMENT, needs=(GPU_SENSORS, GPU_LOAD)),
    Rule(ask=shared_gpu, about="others on the same GPU", stage=Stage.ENVIRONMENT, needs=(GPU_SENSORS, OTHERS)),
    Rule(
        ask=slow_link,
        about="the link to the GPU",
        stage=Stage.ENVIRONMENT,
        needs=(GPU_WORK, LINK),
        lesson="07_host_to_device",
    ),
    # Feeding the model.
    Rule(ask=starving, about="a main process that builds the batches", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(ask=few_workers, about="workers that are late", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(ask=slow_storage, about="storage that feeding waits for", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(
        ask=heavy_items, about="items that need more CPU time than there is", stage=Stage.IDLE, lesson="05_data_loading"
    ),
    Rule(ask=many_threads, about="threads that share cores", stage=Stage.ENVIRONMENT, needs=(LEDGER, HOST_SENSORS)),
    Rule(
        ask=many_workers,
        about="workers that are not needed",
        stage=Stage.IDLE,
        needs=(LEDGER, MARKS),
        lesson="05_data_loading",
    ),
    # The loop's own Python code.
    Rule(ask=host_python, about="Python code in the loop", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(
        ask=gil_contention,
        about="other threads that hold Python's lock",
        stage=Stage.IDLE,
        needs=(LEDGER, HOST_SENSORS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        ask=garbage_collection,
        about="collections of Python's garbage",
        stage=Stage.IDLE,
        needs=(LEDGER, STALLS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        ask=unexplained_idle,
        about="waiting outside PyTorch",
        stage=Stage.IDLE,
        needs=(LEDGER, HOST_SENSORS),
        lesson="05_data_loading",
    ),
    Rule(
        ask=periodic_pause,
        about="steps that pause now and then",
        stage=Stage.IDLE,
        needs=(MARKS, REAL),
        masked_by=("many_workers",),
    ),
    # Calling operators.
    Rule(
        ask=recompiling,
        about="functions compiled again",
        stage=Stage.IDLE,
        needs=(LEDGER, STALLS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        ask=dispatch_bound,
        about="the cost of calling operators",
        stage=Stage.IDLE,
        masked_by=("wrong_device", "built_on_host", "host_syncs", "slow_optimizer"),
        lesson="12_launch_fusion_graphs",
    ),
    # The way to the device, and waits for it.
    Rule(
        ask=pageable_copies,
        about="copies from memory that is not pinned",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        masked_by=("built_on_host",),
        lesson="07_host_to_device",
    ),
    Rule(
        ask=copies_in_turn,
        about="copies that compute waits for",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        lesson="07_host_to_device",
    ),
    Rule(
        ask=built_on_host,
        about="tensors built on the CPU",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        lesson="07_host_to_device",
    ),
    Rule(
        ask=host_syncs, about="waits for the GPU", stage=Stage.IDLE, needs=(GPU_WORK,), lesson="12_launch_fusion_graphs"
    ),
    # Several GPUs.
    Rule(ask=stragglers, about="ranks that the others wait for", stage=Stage.ENVIRONMENT, needs=(PEERS, GPU_WORK)),
    Rule(
        ask=exposed_communication,
        about="communication that nothing hides",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("stragglers", "small_buckets", "data_parallel"),
    ),
    Rule(
        ask=small_buckets,
        about="the size of what is communicated at once",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("stragglers",),
    ),
    Rule(ask=data_parallel, about="one process that feeds several GPUs", stage=Stage.BUSY, needs=(GPU_WORK,)),
    Rule(ask=idle_gpus, about="GPUs that do nothing", stage=Stage.ENVIRONMENT, needs=(OTHER_GPUS,)),
    # Kernels and operators.
    Rule(
        ask=no_tf32,
        about="float32 products beside the tensor cores",
        stage=Stage.BUSY,
        needs=(GPU_WORK, NVIDIA),
        lesson="08_mixed_precision",
    ),
    Rule(
        ask=full_precision,
        about="the precision of matrix products",
        stage=Stage.BUSY,
        needs=(GPU_WORK, NVIDIA),
        masked_by=("no_tf32",),
        lesson="08_mixed_precision",
    ),
    Rule(ask=misaligned, about="sizes of matrix products", stage=Stage.BUSY, needs=(GPU_WORK, NVIDIA)),
    Rule(ask=layout_conversions, about="the layout of images", stage=Stage.BUSY, needs=(GPU_WORK,)),
    Rule(ask=slow_optimizer, about="the optimizer's step", stage=Stage.BUSY, lesson="12_launch_fusion_graphs"),
    Rule(ask=unfused, about="chains of elementwise work", stage=Stage.BUSY, lesson="12_launch_fusion_graphs"),
    Rule(
        ask=memory_bound,
        about="kernels that the memory limits",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("unfused", "slow_optimizer", "layout_conversions"),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(ask=scattered_access, about="kernels that follow an index", stage=Stage.BUSY, needs=(GPU_WORK,)),
    Rule(
        ask=small_batch,
        about="batches too small for the GPU",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("dispatch_bound", "slow_optimizer"),
        lesson="03_parallel_work_and_batch",
    ),
    # Memory.
    Rule(
        ask=allocator_thrash,
        about="memory asked for in every step",
        stage=Stage.MEMORY,
        needs=(GPU_WORK,),
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        ask=fragmentation,
        about="memory in pieces",
        stage=Stage.MEMORY,
        needs=(ALLOCATOR,),
        masked_by=("out_of_memory",),
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        ask=memory_growth,
        about="memory that grows",
        stage=Stage.MEMORY,
        needs=(),
        masked_by=("out_of_memory",),
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        ask=memory_unused,
        about="free GPU memory",
        stage=Stage.MEMORY,
        needs=(ALLOCATOR,),
        masked_by=(*_LATE_BATCHES, "host_python", "gil_contention", "unexplained_idle", "small_batch"),
        lesson="03_parallel_work_and_batch",
    ),
    # What is simply so.
    Rule(
        ask=memory_traffic,
        about="what keeps the GPU busy",
        stage=Stage.STATE,
        needs=(GPU_SENSORS, GPU_LOAD),
        masked_by=("memory_bound", "unfused"),
        lesson="01_what_is_utilisation",
    ),
    Rule(ask=held_gpu, about="a GPU that is held unused", stage=Stage.STATE, needs=(GPU_SENSORS,)),
    Rule(ask=first_step, about="the first steps", stage=Stage.STATE, needs=(MARKS, REAL)),
    Rule(ask=device_bound, about="a device that is simply busy", stage=Stage.STATE, lesson="01_what_is_utilisation"),
)
