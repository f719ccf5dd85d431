"""The catalogue of all rules. To add a rule, write its function in the folder of its topic and list it here.

Findings with equal savings are shown in this order. `masked_by`: rules whose finding about the same time explains it.
"""

from __future__ import annotations

from gpulab.rules.copies.host_to_device import cpu_tensor_creation, pageable_copies, unoverlapped_copies
from gpulab.rules.data.ignored_labels import ignored_labels
from gpulab.rules.data.padding import padding
from gpulab.rules.engine.data_catalogue import DATA_RULES, LATE_BATCH_RULES
from gpulab.rules.engine.evaluation_catalogue import EVALUATION_RULES
from gpulab.rules.engine.needs import (
    ALLOCATOR,
    GPU_SENSORS,
    GPU_WORK,
    HOST_SENSORS,
    INTERPRETER_STALLS,
    LEDGER,
    OPERATORS,
    REAL_MACHINE,
    STEP_MARKS,
)
from gpulab.rules.engine.rank_catalogue import RANK_RULES
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.rules.host.anomaly_detection import anomaly_detection
from gpulab.rules.host.discarded_gradients import discarded_gradients
from gpulab.rules.host.dispatch import dispatch_bound, recompilation
from gpulab.rules.host.frozen_outputs import frozen_outputs
from gpulab.rules.host.garbage_collection import garbage_collection
from gpulab.rules.host.input_preprocessing import input_preprocessing
from gpulab.rules.host.outside_model import work_outside_model
from gpulab.rules.host.python_code import gil_contention, host_python, unexplained_idle
from gpulab.rules.host.repeated_inputs import repeated_inputs
from gpulab.rules.host.separate_modules import separate_modules
from gpulab.rules.host.syncs import host_syncs
from gpulab.rules.host.unbatched_calls import unbatched_calls
from gpulab.rules.host.unused_gradients import unused_gradients
from gpulab.rules.kernels.bfloat16_on_cpu import no_bfloat16_on_cpu
from gpulab.rules.kernels.device_bound import device_bound
from gpulab.rules.kernels.dropout_on_cpu import dropout_on_cpu
from gpulab.rules.kernels.embedding_gradients import dense_embedding_gradients
from gpulab.rules.kernels.float64 import float64_weights
from gpulab.rules.kernels.fusion import gather_scatter, memory_bound, unfused_elementwise
from gpulab.rules.kernels.kernel_drift import kernel_drift
from gpulab.rules.kernels.nchw_on_cpu import nchw_on_cpu
from gpulab.rules.kernels.optimizer import unfused_optimizer
from gpulab.rules.kernels.precision import NVIDIA, no_mixed_precision, no_tf32
from gpulab.rules.kernels.shapes_and_layout import layout_conversions, misaligned_shapes
from gpulab.rules.kernels.small_batch import small_batch
from gpulab.rules.kernels.sparse_as_dense import sparse_as_dense
from gpulab.rules.machine.clocks_and_sharing import GPU_LOAD, PROCESS_LIST, clock_throttling, memory_traffic, shared_gpu
from gpulab.rules.machine.gpu_held_idle import gpu_held_idle
from gpulab.rules.machine.model_on_cpu import model_on_cpu
from gpulab.rules.machine.pcie_link import LINK, slow_pcie_link
from gpulab.rules.memory.activation_checkpointing import activation_checkpointing
from gpulab.rules.memory.fragmentation_and_growth import (
    allocator_thrash,
    fragmentation,
    memory_growth,
    unused_gpu_memory,
)
from gpulab.rules.memory.out_of_memory import out_of_memory
from gpulab.rules.steps.pauses import periodic_stalls, slow_first_step
from gpulab.rules.steps.step_variance import step_variance

_DISPATCH_RULES = ("model_on_cpu", "cpu_tensor_creation", "host_syncs", "unfused_optimizer", "unbatched_calls")

