# %% [markdown]
# # 16 Scheduling and sharing: who gets which GPU, and how much of it is used?
#
# A cluster can be full while its GPUs are idle. A scheduler hands out what jobs *request*; it does not see what they *use*. In this notebook you correct requests for Slurm and Kubernetes, write the condition that lets a job overtake another one, divide GPUs among small jobs, and write a rule that stops forgotten processes.
#
# It takes 55 minutes and needs no GPU. The queue runs here, so what it does to a list of jobs is *counted*, not estimated. What a limit of one core does is measured on your CPU. How kernels share a GPU is a *model*, whose assumptions are listed.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("16_scheduling_and_sharing")
L

# %% tags=["setup"]
import math
import tempfile
from pathlib import Path

import torch
from torch import nn

from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.machine.scheduling import (
    cluster_queue,
    core_wait,
    gpu_sharing,
    idle_week,
    job_requests,
    mig_profiles,
    team_allocation,
)
from gpulab.views.charts.drawing import plots

GIB = 2**30

# %% [markdown]
# ## The symptom
#
# A pool of 16 GPUs gets 240 jobs in three days, and starts them in the order in which they were submitted. People wait for hours. How much of the GPU time is reserved, and how much is used?
#
# The list of jobs is synthetic, with a fixed seed. Its shape is that of public traces: many small and short jobs, a few large ones, and requests that exceed the use. Microsoft's [Philly trace](https://github.com/msr-fiddle/philly-traces) has 117,325 jobs, SenseTime's [Helios traces](https://github.com/S-Lab-System-Group/HeliosData) 1.6 million that use GPUs. In [Alibaba's trace of 2023](https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023), tasks request up to 8 GPUs, or thousandths of one. According to an [analysis of Alibaba's trace of 2020](https://affinode.io/case-studies/alibaba-gpu-v2020/case-study.html), 97.9 % of the instances use less of a GPU than they request.

# %% tags=["given"]
jobs = cluster_queue.generated_jobs()
in_order = cluster_queue.run_queue(jobs, lambda pool, first, job: False)
print(f"mean wait {in_order.mean_wait_min:.0f} min, the longest {in_order.longest_wait_min / 60:.0f} h")
print(f"{in_order.reserved_frac:.0%} of the GPU time is reserved, {in_order.used_frac:.0%} is used")

# %% [markdown]
# ## What a job requests
#
# ### 16.1 A batch script and a pod
#
# A colleague's program trains on one GPU. It was measured once: four loader workers, 20 GiB of host memory, five hours. Here is its batch script for Slurm, and the same request as a pod for Kubernetes (kubectl reads JSON as well as YAML). Both are valid, and both waste a node with 8 GPUs.

# %% tags=["given"]
USE = job_requests.ProgramUse(gpus=1, workers=4, batch_bytes=64 * 3 * 224 * 224 * 4, host_gib=20, minutes=300)
OLD_SCRIPT = """#!/bin/bash
#SBATCH --job-name=finetune
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=1
#SBATCH --time=7-00:00:00

module load cuda
#SBATCH --mem=32G
srun python train.py --workers 4
"""
LIMITS = {"nvidia.com/gpu": 8, "cpu": "1", "memory": "16Gi"}
OLD_CONTAINER = {"name": "train", "image": "train:1", "resources": {"limits": LIMITS}}
OLD_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "finetune"},
    "spec": {"restartPolicy": "Never", "containers": [OLD_CONTAINER]},
}


def problem_table(problems):
    """Show the problems that the linter finds, and the source of each rule."""
    lines = [(place, one.rule, one.text, one.source) for place in problems for one in problems[place]]
    return tables.table_view(("in", "problem", "", "source"), lines or [("both", "none", "", "")], left=4)


def lint(script, pod):
    """Return the problems of a batch script and of a pod."""
    parsed = {"script": job_requests.parse_sbatch(script), "pod": job_requests.parse_pod(pod)}
    return {place: job_requests.find_problems(request, USE) for place, request in parsed.items()}


problem_table(lint(OLD_SCRIPT, OLD_POD))

# %% tags=["predict"]
L.predict("cores")

