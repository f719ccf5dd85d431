# %% [markdown]
# # 01 What is utilisation?
#
# The monitor shows *GPU-Util 100 %*. Is the GPU working hard? In this lesson you find out what this number measures, which other counters show what it leaves out, and which counter you should use to rank jobs.
#
# Without a GPU, the CUDA cells run on a virtual H100, and their results say so: the times come from a model of the hardware and from the launch times measured on this computer. With a CUDA GPU, the same cells should run on it (untested).

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("01_what_is_utilisation")
L

# %% [markdown]
# ## The symptom
#
# ### 01.1 One multiprocessor or all of them
#
# A shop has scores for a million items, and wants to know each user's most likely item and its probability. The first version processes one user after the other and takes all night. The owner looks at the monitor, says "the GPU is the bottleneck", and asks for the price of a second one.
#
# A GPU consists of *multiprocessors* that work in parallel; an H100 has 132. A call such as `softmax` launches a *kernel*, a function that runs on the GPU. The work of a kernel is divided into *blocks*, and each block runs on one multiprocessor. Softmax over one row is a single block.
#
# What does the monitor show? People use *GPU utilisation* with two meanings: the share of time in which anything runs on the GPU, and the share of the GPU's hardware that is in use. Decide which of them the monitor shows before you continue.

# %% tags=["given"]
import time

import numpy as np
import torch

from gpulab.lessons import SIMULATED
from gpulab.lessons.labs.machine import hot_card, sampling, utilisation
from gpulab.lessons.labs.machine.utilisation import gpu_load

users, items = 256, 1 << 20
steps = L.pick(tiny=8, lab=8, full=20)


def one_by_one(scores):
    return [torch.softmax(row, 0).max(0) for row in scores]


def all_at_once(scores):
    return torch.softmax(scores, 1).max(1)


def multiply(matrix):
    for _ in range(20):
        result = matrix @ matrix
    return result


def run_steps(work, argument):
    """Run the work several times; gpulab.step() marks the end of a step that has no DataLoader and no optimizer."""
    for _ in range(steps):
        result = work(argument)
        torch.cuda.synchronize()
        gpulab.step()
    return result


# %% tags=["predict"]
L.predict("busy")

# %% [markdown]
# `with L.gpu("name"):` records a block of CUDA code as a run with this name, on your GPU or on the virtual one. `gpu_load` then calculates four shares from the run:
#
# - *busy*: the share of time in which anything runs on the GPU;
# - *filled*: the share of multiprocessors that have work while a kernel runs;
# - *MFU* (model FLOPs utilisation): the arithmetic done in matrix products and convolutions, divided by the arithmetic that the GPU could do in 16 bits in that time. Strictly, what the GPU did is HFU (hardware FLOPs utilisation); MFU leaves out what is computed twice, as with activation checkpointing. These jobs compute nothing twice, so both are equal;
# - *traffic*: the bytes that the kernels must read and write at least, divided by what the memory bandwidth allows in that time.
#
# A dash means that the run does not contain this information. The second job multiplies large matrices, which fill the GPU.

# %% tags=["measure"]
with L.gpu("user by user"):
    run_steps(one_by_one, torch.randn(users, items, device="cuda"))

with L.gpu("matrices"):
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    # <blank> run the second job in the same way: run_steps calls multiply on matrix
    # was: run_steps(all_at_once, torch.randn(users, items, device="cuda"))
    run_steps(multiply, matrix)
    # </blank>

narrow, wide = (gpu_load(gpulab.runs[name]) for name in ("user by user", "matrices"))
utilisation.utilisation_table(narrow, wide)

# %% tags=["reveal"]
L.reveal("busy", narrow.busy_frac, "%")

# %% [markdown]
# Monitors read utilisation from NVML, NVIDIA's management library. Its reference defines utilisation as the share of the last sampling period *in which one or more kernels ran on the GPU*. That is *busy* in the table.
#
# The owner took it for *filled*. One block on 132 multiprocessors is 0.8 %. A second, very short kernel, which finds the largest number, fills the GPU and raises the mean to a few per cent.
#
# How much work was done? The first row has no MFU, because this table counts only matrix products and convolutions. Counted by hand, softmax needs about five operations per number (compare, subtract, exponential, add, divide).

