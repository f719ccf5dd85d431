# %% [markdown]
# # 01 What is utilisation?
#
# The monitor says *GPU-Util 100 %*. Is the GPU working hard? You will find out what that number counts, which numbers beside it tell what it leaves out, and which of them ranks work.
#
# What needs a GPU is computed for a virtual H100, and says so: its times come from a model of the hardware and of this computer's speed at calling it. With a CUDA GPU the same cells run on that.

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
# A shop has scores for a million items, and wants each user's most likely item and how likely it is. The first version goes user by user, and takes all night. "The GPU is the limit," says the owner, with a look at the monitor, and prices a second one.
#
# A GPU is made of *multiprocessors* that work side by side; an H100 has 132. A call such as `softmax` starts a *kernel*, a function that runs on the GPU. A kernel's work comes in *blocks*, and a block is done by one multiprocessor. Softmax over one row is a single block.
#
# What is on the monitor? Two meanings of *GPU utilisation* go round: the share of the time in which anything runs on the GPU, and the share of the GPU that is in use, or how much of it really works. Decide for one before you run on.

# %% tags=["given"]
import time

import torch

from gpulab.lessons import SIMULATED
from gpulab.lessons.labs.machine import hot_card, sampling, utilisation
from gpulab.lessons.labs.machine.utilisation import load

users, items = 256, 1 << 20
steps = L.pick(tiny=8, lab=8, full=20)


def one_by_one(scores):
    return [torch.softmax(row, 0).max(0) for row in scores]


def together(scores):
    return torch.softmax(scores, 1).max(1)


def multiply(matrix):
    for _ in range(20):
        result = matrix @ matrix
    return result


def repeated(work, given):
    """Run this several times; gpulab.step() ends a step where no DataLoader or optimizer tells of it."""
    for _ in range(steps):
        result = work(given)
        torch.cuda.synchronize()
        gpulab.step()
    return result


# %% tags=["predict"]
L.predict("busy")

# %% [markdown]
# `with L.gpu("name"):` records a block of CUDA code under a name, on the GPU that is here or on the virtual one. `load` then reads four shares from the run:
#
# - *busy*: the share of the time in which anything runs on the GPU;
# - *filled*: the share of the multiprocessors that have work while a kernel runs;
# - *MFU* (model FLOPs utilisation): the arithmetic done in matrix products, of what the GPU could have done in that time, at its best, in 16 bits;
# - *traffic*: the bytes that the kernels must move at the least, of what the memory could have carried in that time.
#
# A dash means that the run does not tell. The second job multiplies large matrices, which fill the GPU.

# %% tags=["measure"]
with L.gpu("user by user"):
    repeated(one_by_one, torch.randn(users, items, device="cuda"))

with L.gpu("matrices"):
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    # <fix>
    # was: repeated(together, torch.randn(users, items, device="cuda"))
    repeated(multiply, matrix)
    # </fix>

narrow, wide = (load(gpulab.runs[name]) for name in ("user by user", "matrices"))
utilisation.table(narrow, wide)

# %% tags=["reveal"]
L.reveal("busy", narrow.busy_frac, "%")

# %% [markdown]
# NVIDIA's reference for NVML, the library that monitors read from, decides it: utilisation is the share of the last sampling period *in which one or more kernels ran on the GPU*. That is the table's *busy*.
#
# *Filled* is what the owner took it for. One block on 132 multiprocessors is 0.8 %; a second, very short kernel, which finds the largest number and fills the GPU, makes a few per cent of it.
#
# How much work was done? The first row has no MFU, because only matrix products are counted. Counted by hand, softmax takes about five operations for each number (compare, subtract, exponential, add, divide).

# %% tags=["claim"]
narrow_flops = utilisation.SOFTMAX_FLOPS * users * items / narrow.step_ns  # operations a nanosecond: GFLOP/s
wide_flops = (wide.flops or 0) / wide.step_ns
L.claim(
    "both are busy at least 95 % of the time, and one does at least 50 times as much arithmetic a second as the other",
    min(narrow.busy_frac, wide.busy_frac) >= 0.95 and wide_flops >= 50 * narrow_flops,
    before=narrow_flops,
    after=wide_flops,
    unit="GFLOP/s",
    source=gpulab.runs["matrices"],
)

