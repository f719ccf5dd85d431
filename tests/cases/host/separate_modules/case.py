"""Modules of one structure that run one after another in a step, and programs that only look like it."""

from gpulab.run import SeparateModules
from gpulab.tables import EventKind
from gpulab.user_objects import PARTS_OF_ONE, SAME_INPUT
from tests.support.runs.made_runs import event, run_of, stepped


def training(*groups):
    """Steps of 100 ms of one long operator and an optimizer."""

    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 95),
            event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 97, 1),
        ]

    return run_of(stepped(step), separate_modules=groups)


def group(separate_ms, joined_ms, step_frac=0.2, **more):
    return SeparateModules(
        **{
            "kind": "Linear", "first": "net.heads[0]", "location": "forward (net.py:31)", "modules": 8, "calls": 8,
            "tensors": 16, "inputs": SAME_INPUT, "step_frac": step_frac, "separate_ns": separate_ms * 1_000_000,
            "joined_ns": joined_ms * 1_000_000,
        }
        | more
    )  # fmt: skip


def launching(kernel_ms):
    """Steps of 100 ms with 400 kernels, whose launches the GPU waits for unless the kernels are long."""

    def step(at):
        events = []
        for number in range(400):
            start = at + number * 0.25
            events.append(event(EventKind.OP, "aten::addmm", start, 0.1))
            events.append(event(EventKind.LAUNCH, "cudaLaunchKernel", start + 0.05, 0.01, correlation=number))
            events.append(event(EventKind.KERNEL, "ampere_sgemm", start + 0.07, kernel_ms))
        return events

    untimed = group(0, 0, step_frac=0.3, separate_ns=None, joined_ns=None)
    return run_of(stepped(step), separate_modules=(untimed,))


def provoked_by_small_kernels_of_many_heads_on_a_gpu():
    return launching(kernel_ms=0.005)


def spared_by_large_kernels_on_a_gpu():
    return launching(kernel_ms=0.24)


def provoked_by_heads_in_a_list():
    return training(group(40, 8))


def provoked_by_embedding_tables_for_the_columns_of_a_tensor():
    return training(group(30, 5, kind="Embedding", inputs=PARTS_OF_ONE))


def provoked_by_groups_that_are_small_one_by_one():
    return training(*[group(6, 3, step_frac=0.02) for _ in range(4)])


def provoked_by_modules_whose_other_operators_take_most_of_the_time():
    return training(group(2, 1, step_frac=0.3, kind="Head"))


def spared_where_no_modules_are_alike():
    return training()


def spared_where_one_operator_is_no_faster():
    return training(group(40, 38))


def spared_where_the_modules_take_little_of_a_step():
    return training(group(1, 0.2, step_frac=0.01))


def spared_where_the_layers_were_not_timed():
    return training(group(0, 0), group(40, 8, separate_ns=None, joined_ns=None))


def spared_where_the_share_is_unknown():
    return training(group(40, 8, step_frac=None))


def spared_where_a_damaged_file_has_impossible_numbers():
    return training(group(40, 8, step_frac=7.0), group(40, 8, modules=0))
