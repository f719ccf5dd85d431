"""Every rule there is. To add one: write its function in the file of its family, and name it here.

Equal findings are shown in this order. `masked_by` names rules whose finding about the same time explains this one's.
"""

from __future__ import annotations

from gpulab.rules.copies.host_to_device import cpu_tensor_creation, pageable_copies, unoverlapped_copies
from gpulab.rules.data.item_cost import cpu_bound_loading, slow_storage
from gpulab.rules.data.no_workers import no_workers
from gpulab.rules.data.worker_count import too_few_workers, too_many_workers
from gpulab.rules.engine.needs import ALLOCATOR, GPU_SENSORS, GPU_WORK, HOST_SENSORS, LEDGER, MARKS, PEERS, REAL, STALLS
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.rules.host.cpu_threads import cpu_oversubscription
from gpulab.rules.host.dispatch import dispatch_bound, recompilation
from gpulab.rules.host.garbage_collection import garbage_collection
from gpulab.rules.host.python_code import gil_contention, host_python, unexplained_idle
from gpulab.rules.host.syncs import host_syncs
from gpulab.rules.kernels.device_bound import device_bound
from gpulab.rules.kernels.fusion import gather_scatter, memory_bound, unfused_elementwise
from gpulab.rules.kernels.optimizer import unfused_optimizer
from gpulab.rules.kernels.precision import NVIDIA, no_mixed_precision, no_tf32
from gpulab.rules.kernels.shapes_and_layout import layout_conversions, misaligned_shapes
from gpulab.rules.kernels.small_batch import small_batch
from gpulab.rules.machine.clocks_and_sharing import GPU_LOAD, OTHERS, clock_throttling, memory_traffic, shared_gpu
from gpulab.rules.machine.gpu_held_idle import gpu_held_idle
from gpulab.rules.machine.model_on_cpu import model_on_cpu
from gpulab.rules.machine.pcie_link import LINK, slow_pcie_link
from gpulab.rules.memory.allocator_and_growth import allocator_thrash, fragmentation, memory_growth, unused_gpu_memory
from gpulab.rules.memory.out_of_memory import out_of_memory
from gpulab.rules.ranks.communication import exposed_communication, small_buckets
from gpulab.rules.ranks.data_parallel import OTHER_GPUS, data_parallel, idle_gpus
from gpulab.rules.ranks.stragglers import straggler
from gpulab.rules.steps.pauses import periodic_stalls, slow_first_step

_LATE_BATCHES = ("no_workers", "too_few_workers", "slow_storage", "cpu_bound_loading")

RULES: tuple[Rule, ...] = (
    # How the run ended.
    Rule(
        ask=out_of_memory, about="memory that ran out", stage=Stage.ENDING, needs=(), lesson="09_memory_anatomy_and_oom"
    ),
    # The machine.
    Rule(
        ask=model_on_cpu,
        about="a model on the CPU beside a GPU",
        stage=Stage.ENVIRONMENT,
        lesson="01_what_is_utilisation",
    ),
    Rule(
        ask=clock_throttling, about="clocks that are held down", stage=Stage.ENVIRONMENT, needs=(GPU_SENSORS, GPU_LOAD)
    ),
    Rule(ask=shared_gpu, about="others on the same GPU", stage=Stage.ENVIRONMENT, needs=(GPU_SENSORS, OTHERS)),
    Rule(
        ask=slow_pcie_link,
        about="the link to the GPU",
        stage=Stage.ENVIRONMENT,
        needs=(GPU_WORK, LINK),
        lesson="07_host_to_device",
    ),
    # Feeding the model.
    Rule(ask=no_workers, about="a main process that builds the batches", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(ask=too_few_workers, about="workers that are late", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(ask=slow_storage, about="storage that feeding waits for", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(
        ask=cpu_bound_loading,
        about="items that need more CPU time than there is",
        stage=Stage.IDLE,
        lesson="05_data_loading",
    ),
    Rule(
        ask=cpu_oversubscription,
        about="threads that share cores",
        stage=Stage.ENVIRONMENT,
        needs=(LEDGER, HOST_SENSORS),
    ),
    Rule(
        ask=too_many_workers,
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
        ask=periodic_stalls,
        about="steps that pause now and then",
        stage=Stage.IDLE,
        needs=(MARKS, REAL),
        masked_by=("too_many_workers",),
    ),
    # Calling operators.
    Rule(
        ask=recompilation,
        about="functions compiled again",
        stage=Stage.IDLE,
        needs=(LEDGER, STALLS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        ask=dispatch_bound,
        about="the cost of calling operators",
        stage=Stage.IDLE,
        masked_by=("model_on_cpu", "cpu_tensor_creation", "host_syncs", "unfused_optimizer"),
        lesson="12_launch_fusion_graphs",
    ),
    # The way to the device, and waits for it.
    Rule(
        ask=pageable_copies,
        about="copies from memory that is not pinned",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        masked_by=("cpu_tensor_creation",),
        lesson="07_host_to_device",
    ),
    Rule(
        ask=unoverlapped_copies,
        about="copies that compute waits for",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        lesson="07_host_to_device",
    ),
    Rule(
        ask=cpu_tensor_creation,
        about="tensors built on the CPU",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        lesson="07_host_to_device",
    ),
    Rule(
        ask=host_syncs, about="waits for the GPU", stage=Stage.IDLE, needs=(GPU_WORK,), lesson="12_launch_fusion_graphs"
    ),
    # Several GPUs.
    Rule(ask=straggler, about="ranks that the others wait for", stage=Stage.ENVIRONMENT, needs=(PEERS, GPU_WORK)),
    Rule(
        ask=exposed_communication,
        about="communication that nothing hides",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("straggler", "small_buckets", "data_parallel"),
    ),
    Rule(
        ask=small_buckets,
        about="the size of what is communicated at once",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("straggler",),
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
        ask=no_mixed_precision,
        about="the precision of matrix products",
        stage=Stage.BUSY,
        needs=(GPU_WORK, NVIDIA),
        masked_by=("no_tf32",),
        lesson="08_mixed_precision",
    ),
    Rule(ask=misaligned_shapes, about="sizes of matrix products", stage=Stage.BUSY, needs=(GPU_WORK, NVIDIA)),
    Rule(ask=layout_conversions, about="the layout of images", stage=Stage.BUSY, needs=(GPU_WORK,)),
    Rule(ask=unfused_optimizer, about="the optimizer's step", stage=Stage.BUSY, lesson="12_launch_fusion_graphs"),
    Rule(
        ask=unfused_elementwise, about="chains of elementwise work", stage=Stage.BUSY, lesson="12_launch_fusion_graphs"
    ),
    Rule(
        ask=memory_bound,
        about="kernels that the memory limits",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("unfused_elementwise", "unfused_optimizer", "layout_conversions"),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(ask=gather_scatter, about="kernels that follow an index", stage=Stage.BUSY, needs=(GPU_WORK,)),
    Rule(
        ask=small_batch,
        about="batches too small for the GPU",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("dispatch_bound", "unfused_optimizer"),
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
        ask=unused_gpu_memory,
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
        masked_by=("memory_bound", "unfused_elementwise"),
        lesson="01_what_is_utilisation",
    ),
    Rule(ask=gpu_held_idle, about="a GPU that is held unused", stage=Stage.STATE, needs=(GPU_SENSORS,)),
    Rule(ask=slow_first_step, about="the first steps", stage=Stage.STATE, needs=(MARKS, REAL)),
    Rule(ask=device_bound, about="a device that is simply busy", stage=Stage.STATE, lesson="01_what_is_utilisation"),
)
