"""Every rule there is. To add one: write its function in the file of its family, and name it here.

Equal findings are shown in this order. `masked_by` names rules whose finding about the same time explains this one's.
"""

from __future__ import annotations

from gpulab.rules.device import device_bound, exposed_copies, host_syncs
from gpulab.rules.feeding import few_workers, starving
from gpulab.rules.host import dispatch_bound, host_python
from gpulab.rules.needs import GPU_WORK
from gpulab.rules.rule import Rule, Stage

RULES: tuple[Rule, ...] = (
    # How the run ended.
    # The machine.
    # Feeding the model.
    Rule(ask=starving, about="a main process that builds the batches", stage=Stage.IDLE),
    Rule(ask=few_workers, about="workers that are late", stage=Stage.IDLE),
    # The loop's own Python code.
    Rule(ask=host_python, about="Python code in the loop", stage=Stage.IDLE),
    # Calling operators.
    Rule(ask=dispatch_bound, about="the cost of calling operators", stage=Stage.IDLE),
    # The way to the device, and waits for it.
    Rule(ask=exposed_copies, about="copies to the GPU", stage=Stage.IDLE, needs=(GPU_WORK,)),
    Rule(ask=host_syncs, about="waits for the GPU", stage=Stage.IDLE, needs=(GPU_WORK,)),
    # Several GPUs.
    # Kernels and operators.
    # Memory.
    # What is simply so.
    Rule(ask=device_bound, about="a device that is simply busy", stage=Stage.STATE),
)
