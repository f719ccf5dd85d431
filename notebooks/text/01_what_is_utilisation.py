# %% [markdown]
# # 01 What is utilisation?
#
# The monitor says *GPU-Util 100 %*. Is the GPU working hard? You will see two programs with the same reading, one of which does thousands of times as much arithmetic; learn what each number of a monitor counts; and end with the one that ranks work.
#
# What needs a GPU is computed here for a virtual H100, and says so: its times come from a model of the hardware and of this computer's speed at calling it, not from a measurement. With a CUDA GPU the same cells run on that.

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
# A shop has scores for a million products, and wants for each of its users the most likely product and how likely it is. The first version goes user by user. It ran all night; the monitor showed 99 % throughout. "The GPU is the limit," says the owner, and prices a second one.
#
# Before a word about it is believed: what does that 99 % count? NVIDIA's reference for its driver library, NVML, defines GPU utilisation as the share of the last sampling period *in which one or more kernels ran on the GPU*. (A kernel is one function that runs on the GPU.) Guides often call it the share of the GPU's resources in use, or how much of the accelerator really works. That would be another number. Which of the two is on the monitor can be tested.

# %% tags=["given"]
import time

import psutil
import torch

from gpulab.lessons import SIMULATED
from gpulab.lessons.labs import hot_card, sampling, utilisation
from gpulab.lessons.labs.utilisation import load

users, products = 256, 1 << 20
steps = L.pick(tiny=8, lab=8, full=20)


def one_by_one(scores):
    return [torch.softmax(row, 0).max(0) for row in scores]


def together(scores):
    return torch.softmax(scores, 1).max(1)


def multiply(matrix):
    for _ in range(20):
        result = matrix @ matrix
    return result


def double(numbers):
    for _ in range(20):
        result = numbers * 2
    return result


def repeated(work, given):
    """Run this several times; gpulab.step() ends a step where no DataLoader or optimizer tells of it."""
    for _ in range(steps):
        result = work(given)
        torch.cuda.synchronize()
        gpulab.step()
    return result


# %% [markdown]
# `softmax` over one row is one *block* of work, and a block runs on one multiprocessor. An H100 has 132 of them.

# %% tags=["predict"]
L.predict("busy")

# %% [markdown]
# `with L.gpu("name"):` records a block of CUDA code under a name, on the GPU that is here or on the virtual one. `load` then reads four shares from the run:
#
# - *busy*: of the time, with anything on the GPU. This is what the driver calls utilisation.
# - *filled*: of the multiprocessors, that the kernels have blocks for.
# - *MFU*: of the arithmetic that the tensor cores could have done in that time, in 16 bits. Only matrix products are counted.
# - *traffic*: of the bytes that the memory could have carried in that time. What must move at the least is counted.
#
# A dash means that the run does not tell.

# %% tags=["measure"]
with L.gpu("user by user"):
    repeated(one_by_one, torch.randn(users, products, device="cuda"))

with L.gpu("products"):
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    # <fix>
    # was: repeated(together, torch.randn(users, products, device="cuda"))
    repeated(multiply, matrix)
    # </fix>

narrow, wide = (load(gpulab.runs[name]) for name in ("user by user", "products"))
utilisation.table(narrow, wide)

# %% tags=["reveal"]
L.reveal("busy", narrow.busy_frac, "%")

# %% [markdown]
# The first row has no figure for arithmetic, because only matrix products are counted. Count it by hand: softmax takes about five operations for each number (compare, subtract, exponential, add, divide).

# %% tags=["claim"]
narrow_flops = utilisation.SOFTMAX_FLOPS * users * products / narrow.step_ns  # operations a nanosecond: GFLOP/s
wide_flops = (wide.flops or 0) / wide.step_ns
L.claim(
    "both are busy at least 95 % of the time, and one does at least 50 times as much arithmetic a second as the other",
    min(narrow.busy_frac, wide.busy_frac) >= 0.95 and wide_flops >= 50 * narrow_flops,
    before=narrow_flops,
    after=wide_flops,
    unit="GFLOP/s",
    source=gpulab.runs["products"],
)