# %% [markdown]
# Rewrite both, until the linter finds nothing. Its rules follow the manuals:
#
# - sbatch reads `#SBATCH` lines only above the first command. `--gres=gpu:1` counts per node; `--gpus-per-task` requires `--ntasks` or `--gpus`; `--cpus-per-gpu` and `--cpus-per-task` exclude each other.
# - Since Slurm 22.05, `srun` does not inherit `--cpus-per-task` from sbatch. Repeat the option after `srun`, or set `SRUN_CPUS_PER_TASK`; otherwise the program may get one core.
# - A time limit tells the scheduler into which gap a job fits (16.2). Leave some reserve: Slurm ends the job at its limit.
# - In a pod, `nvidia.com/gpu` belongs in `limits`, as a whole number. `/dev/shm` has 64 MiB in most container runtimes, and workers pass batches to the main process through it. A volume `{"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}` that is mounted at `/dev/shm` makes it larger; what it stores counts towards the memory limit.

# %% tags=["measure"]
# <blank> the script: one GPU, five cores, also for srun, memory above the first command, a limit of 6 to 15 hours
# was: script = OLD_SCRIPT
script = """#!/bin/bash
#SBATCH --job-name=finetune
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=5
#SBATCH --mem=32G
#SBATCH --time=08:00:00

module load cuda
srun --cpus-per-task=5 python train.py --workers 4
"""
# </blank>
# <blank> the pod: one GPU, five CPUs, memory for the program and for /dev/shm, a volume in memory at /dev/shm
# was: pod = OLD_POD
container = {
    "name": "train",
    "image": "train:1",
    "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "5", "memory": "24Gi"}},
    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
}
volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
pod = OLD_POD | {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}}
# </blank>
problems = lint(script, pod)
problem_table(problems)

# %% tags=["claim"]
old_count = sum(map(len, lint(OLD_SCRIPT, OLD_POD).values()))
new_count = sum(map(len, problems.values()))
L.claim(
    "with one GPU, five cores, memory, shared memory and a time limit of hours, the linter finds none of the nine "
    "problems of the old script and pod",
    old_count == 9 and new_count == 0,
    before=old_count,
    after=new_count,
    unit="problems",
    source=COUNTED,
)

# %% [markdown]
# Before you submit, let the cluster check the request: `sbatch --test-only job.sh` validates the script and estimates when the job would start, and `kubectl apply --dry-run=server -f pod.json` lets the API server validate a pod. Neither knows what your program uses.
#
# Next, measure what one core costs. The cell limits a process on your machine to the number of cores that you reserve, with `os.sched_setaffinity`; Slurm does this with task affinity and cgroups. (A CPU limit of Kubernetes is a share of time instead: once the container has used its share of a period of 100 ms, the kernel stops its threads until the next period.) Two workers load items that need CPU time; the main process mostly sleeps, in place of a GPU step.

# %% tags=["measure"]
# <blank> a core for each of the two workers
# was: reserved_cores = 1
reserved_cores = 2
# </blank>
epochs = core_wait.epochs_with_cores(sorted({1, reserved_cores}))
tables.table_view(
    ("cores", "used by workers", "workers PyTorch suggests", "CPU time / cores, s", "epoch, s", "waiting for data"),
    [
        (
            count,
            epoch.used,
            epoch.suggested,
            f"{core_wait.ITEMS * core_wait.ITEM_CPU_S / count:.2f}",
            f"{epoch.wall_s:.2f}",
            f"{epoch.wait_frac:.0%}",
        )
        for count, epoch in epochs.items()
    ],
    below="Measured here: the fastest of six epochs each. Other programs on the second core reduce the gain.",
)

# %% tags=["claim"]
display(L.reveal("cores"))
one_core, all_cores = epochs[1], epochs[reserved_cores]
L.claim(
    "with one core, both workers run on it, and an epoch takes at least the CPU time of all items; with the "
    "cores that you reserve, they run on several, and PyTorch suggests more than one worker",
    one_core.used == one_core.suggested == 1
    and min(all_cores.used, all_cores.suggested) >= 2
    and one_core.wall_s >= core_wait.ITEMS * core_wait.ITEM_CPU_S,
    before=one_core.used,
    after=all_cores.used,
    unit="cores used",
    source=MEASURED,
)