# %% [markdown]
# So the statement *utilisation is how much of the accelerator really works* fails its test: any kernel will do. A reading of 100 % says that the GPU does not wait. It does not say that the GPU is full, or fast.
#
# ### The fix: all users at once
#
# If one row fills one multiprocessor, 256 rows fill all of them. First, is the result the same? That takes real numbers, which a virtual GPU has not, so look at it on the CPU.

# %% tags=["same"]
torch.manual_seed(0)
few = torch.randn(8, 1000)
each_alone = [torch.stack(part) for part in zip(*one_by_one(few), strict=True)]
L.same(each_alone, list(together(few)))

# %% tags=["measure"]
with L.gpu("all at once"):
    scores = torch.randn(users, items, device="cuda")
    # <fix>
    # was: repeated(one_by_one, scores)
    repeated(together, scores)
    # </fix>

filled = load(gpulab.runs["all at once"])
utilisation.table(narrow, filled)

# %% tags=["claim"]
L.claim(
    "all users at once take at most a fifth of the time, and utilisation moves by less than 20 points",
    5 * filled.step_ns <= narrow.step_ns and abs(filled.busy_frac - narrow.busy_frac) < 0.2,
    before=narrow.step_ns / 1e6,
    after=filled.step_ns / 1e6,
    unit="ms",
    source=gpulab.runs["all at once"],
)

# %% [markdown]
# No second GPU was needed, and the monitor would not have noticed: its reading is about the same, if anything a little lower. Which counter would have told, from the slow run alone?

# %% tags=["check"]
# <blank> "a", "b" or "c"; run it once to read the question
# was: answer = None
answer = "b"
# </blank>
L.check("tell", answer)

# %% [markdown]
# ## How often you look
#
# ### 01.2 Once a second, twenty times, always
#
# This job waits a quarter of a second for a file server, then multiplies matrices for three quarters of a second, again and again. The truth is 75 %. What does a monitor show that looks once a second?

# %% tags=["predict"]
L.predict("sampled")

# %% [markdown]
# `%%gpuprofile --virtual auto` does for a whole cell what `L.gpu` does for a block, and shows the report. The waiting is real; `repeats` asks the GPU's own clock how many products take 750 ms.

# %% tags=["measure"]
# %%gpuprofile --virtual auto bursts
from torch.utils.data import DataLoader

matrix = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
many = utilisation.repeats(matrix, milliseconds=750)
for _ in DataLoader(sampling.Late(12, wait_s=0.25), batch_size=None):
    for _ in range(many):
        result = matrix @ matrix
    torch.cuda.synchronize()

# %% [markdown]
# The report rests on the *trace*: a record of every kernel, with its beginning and its end. From it follows what any monitor would have read. `watch(1)` gives one reading a second, each of the sixth of a second before it, which is the driver's shortest period. `worst_error(1)` begins to watch at sixty different moments, and tells how far from the truth the worst of the sixty means is. (The truth is added up from the trace in two ways, which must agree.)

# %% tags=["measure"]
seen = sampling.watched(gpulab.runs["bursts"])
half_ns = 500_000_000
print(f"truth: busy {100 * seen.busy_frac:.1f} % of {(seen.end_ns - seen.start_ns) / 1e9:.1f} s")
print("once a second, from now on:        ", [f"{100 * each:.0f} %" for each in seen.watch(1)])
print("once a second, half a second later:", [f"{100 * each:.0f} %" for each in seen.watch(1, half_ns)])
# <fix>
# was: slow_hz = 20
slow_hz = 1
# </fix>
slow_error, fast_error = seen.worst_error(slow_hz), seen.worst_error(20)
added_ns = sampling.summed_ns(gpulab.runs["bursts"], seen.start_ns, seen.end_ns)  # event by event
trace_error = abs(added_ns / (seen.end_ns - seen.start_ns) - seen.busy_frac)
print(f"worst error, in points: {100 * slow_error:.0f} once a second, {100 * fast_error:.1f} twenty times a second")

# %% tags=["reveal"]
L.reveal("sampled", 100 * slow_error, "points")