# %% [markdown]
# So the statement *utilisation is how much of the accelerator really works* fails its test, and the driver's own definition passes: any kernel will do. A reading of 100 % says that the GPU does not wait. It does not say that the GPU is full, or fast.
#
# ### The fix: all users at once
#
# If one row fills one multiprocessor, 256 rows fill all of them. Same numbers, one call. Whether the result is the same is looked at first, with real numbers on the CPU; a virtual GPU has none.

# %% tags=["same"]
torch.manual_seed(0)
few = torch.randn(8, 1000)
each_alone = [torch.stack(part) for part in zip(*one_by_one(few), strict=True)]
L.same(each_alone, list(together(few)))

# %% tags=["measure"]
with L.gpu("all at once"):
    scores = torch.randn(users, products, device="cuda")
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
# The monitor would not have noticed: the reading is about the same before and after, if anything a little lower, since a short step waits a larger share of itself for the next one to begin. No second GPU was needed. Which counter would have told, from the slow run alone?

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("tell", answer)

# %% [markdown]
# ## How often you look
#
# ### 01.2 Once a second, twenty times, always
#
# This job waits for a file server that takes a quarter of a second for each answer, then computes for three quarters. The waiting is real; the products are as many as fill three quarters of a second by the GPU's own events.

# %% tags=["predict"]
L.predict("sampled")

# %% [markdown]
# `%%gpuprofile --virtual auto` does for a whole cell what `L.gpu` does for a block, and shows the report.

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
# Such a run tells of every moment whether something ran, so a meter can be held against it that looks now and then: `watch(1)` gives the readings of someone who looks once a second, each covering the last sixth of a second, which is the driver's shortest period. `worst_error(1)` tries sixty moments at which to begin, and gives the largest distance between the mean of the readings and the truth.

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
added_ns = sampling.summed_ns(gpulab.runs["bursts"], seen.start_ns, seen.end_ns)  # event by event, a second way
trace_error = abs(added_ns / (seen.end_ns - seen.start_ns) - seen.busy_frac)
print(
    f"worst errors: {100 * slow_error:.0f} points, {100 * fast_error:.1f} points; trace {100 * trace_error:.1f} points"
)

# %% tags=["reveal"]
L.reveal("sampled", slow_error, "%")

# %% tags=["claim"]
L.claim(
    "once a second can be wrong by more than 20 points, twenty times a second by less than 5, the trace by none",
    slow_error > 0.2 and fast_error < 0.05 and trace_error == 0,
    before=slow_error,
    after=fast_error,
    unit="%",
    source=gpulab.runs["bursts"],
)

# %% [markdown]
# Two people can watch the same job, and one reports 0 %, the other 100 %. Neither is lying. Real jobs have such rhythms: a checkpoint every so many steps, a validation each minute, a loader that fills up in bursts.
#
# Even a mean that is right hides something: twenty readings a second cover a sixth of a second each, so pauses of a few milliseconds are blurred into a steady number. Why the GPU waited is in the trace alone, and the report above names it.
#
# ### Make: few readings, well placed
#
# Is looking more often the only way? Below is the same job on paper, a minute of it: busy for the last 700 ms of each second. Choose the pause between two readings, in milliseconds, so that the mean of as few readings as possible is right to within 5 points, whenever one begins. Looking every 50 ms takes 19 readings; once a second never gets there. Par is 3.

# %% tags=["score"]
job = sampling.regular(period_ms=1000, busy_ms=700, count=60)
# <blank> the pause between two readings, in milliseconds
# was: plan_ms = None
plan_ms = 1333
# </blank>
L.score("plan", sampling.readings_of(plan_ms, job) if plan_ms else None)