RULES: tuple[Rule, ...] = (
    Rule(
        check=out_of_memory,
        about="out-of-memory errors",
        stage=Stage.ENDING,
        needs=(),
        lesson="09_memory_anatomy_and_oom",
    ),
    # The machine.
    Rule(
        check=model_on_cpu,
        about="a model that runs on the CPU although there is a GPU",
        stage=Stage.ENVIRONMENT,
        lesson="01_what_is_utilisation",
    ),
    Rule(check=clock_throttling, about="throttled GPU clocks", stage=Stage.ENVIRONMENT, needs=(GPU_SENSORS, GPU_LOAD)),
    Rule(
        check=shared_gpu, about="other programs on the GPU", stage=Stage.ENVIRONMENT, needs=(GPU_SENSORS, PROCESS_LIST)
    ),
    Rule(
        check=slow_pcie_link,
        about="a slow PCIe link",
        stage=Stage.ENVIRONMENT,
        needs=(GPU_WORK, LINK),
        lesson="07_host_to_device",
    ),
    *DATA_RULES,
    # Python code in the loop.
    Rule(check=host_python, about="Python code in the training loop", stage=Stage.IDLE, lesson="05_data_loading"),
    Rule(
        check=gil_contention,
        about="other Python threads that hold the GIL",
        stage=Stage.IDLE,
        needs=(LEDGER, HOST_SENSORS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        check=garbage_collection,
        about="Python garbage collection",
        stage=Stage.IDLE,
        needs=(LEDGER, INTERPRETER_STALLS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        check=unexplained_idle,
        about="unexplained waits outside PyTorch",
        stage=Stage.IDLE,
        needs=(LEDGER, HOST_SENSORS),
        lesson="05_data_loading",
    ),
    Rule(
        check=periodic_stalls,
        about="periodic stalls: checkpoints, logging",
        stage=Stage.IDLE,
        needs=(STEP_MARKS, REAL_MACHINE),
        masked_by=("too_many_workers",),
    ),
    *EVALUATION_RULES,
    Rule(
        check=step_variance,
        about="step times that vary much",
        stage=Stage.IDLE,
        needs=(STEP_MARKS, REAL_MACHINE),
        masked_by=(
            "periodic_stalls",
            "frequent_evaluation",
            "work_between_epochs",
            "garbage_collection",
            "recompilation",
            "shared_cpu",
            "padding",
            *LATE_BATCH_RULES,
        ),
    ),
    Rule(check=anomaly_detection, about="anomaly detection that is left on", stage=Stage.IDLE),
    # Compilation and dispatch.
    Rule(
        check=recompilation,
        about="recompilation by torch.compile",
        stage=Stage.IDLE,
        needs=(LEDGER, INTERPRETER_STALLS),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        check=unbatched_calls,
        about="a model that is called for one item at a time",
        stage=Stage.IDLE,
        masked_by=("model_on_cpu",),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        check=dispatch_bound,
        about="operator dispatch and kernel launches",
        stage=Stage.IDLE,
        masked_by=(*_DISPATCH_RULES, "anomaly_detection"),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        check=work_outside_model,
        about="operators outside the model and the optimizer",
        stage=Stage.IDLE,
        masked_by=("model_on_cpu", "cpu_tensor_creation", "host_syncs", "input_preprocessing"),
        lesson="12_launch_fusion_graphs",
    ),
    # Copies and synchronisation.
    Rule(
        check=pageable_copies,
        about="copies from pageable memory",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        masked_by=("cpu_tensor_creation",),
        lesson="07_host_to_device",
    ),
    Rule(
        check=unoverlapped_copies,
        about="copies that do not overlap with compute",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        lesson="07_host_to_device",
    ),
    Rule(
        check=cpu_tensor_creation,
        about="tensors created on the CPU and copied to the GPU",
        stage=Stage.IDLE,
        needs=(GPU_WORK, OPERATORS),
        lesson="07_host_to_device",
    ),
    Rule(
        check=host_syncs,
        about="host-device synchronisation",
        stage=Stage.IDLE,
        needs=(GPU_WORK,),
        lesson="12_launch_fusion_graphs",
    ),
    *RANK_RULES,
    Rule(
        check=kernel_drift,
        about="kernels that get slower during the run",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("clock_throttling", "shared_gpu"),
    ),
    # Kernels and operators.
    Rule(
        check=no_tf32,
        about="float32 matrix products without TF32",
        stage=Stage.BUSY,
        needs=(GPU_WORK, NVIDIA),
        lesson="08_mixed_precision",
    ),
    Rule(
        check=no_mixed_precision,
        about="matrix products without mixed precision",
        stage=Stage.BUSY,
        needs=(GPU_WORK, NVIDIA),
        masked_by=("no_tf32",),
        lesson="08_mixed_precision",
    ),
    Rule(
        check=no_bfloat16_on_cpu,
        about="float32 layers on a CPU with bfloat16 instructions",
        stage=Stage.BUSY,
        masked_by=("model_on_cpu",),
        lesson="08_mixed_precision",
    ),
    Rule(
        check=nchw_on_cpu,
        about="convolutions on a CPU in the memory format NCHW",
        stage=Stage.BUSY,
        masked_by=("model_on_cpu",),
        lesson="08_mixed_precision",
    ),
    Rule(
        check=dropout_on_cpu,
        about="dropout on a CPU, which draws its random numbers slowly",
        stage=Stage.BUSY,
        masked_by=("model_on_cpu",),
    ),
    Rule(
        check=float64_weights,
        about="float64 (double precision) where float32 may do",
        stage=Stage.BUSY,
        needs=(LEDGER,),
        masked_by=("model_on_cpu",),
        lesson="08_mixed_precision",
    ),
    Rule(check=unused_gradients, about="gradients that no optimizer uses", stage=Stage.BUSY),
    Rule(check=discarded_gradients, about="gradients that are deleted before their optimizer steps", stage=Stage.BUSY),
    Rule(
        check=frozen_outputs, about="frozen models that run in every step", stage=Stage.BUSY, needs=(STEP_MARKS, LEDGER)
    ),
    Rule(check=repeated_inputs, about="modules that compute the same outputs again in a step", stage=Stage.BUSY),
    Rule(check=separate_modules, about="modules of one structure that run one after another", stage=Stage.BUSY),
    Rule(
        check=input_preprocessing,
        about="features computed from each batch, again in every epoch",
        stage=Stage.BUSY,
        needs=(STEP_MARKS, LEDGER),
    ),
    Rule(check=dense_embedding_gradients, about="dense gradients of embedding tables", stage=Stage.BUSY),
    Rule(check=sparse_as_dense, about="matrices of mostly zeros that are stored as dense", stage=Stage.BUSY),
    Rule(
        check=misaligned_shapes,
        about="matrix dimensions that tensor cores handle badly",
        stage=Stage.BUSY,
        needs=(GPU_WORK, NVIDIA),
    ),
    Rule(
        check=layout_conversions, about="NCHW/NHWC conversions around convolutions", stage=Stage.BUSY, needs=(GPU_WORK,)
    ),
    Rule(
        check=unfused_optimizer,
        about="unfused optimizer steps",
        stage=Stage.BUSY,
        needs=(LEDGER,),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(
        check=unfused_elementwise,
        about="unfused elementwise operators",
        stage=Stage.BUSY,
        needs=(LEDGER,),
        masked_by=("input_preprocessing",),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(check=padding, about="padding in batches of tokens", stage=Stage.BUSY, needs=(STEP_MARKS, LEDGER)),
    Rule(
        check=ignored_labels,
        about="scores of positions whose labels the loss ignores",
        stage=Stage.BUSY,
        needs=(STEP_MARKS, LEDGER),
    ),
    Rule(
        check=memory_bound,
        about="memory-bound elementwise kernels",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("unfused_elementwise", "unfused_optimizer", "layout_conversions"),
        lesson="12_launch_fusion_graphs",
    ),
    Rule(check=gather_scatter, about="gather/scatter kernels", stage=Stage.BUSY, needs=(GPU_WORK,)),
    Rule(
        check=small_batch,
        about="batches too small to fill the GPU",
        stage=Stage.BUSY,
        needs=(GPU_WORK,),
        masked_by=("dispatch_bound", "unfused_optimizer"),
        lesson="03_parallel_work_and_batch",
    ),
    # Memory.
    Rule(
        check=activation_checkpointing,
        about="forward passes that run again for activation checkpointing",
        stage=Stage.BUSY,
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        check=allocator_thrash,
        about="cudaMalloc/cudaFree in every step",
        stage=Stage.MEMORY,
        needs=(GPU_WORK,),
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        check=fragmentation,
        about="fragmentation of GPU memory",
        stage=Stage.MEMORY,
        needs=(ALLOCATOR,),
        masked_by=("out_of_memory",),
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        check=memory_growth,
        about="memory that grows from step to step",
        stage=Stage.MEMORY,
        needs=(),
        masked_by=("out_of_memory",),
        lesson="09_memory_anatomy_and_oom",
    ),
    Rule(
        check=unused_gpu_memory,
        about="unused GPU memory",
        stage=Stage.MEMORY,
        needs=(ALLOCATOR,),
        masked_by=(*LATE_BATCH_RULES, "host_python", "gil_contention", "unexplained_idle", "small_batch"),
        lesson="03_parallel_work_and_batch",
    ),
    # Facts that are not faults.
    Rule(
        check=memory_traffic,
        about="memory traffic against arithmetic",
        stage=Stage.STATE,
        needs=(GPU_SENSORS, GPU_LOAD),
        masked_by=("memory_bound", "unfused_elementwise"),
        lesson="01_what_is_utilisation",
    ),
    Rule(check=gpu_held_idle, about="a GPU that is reserved but idle", stage=Stage.STATE, needs=(GPU_SENSORS,)),
    Rule(check=slow_first_step, about="slow first steps", stage=Stage.STATE, needs=(STEP_MARKS, REAL_MACHINE)),
    Rule(
        check=device_bound, about="a busy device", stage=Stage.STATE, needs=(LEDGER,), lesson="01_what_is_utilisation"
    ),
)