# %% [markdown]
# ## Who is next
#
# ### 16.2 Strict order, backfill, parts of a GPU
#
# The first job of the queue needs 8 GPUs, and 3 are free. In strict order, these 3 stay free until 5 more are. *Backfill* lets another job start now, if that does not delay the first one. The scheduler can promise this because each job has a time limit: it knows when running jobs end at the latest.

# %% tags=["predict"]
L.predict("overtake")


# %% [markdown]
# `pool.planned_start(first)` returns when there will be room for the first job at the latest, and `pool.planned_start(first, also=job)` the same if `job` starts now. Write the condition. For comparison, the cell also runs the queue with time limits of 7 days on every job, and with a condition that is always true: whatever fits may start.

# %% tags=["measure"]
def may_overtake(pool, first, job):
    """Return whether a job, for which there is room now, may start before the first of the queue."""
    # <blank> True if the planned start of the first job does not become later
    # was: return False
    return pool.planned_start(first, also=job) <= pool.planned_start(first)
    # </blank>


backfill = cluster_queue.run_queue(jobs, may_overtake)
seven_days = cluster_queue.run_queue(cluster_queue.with_limits(jobs, 7 * 24 * 60), may_overtake)
greedy = cluster_queue.run_queue(jobs, lambda pool, first, job: True)
queues = {
    "strict order": in_order,
    "your condition": backfill,
    "the same, limits of 7 days": seven_days,
    "whatever fits": greedy,
}
tables.table_view(
    (*cluster_queue.OUTCOME_HEADER, "first jobs delayed"),
    [(name, *outcome.cells, outcome.late_heads) for name, outcome in queues.items()],
    below="Counted here, for 240 jobs on 16 GPUs. A first job is delayed if it starts later than planned when it "
    "became first.",
)

# %% tags=["claim"]
display(L.reveal("overtake", backfill.mean_wait_min / in_order.mean_wait_min, "%"))
L.claim(
    "backfill cuts the mean wait to less than a third, and delays no first job; if whatever fits may start, 8-GPU jobs "
    "wait longer than in strict order",
    backfill.mean_wait_min < in_order.mean_wait_min / 3
    and backfill.late_heads == 0
    and greedy.wait_of_min(8) > in_order.wait_of_min(8),
    before=in_order.mean_wait_min,
    after=backfill.mean_wait_min,
    unit="min",
    source=COUNTED,
)

# %% [markdown]
# The condition never delays the first job beyond its planned start. Slurm's backfill plugin goes further: it protects the expected start of every job with a higher priority. With limits of 7 days on every job, planned starts are days later than real ones. No gap is long enough for a job, and the promise to the first one is worth little: the mean wait is almost twice as long, and the 8-GPU jobs wait longer than in strict order.
#
# Next, the requests. Three of four jobs ask for one GPU, and use a part of it. Assume that the cluster offers quarters of a GPU, and that a job on its part runs as fast as before. How a GPU can be divided is the subject of 16.3 and 16.4.

# %% tags=["predict"]
L.predict("fractions")


# %% tags=["measure"]
def request(job):
    """Return the GPUs to request: whole ones for a job with several, quarters for a job with one."""
    # <blank> if job.gpus is 1: job.share, what the job uses of its GPU, rounded up to a quarter; else job.gpus
    # was: return job.gpus
    return job.gpus if job.gpus > 1 else math.ceil(4 * job.share) / 4
    # </blank>


parts = cluster_queue.run_queue(cluster_queue.with_requests(jobs, request), may_overtake)
queues = {"strict order": in_order, "backfill": backfill, "backfill, quarters": parts}
display(
    tables.table_view(
        cluster_queue.OUTCOME_HEADER,
        [(name, *outcome.cells) for name, outcome in queues.items()],
        below="Counted here.",
    )
)
plots.bar_plot(
    "Backfill, then smaller requests: the same work, less waiting",
    {name: outcome.mean_wait_min for name, outcome in queues.items()},
    x="mean wait, minutes",
    source=COUNTED,
)

# %% tags=["claim"]
display(L.reveal("fractions"))
L.claim(
    "with quarters of a GPU, the mean wait falls by another 40 %, and two thirds or more of what is reserved is used",
    parts.mean_wait_min < 0.6 * backfill.mean_wait_min and parts.used_frac / parts.reserved_frac > 2 / 3,
    before=backfill.mean_wait_min,
    after=parts.mean_wait_min,
    unit="min",
    source=COUNTED,
)