# %% tags=["claim"]
narrow_flops = utilisation.SOFTMAX_FLOPS * users * items / narrow.step_ns  # operations per ns = GFLOP/s
wide_flops = (wide.flops or 0) / wide.step_ns
L.claim(
    "both jobs keep the GPU busy at least 95 % of the time, but one does at least 50 times as much arithmetic per "
    "second",
    min(narrow.busy_frac, wide.busy_frac) >= 0.95 and wide_flops >= 50 * narrow_flops,
    before=narrow_flops,
    after=wide_flops,
    unit="GFLOP/s",
    names=("user by user", "matrices"),
    source=gpulab.runs["matrices"],
)

# %% [markdown]
# So utilisation does not measure how much of the GPU works: any kernel counts, however small. A reading of 100 % says that the GPU does not wait. It does not say that the GPU is full, or fast.
#
# ### The fix: process all users at once
#
# If one row fills one multiprocessor, 256 rows fill all of them. First check that the result is the same. A virtual GPU does not compute numbers, so this check runs on the CPU.

# %% tags=["same"]
torch.manual_seed(0)
small_scores = torch.randn(8, 1000)
results_one_by_one = [torch.stack(part) for part in zip(*one_by_one(small_scores), strict=True)]
L.same(results_one_by_one, list(all_at_once(small_scores)))

# %% tags=["measure"]
with L.gpu("all at once"):
    scores = torch.randn(users, items, device="cuda")
    # <blank> process all users in one call: all_at_once
    # was: run_steps(one_by_one, scores)
    run_steps(all_at_once, scores)
    # </blank>

filled = gpu_load(gpulab.runs["all at once"])
utilisation.utilisation_table(narrow, filled)

# %% tags=["claim"]
L.claim(
    "processing all users at once takes at most a fifth of the time; utilisation changes by less than 20 points",
    5 * filled.step_ns <= narrow.step_ns and abs(filled.busy_frac - narrow.busy_frac) < 0.2,
    before=narrow.step_ns / 1e6,
    after=filled.step_ns / 1e6,
    unit="ms",
    source=gpulab.runs["all at once"],
)

# %% [markdown]
# No second GPU was needed, and the monitor shows no improvement: utilisation is about the same, or a little lower. Which counter reveals the problem from the slow run alone?

# %% tags=["check"]
# <blank> "a", "b" or "c"; run the cell once to see the question
# was: answer = None
answer = "b"
# </blank>
L.check("tell", answer)

# %% [markdown]
# ## Sampling rate
#
# ### 01.2 One reading per second, 20 per second, or a trace
#
# This job waits for a file server for a quarter of a second, then multiplies matrices for three quarters of a second, and repeats this. Its true utilisation is 75 %. What does a monitor show that takes one reading per second?

# %% tags=["predict"]
L.predict("sampled")

# %% [markdown]
# `%%gpuprofile --virtual auto` does the same for a whole cell as `L.gpu` for a block, and shows the report. The waiting is real. `matmul_repeats` uses the GPU's own clock to find out how many products take 750 ms.

# %% tags=["measure"]
# %%gpuprofile --virtual auto bursts
from torch.utils.data import DataLoader

matrix = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
products = utilisation.matmul_repeats(matrix, milliseconds=750)
for _ in DataLoader(sampling.SlowDataset(12, wait_s=0.25), batch_size=None):
    for _ in range(products):
        result = matrix @ matrix
    torch.cuda.synchronize()

# %% [markdown]
# The report is based on the *trace*: a record of every kernel with its start and its end. From the trace you can calculate what any monitor would have shown. `sample(1)` returns one reading per second; each covers the sixth of a second before it, the driver's shortest sampling period. `worst_error(1)` repeats this with sixty different start times, and returns the largest error of the mean. (The true value is calculated from the trace in two ways, which must agree.)

