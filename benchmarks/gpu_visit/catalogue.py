"""The stages, the most valuable first, with the time that each may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage: its function, given as "module:function", runs in a process of its own."""

    name: str
    about: str
    target: str
    limit_s: int  # it is stopped after this time
    least_s: int = 20  # it is not started with less time left
    continues: bool = False  # stopped at its limit, it continues in the next call: its parts leave files
    needs_gpu: bool = False  # nothing of it can be tried without a GPU


_PACKAGE = "benchmarks.gpu_visit.stages"

STAGES = (
    Stage(
        name="environment",
        about="versions, driver, readable NVML fields, speeds of memory, copies and matrix products",
        target=f"{_PACKAGE}.environment:environment",
        limit_s=90,
    ),
    Stage(
        name="recording",
        about="does recording work: kernels, sensors, steps, live snapshots, %%gpuprofile, a first finding",
        target=f"{_PACKAGE}.recording:recording",
        limit_s=150,
    ),
    Stage(
        name="workloads",
        about="gpulab's workloads: is the planted cause the first finding",
        target=f"{_PACKAGE}.workloads:workloads",
        limit_s=240,
        continues=True,
    ),
    Stage(
        name="marked_tests",
        about="the tests marked gpu",
        target=f"{_PACKAGE}.marked_tests:marked_tests",
        limit_s=420,
        least_s=60,
    ),
    Stage(
        name="out_of_memory",
        about="what is said of a loop that runs out of GPU memory",
        target=f"{_PACKAGE}.out_of_memory:out_of_memory",
        limit_s=90,
    ),
    Stage(
        name="overhead",
        about="nothing, sensors, trace and a bare torch.profiler in alternation",
        target=f"{_PACKAGE}.overhead:overhead",
        limit_s=180,
        least_s=60,
    ),
    Stage(
        name="planted",
        about="loops with a planted cause: first finding, predicted and measured gain, virtual and real step",
        target=f"{_PACKAGE}.planted:planted",
        limit_s=540,
        least_s=60,
        continues=True,
    ),
    Stage(
        name="virtual_gpu",
        about="step times and peak memory of the virtual GPU against what the stage workloads measured",
        target=f"{_PACKAGE}.virtual_gpu:virtual_gpu",
        limit_s=540,
        least_s=60,
        continues=True,
    ),
    Stage(
        name="datasets",
        about="runs for recorded_runs/, with data cards",
        target=f"{_PACKAGE}.datasets:datasets",
        limit_s=180,
        least_s=45,
        continues=True,
    ),
    Stage(
        name="wild",
        about="ordinary training loops that use CUDA: first finding against the fastest change",
        target=f"{_PACKAGE}.wild:wild",
        limit_s=540,
        least_s=60,
        continues=True,
    ),
)