# %% [markdown]
# The 8-GPU jobs gain nothing: each of them starts when it did before. Two of them fit on 16 GPUs only if all are entirely free, and a quarter that is taken blocks a GPU for them as much as a whole one. (Try `return 0.01` for the small jobs: the 8-GPU jobs still wait as long.) Alibaba's trace of 2023 belongs to a paper about this *fragmentation*.
#
# **Exercise: the order.** Back to whole GPUs. The order of the queue is yours: the job with the smallest number is first. If the shortest job is always first, the mean wait falls, but long jobs wait behind all others. Bring the mean wait to 60 minutes or less, with no wait of more than 16 hours. `L.hint("waiting")` helps.

# %% tags=["exercise"]
def order(job, now_min):
    """Return a number; the job with the smallest one is first."""
    # <blank> use job.limit_min, job.submit_min and now_min
    # was: return job.submit_min
    return job.limit_min - (now_min - job.submit_min)
    # </blank>


ordered = cluster_queue.run_queue(jobs, may_overtake, order=order)
print(f"mean wait {ordered.mean_wait_min:.1f} min, the longest {ordered.longest_wait_min / 60:.1f} h")
L.score("waiting", math.ceil(ordered.mean_wait_min) if ordered.longest_wait_min <= 16 * 60 else None)

# %% [markdown]
# Real schedulers add up several numbers in the same way: Slurm's multifactor priority has the age of a job, its size, its partition, and *fair share*, which lowers the priority of those who used much recently. *Quotas* limit what a team can hold (`ResourceQuota` in Kubernetes, limits of an association or QOS in Slurm). *Preemption* lets a job with a high priority take GPUs from one with a low priority, which is ended or requeued: it needs checkpoints.

# %% [markdown]
# ## Sharing one GPU
#
# ### 16.3 Seven small jobs
#
# Seven processes each launch a small kernel, compute on their core for a while, and launch the next. Four ways to run them on one GPU:
#
# - *One after the other*: the queue gives the GPU to one job at a time.
# - *Time slicing*, what a GPU does by default with several processes: kernels of different processes take turns. In Kubernetes, the setting `replicas` of NVIDIA's device plugin offers one GPU several times. According to NVIDIA's documentation, there is no memory or fault isolation between replicas.
# - *MPS* (multi-process service): kernels of several processes run at the same time. Since Volta, each client has its own address space, and `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` and `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` limit its multiprocessors and its memory. A fatal fault of one client also ends the others on that GPU.
# - *MIG* (multi-instance GPU): the GPU is divided into instances with their own multiprocessors, L2 slices and memory. A fault or a load in one does not affect the others, apart from what all share, such as PCIe and the power limit.

# %% tags=["predict"]
L.predict("slices")

# %% [markdown]
# The next cell simulates all four. Its assumptions: a kernel takes 1 ms and occupies 12 % of the multiprocessors; a job computes on its core for 6 to 14 ms between kernels; every tenth kernel of the seventh job takes 30 ms on a whole GPU, which it fills. A time slice is 2 ms, a switch 0.2 ms. Kernels that run at the same time share multiprocessors in proportion, but neither bandwidth nor caches, so the model is kind to MPS. An instance has 16 of 132 multiprocessors. Write the worst case for a small kernel under time slicing.

# %% tags=["measure"]
SLICE, SWITCH, KERNEL = gpu_sharing.SLICE_MS, gpu_sharing.SWITCH_MS, gpu_sharing.KERNEL_MS


def worst_ms(processes):
    """Return the longest time from the launch of a small kernel to its end, with time slicing."""
    # <blank> every other process first gets a switch and a slice; then a switch and the kernel itself
    # was: return SWITCH + KERNEL
    return (processes - 1) * (SWITCH + SLICE) + SWITCH + KERNEL
    # </blank>