# %% tags=["measure"]
watched = sampling.busy_timeline(gpulab.runs["bursts"])
half_ns = 500_000_000
print(f"true value: busy {100 * watched.busy_frac:.1f} % of {(watched.end_ns - watched.start_ns) / 1e9:.1f} s")
print("one reading per second:               ", [f"{100 * reading:.0f} %" for reading in watched.sample(1)])
print("the same, started half a second later:", [f"{100 * reading:.0f} %" for reading in watched.sample(1, half_ns)])
# <blank> the number of readings per second of a monitor that takes one per second
# was: slow_hz = 20
slow_hz = 1
# </blank>
slow_error, fast_error = watched.worst_error(slow_hz), watched.worst_error(20)
busy_ns = sampling.busy_ns_by_events(gpulab.runs["bursts"], watched.start_ns, watched.end_ns)  # event by event
trace_error = abs(busy_ns / (watched.end_ns - watched.start_ns) - watched.busy_frac)
print(f"largest error: {100 * slow_error:.0f} points at {slow_hz} per second, {100 * fast_error:.1f} at 20 per second")

# %% tags=["reveal"]
L.reveal("sampled", 100 * slow_error, "points")

# %% tags=["claim"]
L.claim(
    "one reading per second can be wrong by more than 20 points, 20 per second by less than 5, and a trace by 0",
    slow_hz == 1 and slow_error > 0.2 and fast_error < 0.05 and trace_error == 0,
    before=100 * slow_error,
    after=100 * fast_error,
    unit="points",
    names=(f"{slow_hz} per second", "20 per second"),
    source=gpulab.runs["bursts"],
)

# %% [markdown]
# Two people can watch the same job, and one sees 0 % where the other sees 100 %. An error this large needs a coincidence, which this experiment arranges: the job repeats as often as the monitor reads, and the recording is short. If the two periods differ a little, the readings move through the job, and their mean over a long time is right. Look for such a coincidence at the interval of your own monitor: many store one reading every 15, 30 or 60 seconds, and jobs often validate or save a checkpoint about once a minute.
#
# Even a correct mean hides information: pauses of a few milliseconds disappear inside each reading. Only the trace shows why the GPU waited; the report above names the cause.
#
# ### Exercise: few readings at the right interval
#
# Is a higher sampling rate the only solution? Take a simulated job of one minute that is busy for the last 700 ms of each second. Choose the interval between two readings, in milliseconds, so that the mean of as few readings as possible is correct to within 5 points, whenever the first reading is taken. An interval of 50 ms needs 19 readings; the target is 3. Try several values. `L.hint("plan")`, in a new cell, gives up to three hints.

# %% tags=["score"]
job = sampling.periodic_job(period_ms=1000, busy_ms=700, count=60)
# <blank> the interval between two readings, in milliseconds
# was: plan_ms = None
plan_ms = 1333
# </blank>
print(sampling.describe_plan(plan_ms, job))
L.score("plan", sampling.readings_needed(plan_ms, job) if plan_ms else None)

# %% [markdown]
# ## Two metrics called memory
#
# ### 01.3 Allocated memory and memory traffic
#
# A monitor shows *memory used*, in bytes, and sometimes *memory utilisation*. NVML defines memory utilisation as the share of the sampling period in which device memory was being read or written. It describes the memory controller, which moves data between memory and multiprocessors; it does not say how full the memory is. A popular rule confuses the two: *if GPU memory utilisation is low, increase the batch size*.

# %% tags=["predict"]
L.predict("memory")


# %% [markdown]
# Here are two jobs. The first one allocates three quarters of the memory, which nothing reads, and multiplies matrices. The second one allocates little, and doubles the numbers of a long vector. *Traffic* takes the place of the driver's memory utilisation, which is usually higher: it counts all the time in which any memory access happens, and kernels read some data more than once.

# %% tags=["measure"]
def double(numbers):
    for _ in range(20):
        result = numbers * 2
    return result


