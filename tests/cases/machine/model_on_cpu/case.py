"""A model that computes on the CPU although there is a GPU."""

from dataclasses import replace

from gpulab.run import Gpu, Loader, Machine, Model, Recording, Source
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, loader_call, run_of, stepped

CARD = Gpu(index=0, name="Made GPU")
HERE = Source(how="measured", device="Made GPU")


def on_cpu(at):
    return [event(EventKind.OP, "aten::addmm", at + 10 * number, 9.5) for number in range(10)]


def run(step, *, gpus=(CARD,), models=(), activities=("cpu", "cuda"), facts=None, **more):
    plain_run = run_of(stepped(step), models=models, facts=facts or {"cuda": "True"}, **more)
    recording = Recording(windows_ns=plain_run.recording.windows_ns, activities=activities)
    return replace(plain_run, source=HERE, machine=Machine(gpus=gpus, cores_allowed=8.0), recording=recording)


def provoked_by_a_model_whose_parameters_lie_on_the_cpu():
    return run(on_cpu, models=(Model(kind="ResNet", name="net", device="cpu"),))


def provoked_by_products_on_the_cpu_and_no_kernel_at_all():
    return run(on_cpu)


def provoked_by_a_pytorch_that_cannot_use_the_gpu():
    models = (Model(kind="ResNet", name="net", device="cpu"),)
    return run(on_cpu, models=models, activities=("cpu",), facts={"cuda": "False"})


def provoked_by_a_part_of_the_model_that_stayed_behind():
    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 40),
            event(EventKind.OP, "aten::addmm", at + 41, 1),
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 41.5, 0.01),
            event(EventKind.KERNEL, "ampere_sgemm", at + 42, 57),
        ]

    return run(step, models=(Model(kind="ResNet", name="net", device="cpu and cuda"),))


def spared_because_there_is_no_gpu():
    return run(on_cpu, gpus=(), activities=("cpu",), facts={"cuda": "False"})


def spared_because_the_products_launch_kernels():
    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 40),
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 39, 0.01),
            event(EventKind.KERNEL, "ampere_sgemm", at + 40, 59),
        ]

    return run(step, models=(Model(kind="ResNet", name="net", device="cuda"),))


def spared_because_the_loader_computes():
    def step(at):
        return [
            loader_call(at, 41),
            event(EventKind.OP, "aten::mm", at, 40),
            event(EventKind.KERNEL, "sgemm", at + 42, 57),
        ]

    return run(step, loaders=[Loader(workers=0)])


def spared_because_a_cell_without_a_loop_is_for_debugging():
    made = run_of([event(EventKind.OP, "aten::addmm", 0, 90)], machine=Machine(gpus=(CARD,)))
    return replace(made, source=HERE)


def spared_because_what_the_gpu_did_could_not_be_recorded():
    return run(lambda at: [*on_cpu(at), event(EventKind.LAUNCH, "cudaLaunchKernel", at + 5, 0.01)])


def spared_because_the_trace_is_somebody_else_s():
    return replace(run(on_cpu), source=Source(how="recorded", device="Made GPU"))