shared = gpu_sharing.share_in_all_modes()
sliced = shared["time slicing"]
tables.table_view(
    ("seven jobs", "kernel: median, ms", "99 %, ms", "longest, ms", "steady jobs done, s", "all done, s"),
    [
        (
            mode,
            *(f"{value:.1f}" for value in (one.median_ms, one.p99_ms, one.longest_ms)),
            *(f"{value / 1000:.1f}" for value in (one.steady_ms, one.total_ms)),
        )
        for mode, one in shared.items()
    ],
    below=f"Simulated. Kernels of the six steady jobs, from launch to end; your worst case: {worst_ms(7):.1f} ms.",
)

# %% tags=["claim"]
display(L.reveal("slices"))
L.claim(
    "with time slicing, at least 1 % of the small kernels take more than twice the median, and none more than "
    "six slices, seven switches and its own time; MPS and MIG finish the six steady jobs sooner, in less than a "
    "fifth of the time that they need one after the other",
    sliced.p99_ms > 2 * sliced.median_ms
    and sliced.longest_ms <= worst_ms(gpu_sharing.JOBS)
    and math.isclose(worst_ms(gpu_sharing.JOBS), 6 * SLICE + 7 * SWITCH + KERNEL)
    and all(
        shared[mode].steady_ms < min(sliced.steady_ms, shared["one after the other"].steady_ms / 5)
        for mode in ("MPS", "MIG")
    ),
    before=sliced.median_ms,
    after=sliced.p99_ms,
    unit="ms",
    source=SIMULATED,
)

# %% [markdown]
# Look at the last column: in the model, MIG isolates the six steady jobs entirely, and the seventh pays for it. Its long kernels have an eighth of the GPU even while the rest is idle. A larger profile would suit this job.
#
# ### 16.4 Choose a MIG profile
#
# A profile such as `2g.20gb` has two of seven compute slices, and about 20 of 80 GB. The numbers below are what `nvidia-smi mig -lgip` lists for an H100 SXM with 80 GB; the memory differs by about 0.1 GiB between drivers. (An A100 with 80 GB has profiles of the same names, but fewer multiprocessors; those of an H200 with 141 GB are 1g.18gb, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb and 7g.141gb.) Once MIG mode is enabled, an administrator creates instances with `nvidia-smi mig -cgi 2g.20gb -C`; do not do this on a GPU that others use.

# %% tags=["given"]
tables.table_view(
    ("profile", "compute slices of 7", "memory slices of 8", "memory, GiB", "multiprocessors", "at most"),
    [(one.name, one.compute, one.memory, one.gib, one.sms, one.instances) for one in mig_profiles.H100_PROFILES],
    below="NVIDIA's MIG User Guide, and nvidia-smi mig -lgip. Seven 1g.10gb have 112 of 132 multiprocessors.",
)

# %% tags=["predict"]
L.predict("profile")


# %% [markdown]
# Here are four training jobs. `gpulab.virtual.fits` runs a step of each on a virtual H100 and estimates the memory that the job needs, with CUDA's context and the allocator's reserve. The multiprocessors that each can use are given. Choose the smallest profile that has enough of both.