used = {}
with L.gpu("full memory"):
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    # <blank> allocate three quarters of the free bytes, torch.cuda.mem_get_info()[0], as a tensor of torch.uint8
    # was: unused_buffer = None
    unused_buffer = torch.empty(torch.cuda.mem_get_info()[0] * 3 // 4, dtype=torch.uint8, device="cuda")
    # </blank>
    run_steps(multiply, matrix)
    used["full memory"] = utilisation.memory_used_frac()
    del unused_buffer, matrix
    torch.cuda.empty_cache()  # PyTorch caches freed memory; this returns it to the driver

with L.gpu("busy memory"):
    run_steps(double, torch.randn(1 << 28, device="cuda"))
    used["busy memory"] = utilisation.memory_used_frac()

full, streaming = (gpu_load(gpulab.runs[name]) for name in used)
utilisation.utilisation_table(full, streaming).assign(
    **{"memory used": [f"{100 * share:.0f} %" for share in used.values()]}
)

# %% tags=["reveal"]
L.reveal("memory", full.traffic_frac, "%")

# %% tags=["claim"]
L.claim(
    "memory can be over 70 % full with traffic under 25 %, and under 25 % full with traffic over 60 %",
    used["full memory"] > 0.7
    and full.traffic_frac < 0.25
    and used["busy memory"] < 0.25
    and streaming.traffic_frac > 0.6,
    before=full.traffic_frac,
    after=streaming.traffic_frac,
    unit="%",
    names=("traffic, full memory", "traffic, busy memory"),
    source=gpulab.runs["busy memory"],
)

# %% [markdown]
# The rule would have recommended a larger batch for the job whose memory is full. To find out whether a larger batch fits, look at the peak of memory *used*.
#
# Another guide says the opposite: *increase the batch size to lower the memory utilisation, because less is read*. Test it on two networks, each with a small and a large batch: a small image network in training, and four very large layers in inference.

# %% tags=["predict"]
L.predict("batch")

# %% tags=["measure"]
# <blank> the second number of each pair is the large batch: 512 images, 4,096 rows
# was: batch_sizes = {utilisation.image_training_step: (8, 8), utilisation.large_layers_step: (1, 1)}
batch_sizes = {utilisation.image_training_step: (8, 512), utilisation.large_layers_step: (1, 4096)}
# </blank>
loads = {}
for network, sizes in batch_sizes.items():
    for index, batch_size in enumerate(sizes):
        name = f"{network.__name__} {batch_size}"
        with L.gpu(name):
            run_steps(network(batch_size), None)
        loads[network.__name__, index] = gpu_load(gpulab.runs[name])
utilisation.utilisation_table(*loads.values())

# %% tags=["reveal"]
rise = loads["image_training_step", 1].traffic_frac / loads["image_training_step", 0].traffic_frac
fall = loads["large_layers_step", 1].traffic_frac / loads["large_layers_step", 0].traffic_frac
L.reveal("batch", rise, "times")

# %% tags=["claim"]
L.claim(
    "with the larger batch, memory traffic at least doubles in one network and falls to less than half in the other",
    rise >= 2 and fall < 0.5,
    before=rise,
    after=fall,
    unit="times",
    names=("traffic of the image network", "traffic of the large layers"),
    source=gpulab.runs[name],
)

# %% [markdown]
# Neither rule holds in general. A small network with a small batch leaves the GPU waiting, so the traffic is low and rises with the batch size. If the model reads a few very large layers for each batch, the traffic is high at batch size one and falls with the batch size. *Busy* and *MFU* tell you which case you have.

# %% [markdown]
# ## What to rank by
#
# ### 01.4 From utilisation to useful work
#
# This experiment measures three jobs on the device you have. Their arithmetic is known exactly: a product of two n x n matrices needs 2 x n x n x n operations, an addition to n numbers needs n. Divide the operations by the time and by the highest rate that this device has reached, and you get an MFU: the work done as a share of the work that was possible. On a CPU, *busy* is the share of time in which operators of PyTorch run that take 10 us or more.

# %% tags=["predict"]
L.predict("rank")

# %% tags=["measure"]
on_gpu = L.device == "cuda"
side, calls, rounds = (8192, 14, 40) if on_gpu else (512, 2, L.pick(tiny=16, lab=40))
square = torch.ones(side, side, device=L.device, dtype=torch.bfloat16 if on_gpu else torch.float32)
numbers = torch.ones(1 << 28 if on_gpu else 1 << 22, device=L.device)
# <blank> let the data of the second job be late by 0.03 s
# was: delay_s = 0
delay_s = 0.03
# </blank>
# For each job: the work, which runs several times per step; its number of operations; the delay of its data in seconds.
jobs = {
    "products": (lambda: square @ square, 2 * side**3, 0),
    "products, late data": (lambda: square @ square, 2 * side**3, delay_s),
    "long vector": (lambda: numbers + 1, numbers.numel(), 0),
}
busy, rate, best = {}, {}, 0
if not on_gpu:
    torch.set_num_threads(1)
for name, (work, operations, wait_s) in jobs.items():
    with gpulab.profile(name):  # the same as the magic, for scripts
        for _ in range(rounds):
            if wait_s:
                time.sleep(wait_s)
            for _ in range(calls):
                result = work()
            if on_gpu:
                torch.cuda.synchronize()
            gpulab.step()
    ledger = gpulab.diagnose(gpulab.runs[name]).ledger
    busy[name] = float(ledger.busy_frac)
    rate[name] = operations * calls / float(np.median(ledger.step_ns))  # operations per ns = GFLOP/s
    best = max(best, operations * calls / float(ledger.step_ns.min()))
for name in sorted(busy, key=busy.get, reverse=True):
    print(f"{name:20} busy {busy[name]:4.0%} {rate[name]:9,.1f} GFLOP/s: {rate[name] / best:4.0%} of the best")

# %% tags=["reveal"]
ratio = rate["products, late data"] / rate["long vector"]
L.reveal("rank", ratio, "times as much arithmetic per second in the job with late data")

# %% tags=["claim"]
L.claim(
    "the long-vector job has a utilisation at least 20 points higher than the job with late data, but does at most "
    "half as much arithmetic per second",
    busy["long vector"] >= busy["products, late data"] + 0.2 and 2 * rate["long vector"] <= rate["products, late data"],
    before=rate["products, late data"],
    after=rate["long vector"],
    unit="GFLOP/s",
    names=("late data", "long vector"),
)

# %% [markdown]
# The two rankings contradict each other. Is the long-vector job badly written? No: it reads a number, adds to it and writes it back, and no program can do that faster than the memory bandwidth allows.
#
# A *roofline* chart shows such limits. The horizontal axis is arithmetic intensity: operations per byte read or written. The vertical axis is operations per second. Under the slanted part of the roof, the memory bandwidth is the limit; under the flat part, the arithmetic is. The chart shows the large layers of 01.3 at batch size one: under 1 % of the peak, but at about 70 % of their roof. The best possible kernel would make them about 1.4 times as fast. A larger batch gains far more, because it does more work per byte.

# %% tags=["measure"]
gpulab.charts.roofline(gpulab.runs["large_layers_step 1"])

# %% [markdown]
# ## Name the metrics
#
# ### 01.5 Eight metrics of a GPU monitor
#
# You have met most of these metrics. The definitions follow NVIDIA's references for NVML (utilisation, memory), DCGM (SM activity, occupancy, PCIe) and Nsight Compute (cache hit rate). *SM* stands for streaming multiprocessor; a *warp* is a group of 32 threads that run together; *PCIe* is the link between host and GPU. Enter the letter of the right definition for each metric.

# %% tags=["check"]
# <blank> a letter for each of the eight metrics; run the cell once to see the definitions
# was: cards = {
# was:     "utilisation": "",
# was:     "memory used": "",
# was:     "memory controller": "",
# was:     "SM activity": "",
# was:     "occupancy": "",
# was:     "cache hit rate": "",
# was:     "PCIe throughput": "",
# was:     "MFU": "",
# was: }
cards = {
    "utilisation": "c",
    "memory used": "f",
    "memory controller": "a",
    "SM activity": "h",
    "occupancy": "d",
    "cache hit rate": "g",
    "PCIe throughput": "b",
    "MFU": "e",
}
# </blank>
L.check("cards", cards)

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text. The experiment needs only the first two code cells of this notebook.

# %% [markdown]
# ### 01.6 Temperature, power and clock
#
# When the clock falls, every kernel takes longer, and a program that was fast on Monday is slow on Tuesday. You cannot overheat a computer on demand, so the two GPUs below are **simulated**: power rises with load and clock, temperature rises with power, and the clock is lowered above 87 degrees or above the power limit. The numbers are invented for practice; the sensors are those of the real driver. The load is light for ten seconds, full for fifty seconds, then light again.

# %% tags=["predict"]
L.predict("heat")

# %% tags=["measure"]
dusty = hot_card.simulate_card(name="dusty fans", thermal_c_per_w=hot_card.DUSTY_THERMAL_C_PER_W)
capped = hot_card.simulate_card(name="power limit 400 W", power_limit_w=400)
display(gpulab.charts.sensors(dusty))
hot_card.readings_table(dusty, capped, at_s=(0, 12, 18, 24, 36, 48, 60, 66))

# %% tags=["reveal"]
L.reveal("heat")

# %% [markdown]
# Both GPUs are slower than they should be, and the clock alone does not say why. Overheating is a problem for the person who cleans the fans, and a lowered power limit for the person who set it. The driver's *throttle reason* tells them apart.
#
# When did heat throttle the first GPU? Read it from the chart, where each triangle is a reading with this reason, or from the table behind the chart, `dusty.gpu_samples`: `at_ns` is the time, and `throttle_bits` the reason (32 for heat, 4 for the power limit).

# %% tags=["check"]
# <blank> the first and the last second, for example (5, 8)
# was: interval = None
interval = (19, 62)
# </blank>
L.check("held", interval)

# %% [markdown]
# gpulab reads the same counters in every run on a GPU, and names the cause. The driver also counts the throttled time; the next cell checks that both agree.

# %% tags=["claim"]
for run in (dusty, capped):
    print(f"{run.name}: {gpulab.diagnose(run).first.claim}")
# <blank> the reason for the throttled time: hot_card.HEAT or hot_card.POWER
# was: reason = hot_card.POWER
reason = hot_card.HEAT
# </blank>
start_s, end_s = hot_card.throttled_interval(dusty, reason) or (0, 0)
samples = dusty.gpu_samples
driver_count_s = float(samples["thermal_held_s"].iloc[-1])
loaded = samples[(samples["at_ns"] >= 10e9) & (samples["at_ns"] < 60e9)]
L.claim(
    "under full load utilisation stays at 100 % while the clock falls by at least 10 %, and the readings give the "
    "duration of thermal throttling to within 2 s of the driver's count",
    (loaded["util_frac"] == 1).all()
    and loaded["sm_clock_mhz"].iloc[-1] <= 0.9 * loaded["sm_clock_mhz"].iloc[0]
    and abs(end_s - start_s - driver_count_s) <= 2,
    before=end_s - start_s,
    after=driver_count_s,
    unit="s",
    names=("from the readings", "counted by the driver"),
    source=SIMULATED,
)

# %% [markdown]
# High power is not a goal in itself. But dense arithmetic needs a lot of power, so a GPU that draws little power at 100 % utilisation is probably almost empty, as in 01.1. A GPU that cannot reach its normal power under full load may have a power supply problem; the throttle reason shows it.

# %% [markdown]
# ## Transfer
#
# This is a colleague's job, and you have only its counters. What limits its speed?

# %% tags=["measure"]
with L.gpu("anonymous"):
    utilisation.unknown_job()
utilisation.utilisation_table(gpu_load(gpulab.runs["anonymous"]))

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "d"
# </blank>
L.check("anonymous", answer)

# %% [markdown]
# If your answer is right, the same product is much faster in bfloat16. Experiment 01.1 recorded it, 20 times per step.

# %% tags=["claim"]
fp32_ns = gpu_load(gpulab.runs["anonymous"]).step_ns
# <blank> the time of one of the 20 products in a step of `wide`, in ns
# was: bf16_ns = fp32_ns
bf16_ns = wide.step_ns / 20
# </blank>
L.claim(
    "in bfloat16 the same product takes at most a fifth of the time",
    5 * bf16_ns <= fp32_ns,
    before=fp32_ns / 1e6,
    after=bf16_ns / 1e6,
    unit="ms",
    source=gpulab.runs["anonymous"],
)

# %% [markdown]
# ## Summary
#
# - Low utilisation tells you a lot: the GPU waits, and the report says for what. [05 Data loading](05_data_loading.ipynb) covers the most frequent cause.
# - High utilisation tells you little. Ask next how many multiprocessors have work, how high the memory traffic is, and what share of the peak is reached: [03 Parallel work and batch size](03_parallel_work_and_batch.ipynb), [08 Mixed precision](08_mixed_precision.ipynb).
# - Any metric that is rewarded can be gamed: useless matrix products, run while a job waits, would raise its utilisation, and also the MFU in the tables above. That is why MFU should count only the arithmetic that the *model* needs. Rank jobs by steps per second at an equal result, and by MFU across models and machines.

# %% tags=["card"]
L.card()
