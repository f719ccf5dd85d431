"""A stage of a pipeline that waits for its neighbours; not ring attention, all-to-all or a wait behind kernels."""

from gpulab.tables import EventKind
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of, stepped

SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def stage(*, waits_ms=10, batches=3, description="mesh_pp", names=(), behind_kernels=False, stages=4):
    """Steps of 100 ms with three micro-batches: each is received, then computed."""

    def step(at):
        events = [event(EventKind.ANNOTATION, name, at + 2 * index, 1) for index, name in enumerate(names)]
        length = 90 / batches
        for number in range(batches):
            start = at + number * length
            moves = collective_columns(1_000_000, collective="recv", size=stages, description=description)
            events.append(collective(SEND_RECEIVE, start, waits_ms, moves=moves))
            events.append(
                event(
                    EventKind.KERNEL,
                    "ampere_sgemm",
                    start + (0 if behind_kernels else waits_ms),
                    length - (0 if behind_kernels else waits_ms),
                )
            )
        return [
            *events,
            event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 92, 1),
            event(EventKind.KERNEL, "multi_tensor_apply_kernel", at + 92, 8),
        ]

    return rank_of(stepped(step), 1, ranks=stages)


def provoked_by_a_stage_of_a_device_mesh():
    return stage()


def provoked_by_a_stage_of_megatron():
    return stage(description="PIPELINE_MODEL_PARALLEL_GROUP")


def provoked_by_a_schedule_of_pytorch_on_the_default_group():
    return stage(description="default_pg", names=("Forward 0", "Forward 1", "Forward 2"))


def spared_as_ring_attention_sends_and_receives_too():
    return stage(description="mesh_cp")


def spared_as_the_purpose_of_the_group_is_unknown():
    return stage(description=None)


def spared_as_kernels_run_meanwhile():
    return stage(behind_kernels=True)


def spared_as_the_stage_hardly_waits():
    return stage(waits_ms=1)