# %% tags=["measure"]
def training(width, layers, batch):
    """Return what `fits` needs: a function that builds a model, and returns a function that runs a step."""

    def build():
        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        model = nn.Sequential(*blocks).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            model(torch.randn(batch, width, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def choose(need):
    """Return the smallest profile with enough memory and multiprocessors for a job."""
    # <blank> among mig_profiles.H100_PROFILES, which are in order of size, the first with enough bytes and sms
    # was: return mig_profiles.H100_PROFILES[-1]
    profiles = mig_profiles.H100_PROFILES
    return next(one for one in profiles if one.bytes >= need.bytes and one.sms >= need.sms)
    # </blank>


PROGRAMS = {  # width, layers, batch; multiprocessors
    "wide kernels": ((1024, 8, 32_768), 30),
    "tagger": ((512, 14, 114_688), 14),
    "reranker": ((512, 14, 145_408), 12),
    "long batches": ((512, 14, 262_144), 22),
}
needs = []
for name, (sizes, sms) in PROGRAMS.items():
    estimate = gpulab.virtual.fits(training(*sizes), "h100").fit.estimate
    needs.append(mig_profiles.MigNeed(name=name, bytes=estimate.needed_bytes, sms=sms))
    print(f"{name:12} tensors {estimate.peak.bytes / 1e9:5.2f} GB, needed {estimate.needed_bytes / GIB:5.2f} GiB")
chosen = [choose(need) for need in needs]
tables.table_view(
    ("job", "needs, GiB", "multiprocessors", "profile", "has, GiB", "multiprocessors"),
    [mig_profiles.profile_cells(need, profile) for need, profile in zip(needs, chosen, strict=True)],
    below="Memory estimated by a virtual H100.",
)

# %% tags=["claim"]
display(L.reveal("profile"))
enough = all(
    profile.bytes >= need.bytes and profile.sms >= need.sms for need, profile in zip(needs, chosen, strict=True)
)
L.claim(
    "four jobs that had a GPU each fit into instances of one, in three sizes; the job with 9.9 GB of tensors needs the "
    "20 GB profile",
    enough and mig_profiles.fit_on_one_gpu(chosen) and len(set(chosen)) == 3 and chosen[2].name == "1g.20gb",
    before=4,
    after=1,
    unit="GPUs",
    source="virtual H100, estimated",
)

# %% [markdown]
# Instances are requested like GPUs: for example `--gres=gpu:1g.10gb:1` if the site named its type so, or `nvidia.com/mig-1g.10gb: 1` with the *mixed* strategy of NVIDIA's device plugin. A CUDA process can use one instance only: two small ones do not replace a larger one. Slices are also bound to positions on the chip, so two layouts with the same sum can differ in what is possible; `nvidia-smi mig -lgipp` lists the positions.

# %% [markdown]
# ## What was left behind
#
# ### 16.5 Idle GPUs: a report and a reaper
#
# `gpulab watch` records which processes hold which GPU; `gpulab.history()` reports it. Here is a synthetic week of eight GPUs, written into a history of its own. First the report, then the list: hours held, and hours used. A *reaper* is a program that stops idle processes.

# %% tags=["predict"]
L.predict("idle")

# %% tags=["measure"]
folder = tempfile.TemporaryDirectory()
week = Path(folder.name) / "watch.sqlite"
idle_week.write_idle_week(week)
report = idle_week.process_report(week)
print(gpulab.history("7d", path=week).sheet.blocks[0].claim)
tables.table_view(
    ("program", "held, h", "used, h", "idle, h"),
    [(one.label, f"{one.held_h:.0f}", f"{one.used_h:.0f}", f"{one.idle_h:.0f}") for one in report],
    below="Of the synthetic week, from gpulab's history. Used: hours times utilisation; idle: utilisation "
    "below 5 %. Xorg shares its GPU with a pretrain.py, so the report above counts fewer idle hours.",
)

# %% [markdown]
# Three of these were left behind: `explore.ipynb`, `old_eval.py`, and `sweep.py`, which hangs. Others only look idle: `serve.py` waits for requests; `finetune.py` validates on the CPU; `Xorg` holds hardly any memory. The `debug session` is interactive: its owner wrote a checkpoint, went away for five hours, and came back.
#
# Write a rule: stop a process that has computed nothing for at least two hours, holds at least 1 GiB, and is not on the list of announced breaks.

# %% tags=["measure"]
GRACE = {"debug session"}  # announced: back at 19:00


def may_stop(process, limit_min=120):
    """Return whether to stop a process. It has idle_min (minutes without work), memory_gib, name and user."""
    # <blank> idle for at least limit_min, at least 1 GiB of memory, its name not in GRACE
    # was: return False
    return process.idle_min >= limit_min and process.memory_gib >= 1 and process.name not in GRACE
    # </blank>


outcome = idle_week.reap(may_stop)
for one in outcome.stopped:
    print(f"hour {one.at_min / 60:5.1f} of the week: stop {one.stay.name:14} {one.returned_h:5.1f} GPU-hours back")
limits = {limit: idle_week.reap(lambda process, limit=limit: may_stop(process, limit)) for limit in (30, 60, 120, 480)}
display(
    tables.table_view(
        ("limit, min", "GPU-hours back", "stopped, but would have worked again"),
        [(limit, f"{one.returned_h:.0f}", ", ".join(one.wrong) or "nobody") for limit, one in limits.items()],
        below="Your rule with other limits. Counted here.",
    )
)

# %% tags=["claim"]
display(L.reveal("idle"))
L.claim(
    "a limit of two hours and a list of breaks stop only the three processes that were left behind, and return more "
    "than half of all idle GPU-hours; a limit of 30 minutes stops two programs that would have worked again",
    set(outcome.names) == {"explore.ipynb", "old_eval.py", "sweep.py"}
    and outcome.returned_h > outcome.idle_h / 2
    and set(limits[30].wrong) == {"finetune.py", "serve.py"},
    before=outcome.idle_h,
    after=outcome.idle_h - outcome.returned_h,
    unit="idle GPU-hours",
    source=COUNTED,
)

# %% [markdown]
# Without the list, the rule would have stopped the debug session as well: five hours are more than two. A checkpoint limits the damage, but the owner still loses the session. So warn the owner first, send SIGTERM before SIGKILL, and requeue batch jobs from their checkpoint. Low utilisation alone is no reason to stop a process: `serve.py` uses 3 % of its GPU; give it a smaller part of one.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 16.6 Which way to share?
#
# There are five ways to use a GPU from several jobs. *Passthrough* hands a whole GPU to a virtual machine. *vGPU* lets a hypervisor give each virtual machine a share: time-sliced, or backed by MIG instances; the memory of each is fixed, the software is licensed. *MIG*, *MPS* and *time slicing* are explained in 16.3.
#
# Assign each of the five to one situation. In *strangers*, several customers share a GPU, in containers.

# %% tags=["check"]
# <blank> replace each None by "MIG", "MPS", "time slicing", "vGPU" or "passthrough"
# was: modes = {
# was:     "strangers": None,
# was:     "one team, tiny kernels": None,
# was:     "notebooks, mostly idle": None,
# was:     "virtual machines, live migration": None,
# was:     "a VM that trains on a whole GPU": None,
# was: }
modes = {
    "strangers": "MIG",
    "one team, tiny kernels": "MPS",
    "notebooks, mostly idle": "time slicing",
    "virtual machines, live migration": "vGPU",
    "a VM that trains on a whole GPU": "passthrough",
}
# </blank>
L.check("modes", modes)

# %% [markdown]
# Notebooks that share by time slicing still need an agreement about memory: nothing limits what each of them allocates, and one that takes all of it stops the others with an out-of-memory error.
#
# A time-sliced vGPU has one more choice: how the hypervisor shares the time. NVIDIA's [vGPU software](https://docs.nvidia.com/ai-enterprise/release-8/8.1/infra-software/vgpu/features/scheduling.html) has three policies. With *best effort*, the default, virtual machines that have work take turns. With *equal share*, each running machine gets the same share of the time. With *fixed share*, each vGPU that the GPU has room for gets its share, even while others are idle.
#
# The next cell puts each of the seven jobs of 16.3 into a virtual machine and simulates best effort and your policy: once with all seven machines, and once while the seventh, which runs the long kernels, is off.

# %% tags=["predict"]
L.predict("shares")

# %% tags=["measure"]
SLOT_MS = gpu_sharing.SLICE_MS + gpu_sharing.SWITCH_MS  # a slot begins with the switch to its owner


def best_effort(now_ms):
    """Nobody owns the GPU: machines that wait take turns."""
    return None


def fixed_share(now_ms):
    """Return the number of the machine, 0 to 6, that owns the GPU at this time, whether it has work or not."""
    # <blank> slots of SLOT_MS, for the machines 0, 1, ... 6, 0, 1, ... in turn
    # was: return None
    return int(now_ms // SLOT_MS) % gpu_sharing.JOBS
    # </blank>


policies = {
    (policy.__name__, machines): gpu_sharing.share_vgpus(policy, machines)
    for policy in (best_effort, fixed_share)
    for machines in (6, 7)
}
tables.table_view(
    ("policy", "machines", "kernel: median, ms", "99 %, ms", "longest, ms", "steady jobs done, s", "all done, s"),
    [
        (
            name,
            machines,
            *(f"{value:.1f}" for value in (one.median_ms, one.p99_ms, one.longest_ms)),
            *(f"{value / 1000:.1f}" for value in (one.steady_ms, one.total_ms)),
        )
        for (name, machines), one in policies.items()
    ],
    below="Simulated. Kernels of the six steady jobs, from launch to end.",
)

# %% tags=["claim"]
display(L.reveal("shares"))
best_6, best_7, fixed_6, fixed_7 = policies.values()
owners = [fixed_share((slot + 0.5) * SLOT_MS) for slot in range(8)]  # in the middle of each slot
L.claim(
    "with fixed shares, each kernel of six machines takes exactly as long whether the seventh is off or busy; with "
    "best effort a busy neighbour makes kernels wait, but the median kernel takes less than half as long",
    owners == [0, 1, 2, 3, 4, 5, 6, 0]
    and fixed_6.kernel_ms == fixed_7.kernel_ms
    and best_7.median_ms > 1.25 * best_6.median_ms
    and best_7.median_ms < fixed_7.median_ms / 2,
    before=fixed_7.median_ms,
    after=best_7.median_ms,
    unit="ms, the median of the kernels",
    names=("fixed share", "best effort"),
    source=SIMULATED,
)

# %% [markdown]
# So isolation has a price: a slot whose owner has nothing to run is lost, and the seventh job takes more than twice as long. Choose fixed shares if customers pay for a guaranteed part, and best effort if they share a budget. A vGPU that is backed by a MIG instance needs no such policy: its machine has multiprocessors of its own.

# %% [markdown]
# ### 16.7 Allocation by live need
#
# Four teams have 8 GPUs each, whether they need them or not. A controller reads their need every ten minutes, and decides how many each has in the next ten. The week is synthetic: one team works by day, one runs large jobs in the evening and at night, one trains every night until 4 o'clock, and one has no rhythm. A change costs something: a job is moved, or a node is drained.

# %% tags=["predict"]
L.predict("hysteresis")


# %% tags=["measure"]
def with_hysteresis(gpus, recent):
    """Return the GPUs of a team for the next ten minutes; `recent` is its need in the last hour, the latest last."""
    # <blank> the largest recent need: keep `gpus` if it lies between gpus - 1.5 and gpus, else return it, rounded up
    # was: return math.ceil(recent[-1])
    need = max(recent)
    return gpus if gpus - 1.5 <= need <= gpus else math.ceil(need)
    # </blank>


rules = {"8 for each": team_allocation.keep_all, "follow": team_allocation.follow_need, "yours": with_hysteresis}
weeks = {name: team_allocation.allocate(rule) for name, rule in rules.items()}
display(
    tables.table_view(
        ("rule", "idle GPU-hours", "missing GPU-hours", "changes"),
        [(name, *one.cells) for name, one in weeks.items()],
        below="A week of four teams. Missing: needed, and not there yet. Counted here.",
    )
)
needed = team_allocation.generated_needs()["ranking"]
first, last = team_allocation.RECENT_PERIODS, team_allocation.DAY_PERIODS // 2
plots.line_plot(
    "Fewer changes: up at once, down after an hour",
    {
        "need": {period / 6: float(needed[period]) for period in range(first, last)},
        "follow": team_allocation.allocations_of(team_allocation.follow_need, "ranking", last),
        "yours": team_allocation.allocations_of(with_hysteresis, "ranking", last),
    },
    x="hour of Monday",
    y="GPUs of a team",
    source=COUNTED,
)

# %% tags=["claim"]
static, follow, mine = weeks.values()
display(L.reveal("hysteresis", mine.moves / follow.moves, "%"))
L.claim(
    "with hysteresis, idle GPU-hours fall by more than 60 %, with less than a fifth of the changes that following each "
    "reading causes, and less is missing",
    mine.idle_gpu_h < 0.4 * static.idle_gpu_h
    and mine.moves < 0.2 * follow.moves
    and mine.missing_gpu_h < follow.missing_gpu_h,
    before=follow.moves,
    after=mine.moves,
    unit="changes",
    source=COUNTED,
)

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "d"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# Reserved and used are different numbers; look at both before you ask for more GPUs. Request what the program uses, with a core for each process, shared memory for its workers, and a realistic time limit. Backfill turns such limits into shorter queues. Small jobs need parts of a GPU: MIG if they must not affect each other, MPS if they belong together, time slicing if they seldom compute at the same time. Take idle GPUs back by a rule that allows for the pauses of real work, and change allocations with hysteresis.

# %% tags=["card"]
L.card()