# %% tags=["claim"]
L.claim(
    "once a second can be wrong by more than 20 points, twenty times a second by less than 5, the trace by none",
    slow_error > 0.2 and fast_error < 0.05 and trace_error == 0,
    before=100 * slow_error,
    after=100 * fast_error,
    unit="points",
    source=gpulab.runs["bursts"],
)

# %% [markdown]
# Two people watch the same job; one reports 0 %, the other 100 %, and neither is lying. Real jobs have such rhythms too: a checkpoint every so many steps, a validation each minute.
#
# Even a right mean hides something: pauses of a few milliseconds are blurred within each reading. Why the GPU waited is in the trace alone, and the report above names it.
#
# ### Make: few readings, well placed
#
# Is looking more often the only way? Here is a job on paper, a minute long: busy for the last 700 ms of each second. Choose the pause between two readings, in milliseconds, so that the mean of as few readings as possible is right to within 5 points, whenever the first is taken. A pause of 50 ms takes 19 readings; par is 3. Try several. `L.hint("plan")`, in a cell of its own, helps up to three times.

# %% tags=["score"]
job = sampling.regular(period_ms=1000, busy_ms=700, count=60)
# <blank> the pause between two readings, in milliseconds
# was: plan_ms = None
plan_ms = 1333
# </blank>
print(sampling.told(plan_ms, job))
L.score("plan", sampling.readings_of(plan_ms, job) if plan_ms else None)

# %% [markdown]
# ## Two numbers called memory
#
# ### 01.3 Held is not read
#
# A monitor shows *memory used*, in bytes, and sometimes *memory utilisation*. NVML defines the second as the share of the sampling period in which device memory was being read or written: it is about the memory controller, which carries data between memory and multiprocessors, and not about how full the memory is. A popular rule mixes them up: *if GPU memory utilisation is low, raise the batch size*.

# %% tags=["predict"]
L.predict("memory")


# %% [markdown]
# Two jobs. The first holds three quarters of the memory, which nobody reads, and multiplies matrices. The second holds little, and doubles the numbers of a long list. *Traffic* stands in for the driver's share of time.

# %% tags=["measure"]
def double(numbers):
    for _ in range(20):
        result = numbers * 2
    return result


used = {}
with L.gpu("full memory"):
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    # <fix>
    # was: held = None
    held = torch.empty(torch.cuda.mem_get_info()[0] * 3 // 4, dtype=torch.uint8, device="cuda")
    # </fix>
    repeated(multiply, matrix)
    used["full memory"] = utilisation.used_frac()
    del held, matrix
    torch.cuda.empty_cache()  # PyTorch keeps what it has once had; this gives it back

with L.gpu("busy memory"):
    repeated(double, torch.randn(1 << 28, device="cuda"))
    used["busy memory"] = utilisation.used_frac()

full, streaming = (load(gpulab.runs[name]) for name in used)
utilisation.table(full, streaming).assign(**{"memory used": [f"{100 * share:.0f} %" for share in used.values()]})

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
    source=gpulab.runs["busy memory"],
)

# %% [markdown]
# The rule would have asked for a larger batch just where memory is full. Whether one fits is told by memory *used*, at its peak.
#
# Another guide has it the other way round: *lower the memory utilisation by raising the batch size, so that less is fetched*. Two networks, each with its smallest and its largest batch: a small one for images, in training, and four very large layers that only predict.

# %% tags=["predict"]
L.predict("batch")

# %% tags=["measure"]
# <fix>
# was: tried = {utilisation.image_network: (8, 8), utilisation.large_layers: (1, 1)}
tried = {utilisation.image_network: (8, 512), utilisation.large_layers: (1, 4096)}
# </fix>
found = {}
for network, batches in tried.items():
    for place, batch in enumerate(batches):
        name = f"{network.__name__} {batch}"
        with L.gpu(name):
            repeated(network(batch), None)
        found[network.__name__, place] = load(gpulab.runs[name])
utilisation.table(*found.values())

# %% tags=["reveal"]
rise = found["image_network", 1].traffic_frac / found["image_network", 0].traffic_frac
fall = found["large_layers", 1].traffic_frac / found["large_layers", 0].traffic_frac
L.reveal("batch", rise, "times")

# %% tags=["claim"]
L.claim(
    "with the larger batch memory traffic at least doubles in one network, and falls to less than half in the other",
    rise >= 2 and fall < 0.5,
    before=rise,
    after=fall,
    unit="times",
    source=gpulab.runs[name],
)