# %% [markdown]
# ## Two numbers called memory
#
# ### 01.3 Held is not read
#
# A monitor shows *memory used*, in bytes, and, less often, *memory utilisation*. NVML defines the second as the share of the sampling period in which device memory was being read or written. That is a property of the memory controller, and has nothing to do with how full the memory is. A popular rule mixes them up: *if GPU memory utilisation is low, raise the batch size*.

# %% tags=["predict"]
L.predict("memory")

# %% [markdown]
# Two jobs. The first holds three quarters of the memory, which nobody reads, and multiplies matrices. The second holds next to nothing, and doubles the numbers of a long list. The traffic shown is what the kernels must move at the least, of what the memory could carry: it stands in for the driver's share of time. (Recorded on a real GPU, `gpulab.runs["full memory"].gpu_samples` holds the driver's own reading too, as `memory_util_frac`.)

# %% tags=["measure"]
used = {}

with L.gpu("full memory"):
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    # <fix>
    # was: held = None
    held = torch.empty(torch.cuda.mem_get_info()[0] * 3 // 4, dtype=torch.uint8, device="cuda")
    # </fix>
    repeated(multiply, matrix)
    free_bytes, all_bytes = torch.cuda.mem_get_info()
    used["full memory"] = 1 - free_bytes / all_bytes
    del held, matrix
    torch.cuda.empty_cache()  # PyTorch keeps what it has once had; this gives it back

with L.gpu("busy memory"):
    numbers = torch.randn(1 << 28, device="cuda")
    repeated(double, numbers)
    free_bytes, all_bytes = torch.cuda.mem_get_info()
    used["busy memory"] = 1 - free_bytes / all_bytes

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
# Obeying the rule would have meant a larger batch for the job whose memory is full. What tells whether a larger batch fits is memory *used*, at its peak.
#
# Another guide has it the other way round: *lower the memory utilisation by raising the batch size, so that less is fetched*. A small image network in training, and four very large layers that only predict, each with its smallest and its largest batch:

# %% tags=["predict"]
L.predict("batch")

# %% tags=["measure"]
from torch import nn


def image_network(batch):
    network = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    ).cuda()
    images = torch.randn(batch, 3, 64, 64, device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step(_):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def large_layers(batch):
    layers = [torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    rows = torch.randn(batch, 16384, device="cuda", dtype=torch.bfloat16)

    def step(_):
        for layer in 5 * layers:
            result = rows @ layer
        return result

    return step


# <fix>
# was: tried = {image_network: (8, 8), large_layers: (1, 1)}
tried = {image_network: (8, 512), large_layers: (1, 4096)}
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
# Neither rule survives. A small batch leaves the GPU waiting, so traffic is low and rises with the batch; that is the usual case. Where a few very large layers are read for each batch, traffic is high for a batch of one and falls. The reading alone does not tell which case is yours; *busy* and *MFU* beside it do.
#
# ## When the card gets hot
#
# ### 01.4 Temperature, power, clock
#
# A clock that falls makes every kernel longer, and a program that was fast on Monday slow on Tuesday. No computer overheats on command, so the card below is **simulated**: heat flows out in proportion to its temperature, power grows with load and clock, and a governor lowers the clock above 87 degrees. The figures are round and invented for reading practice; the sensors are those that the driver has. For ten seconds the load is light, then full for fifty, then light again.

# %% tags=["predict"]
L.predict("heat")

# %% tags=["measure"]
dusty = hot_card.watched_card(name="dusty fans", warms_c_per_w=0.12)
capped = hot_card.watched_card(name="power limit 400 W", cap_w=400)

# This computer's own clock, where it can be read: at rest, and after half a second of products.
core = getattr(psutil, "cpu_freq", lambda: None)
rest, begun = core(), time.perf_counter()
while time.perf_counter() - begun < 0.5:
    _ = torch.ones(256, 256) @ torch.ones(256, 256)
print("CPU clock, MHz:", f"{rest.current:.0f}, then {core().current:.0f}" if rest else "cannot be read here")
print(f"reason {hot_card.POWER} is the power limit, reason {hot_card.HEAT} is heat")
display(gpulab.charts.sensors(dusty))
hot_card.beside(dusty, capped, at_s=(0, 6, 12, 18, 24, 30, 36, 48, 60, 66, 84))

# %% tags=["reveal"]
L.reveal("heat")

# %% [markdown]
# Both cards are slower than they should be, and the clock alone does not say why: heat is for whoever cleans the fans, a lowered power limit for whoever set it. The counter that tells them apart is the *reason*, one bit for each. Find the interval in which heat held the first card down.

# %% tags=["claim"]
# <blank> the reason to look for: hot_card.HEAT or hot_card.POWER
# was: reason = 0
reason = hot_card.HEAT
# </blank>
interval = hot_card.held_down(dusty, reason) or (0.0, 0.0)
samples = dusty.gpu_samples
held_s = float(samples["thermal_held_s"].iloc[-1])  # the driver's own count of it
loaded = samples[(samples["at_ns"] >= 10e9) & (samples["at_ns"] < 60e9)]
L.claim(
    "under full load utilisation reads 100 % throughout, the clock falls by a tenth or more, and the interval in which "
    "heat held it down is found to within 2 s of the driver's count",
    (loaded["util_frac"] == 1).all()
    and loaded["sm_clock_mhz"].iloc[-1] <= 0.9 * loaded["sm_clock_mhz"].iloc[0]
    and interval[1] > interval[0]
    and abs(interval[1] - interval[0] - held_s) <= 2,
    before=interval[0],
    after=interval[1],
    unit="s",
    source=SIMULATED,
)

# %% [markdown]
# gpulab reads the same counters in any run on a GPU, and names the cause:

# %% tags=["check"]
for run in (dusty, capped):
    print(f"{run.name}: {gpulab.diagnose(run).first.claim}")

# %% [markdown]
# Draw and temperature are not goals either. 650 W at full clock is what dense arithmetic takes; 200 W at 100 % utilisation is a hint that the GPU is nearly empty, as in 01.1. A card that never gets near its limit under full load may have a supply problem: then the reason says so.
#
# ## What to rank by
#
# ### 01.5 From utilisation to work done
#
# Three jobs, measured on this machine's own device. Arithmetic is counted exactly: a product of two n x n matrices takes 2 n x n x n operations, an addition to n numbers takes n. Divided by the time of a step and by the best rate that this device has shown, it becomes the MFU: the share of the possible that was done.

# %% tags=["predict"]
L.predict("rank")

# %% tags=["measure"]
# %%gpuprofile waiting
on_gpu = L.device == "cuda"
if not on_gpu:
    torch.set_num_threads(1)
side, calls, kind = (8192, 14, torch.bfloat16) if on_gpu else (512, 2, torch.float32)
square = torch.ones(side, side, device=L.device, dtype=kind)
settle = torch.cuda.synchronize if on_gpu else lambda: None
wait_s = 0.03
rounds = L.pick(tiny=16, lab=40, full=40)
for _ in range(rounds):
    # <fix>
    # was: pass
    time.sleep(wait_s)  # its data come late
    # </fix>
    for _ in range(calls):
        result = square @ square
    settle()
    gpulab.step()

# %% [markdown]
# The other two are recorded in the same way; `gpulab.profile` is the magic in a script.

# %% tags=["measure"]
numbers = torch.ones(1 << 28 if on_gpu else 1 << 22, device=L.device)
flops_of = {"products": 2 * side**3 * calls, "waiting": 2 * side**3 * calls, "long list": numbers.numel() * calls}
for name in ("products", "long list"):
    with gpulab.profile(name):
        for _ in range(rounds):
            for _ in range(calls):
                result = square @ square if name == "products" else numbers + 1
            settle()
            gpulab.step()

ledgers = {name: gpulab.diagnose(gpulab.runs[name]).ledger for name in flops_of}
busy = {name: float(ledger.busy_frac) for name, ledger in ledgers.items()}
rate = {name: flops / (float(ledgers[name].step_ns.mean()) / 1e9) for name, flops in flops_of.items()}
best = flops_of["products"] / (float(ledgers["products"].step_ns.min()) / 1e9)
for name in sorted(busy, key=busy.get, reverse=True):
    told = f"{rate[name] / 1e9:10,.1f} GFLOP/s, {100 * rate[name] / best:5.1f} % of the best"
    print(f"{name:10} busy {100 * busy[name]:5.1f} %  {told}")

# %% tags=["reveal"]
L.reveal("rank", rate["waiting"] / rate["long list"], "times as much arithmetic in the one that waits")

# %% tags=["claim"]
L.claim(
    "the long list is ahead of the waiting job by at least 20 points of utilisation, and behind it in arithmetic, "
    "with at most half",
    busy["long list"] >= busy["waiting"] + 0.2 and 2 * rate["long list"] <= rate["waiting"],
    before=busy["long list"] - busy["waiting"],
    after=rate["long list"] / rate["waiting"],
    unit="%",
)

# %% [markdown]
# The ranking turns round. Is the long list then badly written? No: it fetches a number, adds to it, and writes it back, and no program does that faster than the memory allows. The *roofline* shows it: the roof is the arithmetic that is possible for each byte that is fetched, slanted where the memory is the limit, flat where the arithmetic is. Here are the large layers of 01.3 with a batch of one: far from the peak, and yet close under the slanted roof. What would help them is not a faster kernel but more work for each byte: a larger batch.

# %% tags=["measure"]
gpulab.charts.roofline(gpulab.runs[f"large_layers {tried[large_layers][0]}"])

# %% [markdown]
# ### A higher reading as a goal
#
# If a reading is rewarded, it can be had. This job waits 30 ms for its data in each step. Someone lets the GPU multiply something useless meanwhile.

# %% tags=["measure"]
for name in ("honest", "stuffed"):
    with L.gpu(name):
        matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        needed, useless = utilisation.repeats(matrix, milliseconds=30), 0
        # <fix>
        # was: pass
        useless = 2 * needed if name == "stuffed" else 0
        # </fix>
        for _ in range(steps):
            for _ in range(useless):
                result = matrix @ matrix
            time.sleep(0.03)
            for _ in range(needed):
                result = matrix @ matrix
            torch.cuda.synchronize()
            gpulab.step()

honest, stuffed = (load(gpulab.runs[name]) for name in ("honest", "stuffed"))
utilisation.table(honest, stuffed)

# %% tags=["claim"]
L.claim(
    "useless work lifts utilisation by at least 30 points, and not one step gets faster by it",
    stuffed.busy_frac >= honest.busy_frac + 0.3 and stuffed.step_ns >= honest.step_ns,
    before=honest.busy_frac,
    after=stuffed.busy_frac,
    unit="%",
    source=gpulab.runs["stuffed"],
)

# %% [markdown]
# The table's MFU is taken in as well, because it counts whatever was multiplied. That is why MFU means the arithmetic that the *model* needs, counted from its sizes, and why steps per second at an unchanged result stand above all of these numbers.
#
# ## Name them
#
# ### 01.6 Eight numbers of a monitor
#
# You have met most of these; the definitions follow NVIDIA's references for NVML (utilisation, memory), DCGM (SM activity, occupancy, PCIe) and Nsight Compute (cache hit rate). *SM* is short for streaming multiprocessor; a *warp* is a group of 32 threads that run together. Give each its letter.

# %% tags=["check"]
# <blank> a letter for each of the eight, as {"utilisation": "c", ...}
# was: cards = None
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
# A colleague's job, and nothing but its counters. Say what keeps it from being fast before you look for the code.

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
# - Rank by steps per second at an equal result, and by MFU across models and machines.

# %% tags=["card"]
L.card()