# %% [markdown]
# Neither rule survives. A small batch usually leaves the GPU waiting, so traffic is low and rises with the batch. Where a few very large layers are read for each batch, it is high for a batch of one and falls. *Busy* and *MFU* beside it tell which case is yours.
#
# ## When the card gets hot
#
# ### 01.4 Temperature, power, clock
#
# A clock that falls makes every kernel longer, and a program that was fast on Monday slow on Tuesday. No computer overheats on command, so the two cards below are **simulated**: power grows with load and clock, heat with power, and the clock is lowered above 87 degrees or above the power limit. The figures are invented, for practice in reading; the sensors are those that the driver has. The load is light for ten seconds, full for fifty, then light again.

# %% tags=["predict"]
L.predict("heat")

# %% tags=["measure"]
dusty = hot_card.watched_card(name="dusty fans", warms_c_per_w=hot_card.DUSTY_C_PER_W)
capped = hot_card.watched_card(name="power limit 400 W", cap_w=400)
display(gpulab.charts.sensors(dusty))
hot_card.beside(dusty, capped, at_s=(0, 12, 18, 24, 36, 48, 60, 66))

# %% tags=["reveal"]
L.reveal("heat")

# %% [markdown]
# Both cards are slower than they should be, and the clock alone does not say why. Heat is for whoever cleans the fans; a lowered power limit, for whoever set it. The *reason* that the driver gives tells them apart.
#
# When did heat hold the first card down? Read it from the chart, where each triangle is a reading with that reason, or from the table behind it, `dusty.gpu_samples`: `at_ns` is the time, and `throttle_bits` the reason, 32 for heat and 4 for the power limit.

# %% tags=["check"]
# <blank> the first and the last second, as (5, 8)
# was: interval = None
interval = (19, 62)
# </blank>
L.check("held", interval)

# %% [markdown]
# gpulab reads the same counters in any run on a GPU, and names the cause. The driver counts the time as well, and is asked whether it agrees.

# %% tags=["claim"]
for run in (dusty, capped):
    print(f"{run.name}: {gpulab.diagnose(run).first.claim}")
# <fix>
# was: reason = hot_card.POWER
reason = hot_card.HEAT
# </fix>
begun_s, ended_s = hot_card.held_down(dusty, reason) or (0, 0)
samples = dusty.gpu_samples
counted_s = float(samples["thermal_held_s"].iloc[-1])
loaded = samples[(samples["at_ns"] >= 10e9) & (samples["at_ns"] < 60e9)]
L.claim(
    "under full load utilisation reads 100 % throughout while the clock falls by a tenth or more, and the readings "
    "tell how long heat held it down, to within 2 s of the driver's count",
    (loaded["util_frac"] == 1).all()
    and loaded["sm_clock_mhz"].iloc[-1] <= 0.9 * loaded["sm_clock_mhz"].iloc[0]
    and abs(ended_s - begun_s - counted_s) <= 2,
    before=ended_s - begun_s,
    after=counted_s,
    unit="s",
    source=SIMULATED,
)

# %% [markdown]
# Power is not a goal either. But dense arithmetic takes much of it, so a card that draws little at 100 % utilisation is likely to be nearly empty, as in 01.1; and one that cannot reach its power under full load may have a supply problem, which the reason says.
#
# ## What to rank by
#
# ### 01.5 From utilisation to work done
#
# Three jobs, measured on this machine's own device. Their arithmetic is counted exactly: a product of two n x n matrices takes 2 n x n x n operations, an addition to n numbers takes n. Divided by the time, and by the best rate that this device has shown, it is the MFU: what was done, of what could have been.

# %% tags=["predict"]
L.predict("rank")

# %% tags=["measure"]
on_gpu = L.device == "cuda"
side, calls, rounds = (8192, 14, 40) if on_gpu else (512, 2, L.pick(tiny=16, lab=40))
square = torch.ones(side, side, device=L.device, dtype=torch.bfloat16 if on_gpu else torch.float32)
numbers = torch.ones(1 << 28 if on_gpu else 1 << 22, device=L.device)
# <fix>
# was: late_s = 0
late_s = 0.03
# </fix>
# What each job does, several times a step; the operations in it; how late its data come, in seconds.
jobs = {
    "products": (lambda: square @ square, 2 * side**3, 0),
    "products, late data": (lambda: square @ square, 2 * side**3, late_s),
    "long list": (lambda: numbers + 1, numbers.numel(), 0),
}
busy, rate, best = {}, {}, 0
if not on_gpu:
    torch.set_num_threads(1)
for name, (work, operations, wait_s) in jobs.items():
    with gpulab.profile(name):  # what the magic does, as it is used in a script
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
    rate[name] = operations * calls / float(ledger.step_ns.mean())  # operations a nanosecond: GFLOP/s
    best = max(best, operations * calls / float(ledger.step_ns.min()))
for name in sorted(busy, key=busy.get, reverse=True):
    print(f"{name:20} busy {busy[name]:4.0%} {rate[name]:9,.1f} GFLOP/s, {rate[name] / best:4.0%} of the best")

# %% tags=["reveal"]
L.reveal("rank", rate["products, late data"] / rate["long list"], "times as much arithmetic in the one with late data")

# %% tags=["claim"]
L.claim(
    "the long list is ahead of the job with late data by at least 20 points of utilisation, and does at most half as "
    "much arithmetic a second",
    busy["long list"] >= busy["products, late data"] + 0.2 and 2 * rate["long list"] <= rate["products, late data"],
    before=rate["products, late data"],
    after=rate["long list"],
    unit="GFLOP/s",
)

# %% [markdown]
# The ranking turns round. Is the long list badly written? No: it fetches a number, adds to it, and writes it back, and no program does that faster than the memory allows.
#
# A *roofline* chart shows such limits. To the right: more arithmetic for each byte that is fetched. Upwards: more arithmetic a second. Under the slanted line the memory is the limit, under the flat one the arithmetic. Here are the large layers of 01.3 with a batch of one: under 1 % of the peak, and yet close to their roof. A faster kernel would not help them; a larger batch would, which is more work for each byte.

# %% tags=["measure"]
gpulab.charts.roofline(gpulab.runs["large_layers 1"])

# %% [markdown]
# ## Name them
#
# ### 01.6 Eight numbers of a monitor
#
# You have met most of these. The definitions follow NVIDIA's references for NVML (utilisation, memory), DCGM (SM activity, occupancy, PCIe) and Nsight Compute (cache hit rate). *SM*, streaming multiprocessor, is its full name; a *warp* is a group of 32 threads that run together; *PCIe* is the link between computer and GPU. Give each its letter.

# %% tags=["check"]
# <blank> a letter for each of the eight; run it once to read what they may be
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
# ## Transfer
#
# A colleague's job, and nothing but its counters. What keeps it from being fast?

# %% tags=["measure"]
with L.gpu("anonymous"):
    utilisation.anonymous()
utilisation.table(load(gpulab.runs["anonymous"]))

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "d"
# </blank>
L.check("anonymous", answer)

# %% [markdown]
# If that is right, the same product in bfloat16 is much faster. It was recorded in 01.1, twenty times a step.

# %% tags=["claim"]
in_32_ns = load(gpulab.runs["anonymous"]).step_ns
# <fix>
# was: in_16_ns = in_32_ns
in_16_ns = wide.step_ns / 20
# </fix>
L.claim(
    "in bfloat16 the same product takes at most a fifth of the time",
    5 * in_16_ns <= in_32_ns,
    before=in_32_ns / 1e6,
    after=in_16_ns / 1e6,
    unit="ms",
    source=gpulab.runs["anonymous"],
)

# %% [markdown]
# ## What to take with you
#
# - A low reading is worth a lot: the GPU waits, and the report says for what. [05 Data loading](05_data_loading.ipynb) is where most of that is mended.
# - A high reading is worth little. Ask next how many multiprocessors have work, what the memory carries, and what share of the peak is reached: [03 Parallel work and batch size](03_parallel_work_and_batch.ipynb), [08 Mixed precision](08_mixed_precision.ipynb).
# - A reading that is rewarded can be had: useless products, multiplied while a job waits, would lift it, and the MFU of the tables above too. So MFU means the arithmetic that the *model* needs. Rank by steps per second at an equal result, and by MFU across models and machines.

# %% tags=["card"]
L.card()
