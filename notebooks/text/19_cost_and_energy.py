# %% [markdown]
# # 19 Cost and energy: what does an idle GPU cost, and which change pays?
#
# A GPU costs the same whether it works or waits. So the first question about a bill is how many of its hours were work, and the second which change makes it smaller: a fix, a power limit, another GPU, a second one. In this notebook you write the formulas, and test each against a measurement, a recording or a model.
#
# It takes 45 minutes and needs no GPU. Epochs, waits and CPU time are measured on your machine. The power of a GPU was *recorded* by others on a V100. The speed of GPUs that you do not have is *estimated*, and the claims say so.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("19_cost_and_energy")
L

# %% tags=["setup"]
import math
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from gpulab.hardware.lookup import resolve
from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.data.loading import IoBoundDataset
from gpulab.lessons.labs.machine.cost import epoch_meter, power_caps, rental, when_to_run
from gpulab.lessons.labs.machine.scheduling import idle_week
from gpulab.views.charts.drawing import plots

HOUR_S, J_PER_WH = 3600, 3600
VIRTUAL = "virtual GPUs, estimated"
warnings.filterwarnings("ignore", "This DataLoader will create")  # the workers of 19.2 wait, they need no core each

# %% [markdown]
# ## The symptom
#
# The person who pays for your GPUs has read a post: "The GPUs of most teams are busy 15 to 40 % of the time, so their results cost three to five times too much. At 95 %, a run of a week would end within a day."

# %% [markdown]
# ## What utilisation is worth
#
# ### 19.1 A claim as arithmetic
#
# Write both claims of the post as formulas. If a fix removes waiting and the GPU computes the same, the busy hours stay the same.

# %% tags=["predict"]
L.predict("week")


# %% tags=["measure"]
def hours_after(hours, before, after):
    """Return the hours of a run when utilisation rises, if the busy hours stay the same."""
    # <blank> the busy hours, divided by the new utilisation
    # was: return hours
    return hours * before / after
    # </blank>


def overpaid(utilisation):
    """Return how many times as much you pay as for a GPU that is always busy."""
    # <blank> hours paid / hours used
    # was: return 1.0
    return 1 / utilisation
    # </blank>


week = hours_after(168, 0.15, 0.95)
print(f"a week at 15 %: {week:.1f} h at 95 %; one day needs {168 * 0.15 / 24:.0%} or more")
print("paid / used:", {f"{share:.0%}": round(overpaid(share), 1) for share in (0.15, 0.2, 0.33, 0.4)})

# %% tags=["claim"]
display(L.reveal("week", week, "h"))
L.claim(
    "with the same work, a week at 15 % becomes 26.5 hours at 95 %, not one day; utilisations of 40 to 15 % mean "
    "paying 2.5 to 6.7 times as much, not 3 to 5",
    round(week, 1) == 26.5 and round(overpaid(0.4), 1) == 2.5 and round(overpaid(0.15), 1) == 6.7,
    before=168,
    after=week,
    unit="h",
    source=COUNTED,
)

# %% [markdown]
# So the post is about right, but not in its details: 26.5 hours are more than a day, and "three to five times" belongs to utilisations of 33 to 20 %. Nobody reaches 100 %, either: compared with 95 %, the factors are 2.4 to 6.3.
#
# The formula has a condition: *the work stays the same*. Utilisation also rises when the work grows. The next cell runs three loops of 20 steps. A step waits for data, then a stand-in for the GPU works; both are sleeps of known length. Make the second loop busier and slower, the third busier and faster.

# %% tags=["measure"]
loops = {"before": epoch_meter.periodic_epoch(wait_s=0.008, step_s=0.002)}
# <blank> a loop with steps of 0.008 s, and one without waits
# was: loops["more work"] = epoch_meter.periodic_epoch(wait_s=0.008, step_s=0.002)
# was: loops["less waiting"] = epoch_meter.periodic_epoch(wait_s=0.008, step_s=0.002)
loops["more work"] = epoch_meter.periodic_epoch(wait_s=0.008, step_s=0.008)
loops["less waiting"] = epoch_meter.periodic_epoch(wait_s=0, step_s=0.002)
# </blank>
first = loops["before"]
tables.table_view(
    ("loop", "utilisation", "epoch, s", "by the formula, s"),
    [
        (
            name,
            f"{one.busy_frac:.0%}",
            f"{one.wall_s:.2f}",
            f"{hours_after(first.wall_s, first.busy_frac, one.busy_frac):.2f}",
        )
        for name, one in loops.items()
    ],
    below="Measured here, the fastest of three epochs of 20 steps.",
)

# %% tags=["claim"]
more, less = loops["more work"], loops["less waiting"]
L.claim(
    "utilisation rises in both loops, but one of them becomes slower: it does more work, and the formula, which "
    "assumes the same work, is wrong there",
    min(more.busy_frac, less.busy_frac) > 1.5 * first.busy_frac
    and more.wall_s > 1.1 * first.wall_s > 1.65 * less.wall_s
    and hours_after(first.wall_s, first.busy_frac, more.busy_frac) < first.wall_s,
    before=less.wall_s,
    after=more.wall_s,
    unit="s",
    names=("less waiting", "more work"),
    source=MEASURED,
)

# %% [markdown]
# Slow kernels, padding and recomputed activations all raise utilisation. So compare the cost of an *epoch*, not utilisation.
#
# ### 19.2 The bill of an epoch
#
# The data set here waits 5 ms for each item, as slow storage does. A batch has 8 items, and the stand-in for the GPU works 20 ms per batch. The first loop loads in the main process. Set the price of your GPU per hour; the bill needs nothing else. For energy, use what others recorded on a V100: a mean of 220 W while it trains ResNet-50, and of 39 W while it trains a small ShuffleNet with batch 8 and waits most of the time.

# %% tags=["predict"]
L.predict("energy")

# %% tags=["measure"]
PRICE_PER_H = 1.00  # dollars; yours
IDLE_W, BUSY_W = power_caps.WAITING_W, power_caps.RESNET50[-1].mean_w


def dollars(epoch):
    """Return the cost of an epoch, which has wall_s and busy_s."""
    # <blank> the hours that you pay for
    # was: return PRICE_PER_H * epoch.busy_s / HOUR_S
    return PRICE_PER_H * epoch.wall_s / HOUR_S
    # </blank>


def watt_hours(epoch):
    """Return the energy of the GPU in an epoch."""
    # <blank> idle seconds at IDLE_W count, too
    # was: return BUSY_W * epoch.busy_s / J_PER_WH
    return (IDLE_W * (epoch.wall_s - epoch.busy_s) + BUSY_W * epoch.busy_s) / J_PER_WH
    # </blank>


dataset = IoBoundDataset(L.pick(tiny=96, lab=256), wait_s=0.005)
epochs = {"before": epoch_meter.fastest_epoch(DataLoader(dataset, batch_size=8), 0.02)}
# <blank> the same with four workers, which stay between epochs: persistent_workers=True
# was: epochs["after"] = epoch_meter.fastest_epoch(DataLoader(dataset, batch_size=8), 0.02)
loader = DataLoader(dataset, batch_size=8, num_workers=4, persistent_workers=True)
epochs["after"] = epoch_meter.fastest_epoch(loader, 0.02)
# </blank>
print("CPU energy:", epoch_meter.cpu_energy_reason() or "readable here; gpulab's reports show it")
tables.table_view(
    ("epoch", "s", "utilisation", "dollars per 1,000", "Wh per 1,000"),
    [
        (
            name,
            f"{one.wall_s:.2f}",
            f"{one.busy_frac:.0%}",
            f"{1000 * dollars(one):.2f}",
            f"{1000 * watt_hours(one):.1f}",
        )
        for name, one in epochs.items()
    ],
    below=f"Seconds measured here. Watts {power_caps.RECORDED_BY}. Price as set.",
)

# %% tags=["claim"]
saved = {bill: 1 - bill(epochs["after"]) / bill(epochs["before"]) for bill in (dollars, watt_hours)}
half_busy = epoch_meter.EpochTime(wall_s=HOUR_S, busy_s=HOUR_S / 2)  # an hour, half of it busy
L.claim(
    "four workers make an epoch cheaper by at least a quarter, whatever the price per hour is",
    saved[dollars] >= 0.25 and math.isclose(dollars(half_busy), PRICE_PER_H),
    before=dollars(epochs["before"]) * 1000,
    after=dollars(epochs["after"]) * 1000,
    unit="dollars per 1,000 epochs",
    source=MEASURED,
)

# %% tags=["claim"]
display(L.reveal("energy"))
L.claim(
    "the energy per epoch falls as well, but by a smaller share than the cost",
    0 < saved[watt_hours] < 0.8 * saved[dollars] and math.isclose(watt_hours(half_busy), (IDLE_W + BUSY_W) / 2),
    before=watt_hours(epochs["before"]) * 1000,
    after=watt_hours(epochs["after"]) * 1000,
    unit="Wh per 1,000 epochs",
    source="predicted from recorded watts",
)

# %% [markdown]
# A GPU that waits costs its full rent. In these recordings, it drew a sixth of its power limit (39 W of 250 W); an A40 with the same network drew almost a third (about 90 W of 300 W). On a GPU, the section "Energy and cost" of a gpulab report counts both, with the driver's energy counter; `GPULAB_PRICE=2.50` sets the price. CPU and host are not in this bill; RAPL counters give the energy of a CPU, if the operating system lets you read them.

# %% [markdown]
# ## Power
#
# ### 19.3 A power limit
#
# `sudo nvidia-smi -i 0 -pl 150` limits GPU 0 to 150 W, by lowering its clock. (It needs root, it changes the GPU for all its users, and without `-i` it changes all GPUs.) The authors of [Zeus](https://www.usenix.org/conference/nsdi23/presentation/you) trained with seven limits on a V100 of 250 W and published time and mean power of each epoch. ResNet-50 trains on ImageNet with batch 256; the small ShuffleNet on CIFAR-100 with batch 128 has a mean power of at most 123 W.

# %% tags=["predict"]
L.predict("cap")


# %% tags=["measure"]
def images_per_joule(images, reading):
    """Return the images per joule; a reading has epoch_s and mean_w."""
    # <blank> divide by the energy, not by the time
    # was: return images / reading.epoch_s
    return images / (reading.epoch_s * reading.mean_w)
    # </blank>


SWEEPS = {"ResNet-50": power_caps.RESNET50, "ShuffleNet": power_caps.SHUFFLENET}
work = {
    name: {one.cap_w: images_per_joule(power_caps.IMAGES[name], one) for one in sweep} for name, sweep in SWEEPS.items()
}
best_cap = {name: max(values, key=values.get) for name, values in work.items()}
slower = {
    name: next(one.epoch_s for one in sweep if one.cap_w == best_cap[name]) / sweep[-1].epoch_s - 1
    for name, sweep in SWEEPS.items()
}
for name, cap in best_cap.items():
    gain = work[name][cap] / work[name][250] - 1
    print(f"{name}: best at {cap} W, {gain:.0%} more images per joule than at 250 W; epoch {slower[name]:.0%} longer")
plots.line_plot(
    f"ResNet-50 does most work per joule at {best_cap['ResNet-50']} W, ShuffleNet at {best_cap['ShuffleNet']} W",
    {name: {cap: value / values[250] for cap, value in values.items()} for name, values in work.items()},
    x="power limit, W",
    y="images per joule, 250 W = 1",
    source=power_caps.RECORDED_BY,
)

# %% tags=["claim"]
resnet, shuffle = work["ResNet-50"], work["ShuffleNet"]
display(L.reveal("cap", best_cap["ResNet-50"], "W"))
L.claim(
    "at 150 W, ResNet-50 trains more than a quarter more images per joule than at 250 W, and takes less than a fifth "
    "longer; ShuffleNet saves more at 100 W, and takes 1 % longer",
    best_cap == {"ResNet-50": 150, "ShuffleNet": 100}
    and math.isclose(resnet[250], power_caps.IMAGES["ResNet-50"] / power_caps.RESNET50[-1].joules)
    and resnet[150] > 1.25 * resnet[250]
    and slower["ResNet-50"] < 0.2
    and shuffle[100] / shuffle[250] > resnet[150] / resnet[250]
    and slower["ShuffleNet"] < 0.015,
    before=resnet[250],
    after=resnet[150],
    unit="images per joule",
    source=power_caps.RECORDED_BY,
)


# %% [markdown]
# Why? Dynamic power is proportional to the clock `f` and to the square of the voltage `V`. Down to some clock, the voltage falls with it; below, it stays. Write this as a model, with `f` and `V(f)` as shares of their highest values: 42.5 W at clock 0, 220.25 W at the full clock. (These numbers were fitted to the sweep of ResNet-50, so its agreement with this sweep proves nothing. What it says about the two kernels below was not fitted or measured. The best limit of your GPU will differ: measure it.)

# %% tags=["measure"]
def power_w(clock):
    """Return the power at a clock; `power_caps.voltage(clock)` is the voltage."""
    idle, full = power_caps.IDLE_W, power_caps.FULL_W
    # <blank> idle power, and the rest by clock and squared voltage
    # was: return idle + (full - idle) * clock
    return idle + (full - idle) * clock * power_caps.voltage(clock) ** 2
    # </blank>


KERNELS = {
    "limited by arithmetic": lambda clock: clock,  # its speed is proportional to the clock
    "limited by memory": power_caps.memory_bound_rate,  # its speed only falls at clocks below 0.6
}
best = {name: power_caps.best_clock(power_w, rate) for name, rate in KERNELS.items()}
fit_error = power_caps.largest_error(power_w)
print(f"ResNet-50: the model differs from the recorded speeds by at most {fit_error:.1%}")
tables.table_view(
    ("kernel", "best clock", "power, W", "speed", "work per joule"),
    [
        (name, f"{one.clock:.0%}", f"{one.watts:.0f}", f"{one.rate:.0%}", f"{one.gain:.2f} x")
        for name, one in best.items()
    ],
    below="Model, compared with the highest clock.",
)

# %% tags=["claim"]
arithmetic, memory = best["limited by arithmetic"], best["limited by memory"]
L.claim(
    "for both kernels, the best clock is below the highest: the one that is limited by memory loses no speed "
    "there, the other a fifth",
    fit_error < 0.03 and memory.rate == 1 and memory.clock < 0.7 and abs(arithmetic.rate - 0.8) < 0.03,
    before=arithmetic.gain,
    after=memory.gain,
    unit="times the work per joule",
    names=("arithmetic", "memory"),
    source=SIMULATED,
)

# %% tags=["check"]
# <blank> "a", "b" or "c": does the limit save money for you?
# was: answer = None
answer = "b"
# </blank>
L.check("renter", answer)

# %% [markdown]
# ## Which GPU, and how many
#
# ### 19.4 Rent by the job
#
# Five GPUs of one provider with its prices of one day. The job is a transformer of four layers, with 128 sequences of 128 tokens per batch. `compare_gpus` estimates it on each. Write the cost of a million sequences.

# %% tags=["predict"]
L.predict("rent")


# %% tags=["measure"]
def transformer():
    """Build model and optimizer; return a function that trains one step."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(batch, 128, 512, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def million_cost(per_s, price_per_h):
    """Return the dollars for a million sequences."""
    # <blank> hours, times the price of an hour
    # was: return 1e6 / per_s / HOUR_S
    return 1e6 / per_s / HOUR_S * price_per_h
    # </blank>


prices = rental.PRICES_PER_H
comparison = gpulab.virtual.compare_gpus(
    transformer, list(prices), batch=128, price=prices, runner=rental.gpu_with_typical_cpu
).comparison
ranked = rental.rank_gpus(comparison, million_cost)
display(
    tables.table_view(
        ("GPU", "limited by", "sequences/s", "range", "dollars/h", "a million, dollars"),
        [
            (
                one.name,
                one.limit,
                f"{one.per_s:,.0f}",
                "{:,.0f}-{:,.0f}".format(*one.per_s_range),
                f"{one.per_h:.2f}",
                f"{one.epoch_cost:.3f}",
            )
            for one in ranked
        ],
        left=2,
        below=f"Speed: {VIRTUAL}, with the launch overhead of a typical server CPU. {rental.PRICE_SOURCE}.",
    )
)
plots.bar_plot(
    f"The {min(ranked, key=lambda one: one.epoch_cost).name} is the cheapest",
    {one.name: one.epoch_cost for one in ranked},
    x="dollars for a million sequences, the fastest GPU first",
    source=VIRTUAL,
)

# %% tags=["claim"]
fastest, slowest, cheapest = ranked[0], ranked[-1], min(ranked, key=lambda one: one.epoch_cost)
display(L.reveal("rent"))
L.claim(
    "the slowest of the five GPUs is the cheapest for this job; with the fastest, a million sequences cost at least a "
    "quarter more",
    cheapest.name == slowest.name
    and fastest.epoch_cost > 1.25 * cheapest.epoch_cost
    and math.isclose(million_cost(1e6 / HOUR_S, 2.0), 2.0),  # a million in an hour costs the price of an hour
    before=fastest.epoch_cost,
    after=cheapest.epoch_cost,
    unit="dollars per million",
    names=("fastest", "cheapest"),
    source=VIRTUAL,
)


# %% [markdown]
# Other jobs, other rankings. By peak arithmetic per dollar, the B200 is the cheapest of the five: 331 TFLOP/s (FP16) for a dollar an hour, the RTX 4090 223, and a model that does not fit into 24 GB excludes it anyway. Prices differ as much: in September 2026, an hour of an H100 SXM on demand cost 2.69 to 10.98 dollars, depending on the provider ([silybench-data](https://github.com/tgarg01/silybench-data/blob/main/prices/gpu_hourly.yaml)). So calculate with your job and your prices: `gpulab.virtual.compare_gpus(build, [...], price={...})`.
#
# **A second GPU.** It rarely halves the time: suppose that two GPUs are `speedup` times as fast as one. An hour costs `gpu` per GPU and `other` for everything else: the host, and perhaps people who wait. Write the condition under which the job becomes cheaper with two. The cell compares it with the costs of 237 jobs.

# %% tags=["measure"]
def second_pays(speedup, gpu, other):
    """Return whether a job costs less on two GPUs than on one."""
    # <blank> compare speedup with the prices of an hour: with two GPUs, and with one
    # was: return speedup > 1
    return speedup > (2 * gpu + other) / (gpu + other)
    # </blank>


checked = rental.check_condition(second_pays)
print(f"{checked.wrong} of {checked.cases} jobs decided wrongly; a second GPU pays in {checked.paying}")
rent_only, with_person = second_pays(1.8, 1.59, 0), second_pays(1.8, 1.59, 27)
print(f"speed-up 1.8 on A100s: rent only {rent_only}; with other costs of 27 dollars an hour {with_person}")

# %% tags=["claim"]
L.claim(
    "your condition decides all 237 jobs as their costs do; by rent alone, a speed-up of 1.8 never pays for a "
    "second GPU, but it does if an hour has other costs that are high enough",
    checked.wrong == 0 and checked.cases == 237 and not rent_only and with_person,
    before=checked.cases,
    after=checked.wrong,
    unit="jobs decided wrongly",
    names=("jobs", "wrong"),
    source=COUNTED,
)


# %% [markdown]
# By rent alone, a second GPU pays only if the speed-up exceeds 2. That can happen if one GPU has to recompute or offload, because the model hardly fits.
#
# **Cores per GPU.** A faster GPU also asks for samples faster. Suppose that the loader needs 0.5 ms of CPU time per sequence. How many cores does each GPU need?

# %% tags=["measure"]
def cores_needed(per_s, cpu_s):
    """Return how many cores prepare samples as fast as the GPU takes them."""
    # <blank> samples per second, times CPU seconds per sample; whole cores
    # was: return 4
    return math.ceil(per_s * cpu_s)
    # </blank>


cores = {one.name: cores_needed(one.per_s, 0.0005) for one in ranked}
print("cores for the loader:", cores)

# %% tags=["claim"]
L.claim(
    "for the same samples, the fastest GPU needs at least a core more than the slowest",
    cores[fastest.name] > cores[slowest.name] and cores_needed(1100, 0.001) == cores_needed(2000, 0.001) == 2,
    before=cores[slowest.name],
    after=cores[fastest.name],
    unit="cores",
    names=("slowest", "fastest"),
    source=VIRTUAL,
)

# %% [markdown]
# So a rule such as "four to eight workers per GPU" cannot be right for every GPU. An instance with too few cores makes a fast GPU slow, at the price of a fast one.
#
# ### 19.5 A faster accelerator
#
# Each step uses arithmetic, memory and the host. Write how long each of the three takes on a GPU; the slowest decides. Then see what the cost model of the virtual GPUs, which estimates every kernel, says about a network: four wide layers in float16, 1,024 rows.

# %% tags=["predict"]
L.predict("faster")

# %% tags=["measure"]
JOB = {"flops": 1e12, "bytes": 4e9, "host_s": 0.0011}  # of one step, declared


def step_times(gpu):
    """Return the seconds that each resource of a step needs; gpu has half_flops_per_s and memory_bytes_per_s."""
    # <blank> the three times by name: arithmetic, memory, host
    # was: return {"arithmetic": JOB["flops"] / gpu.half_flops_per_s}
    return {
        "arithmetic": JOB["flops"] / gpu.half_flops_per_s,
        "memory": JOB["bytes"] / gpu.memory_bytes_per_s,
        "host": JOB["host_s"],
    }
    # </blank>


def wide_layers():
    """Build four wide layers; return a function that trains one step."""
    width = 2048
    layers = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for _ in range(4)
    ]
    model = nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(rows):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(rows, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


GPUS = ("t4", "a100", "h100", "b200")
times = {gpu: step_times(resolve(gpu)) for gpu in GPUS}
limits = {gpu: max(times[gpu], key=times[gpu].get) for gpu in GPUS}
network = gpulab.virtual.compare_gpus(wide_layers, list(GPUS), batch=1024).comparison.candidates
estimates = {gpu: next(one.estimate for one in network if one.estimate.spec == resolve(gpu)) for gpu in GPUS}
tables.table_view(
    ("GPU", "your job: limited by", "network: limited by", "FP16 peak, TFLOP/s", "your job, ms", "network, ms"),
    [
        (
            resolve(gpu).name,
            limits[gpu],
            estimates[gpu].bottleneck,
            f"{resolve(gpu).half_flops_per_s / 1e12:,.0f}",
            f"{1000 * max(times[gpu].values()):.2f}",
            f"{estimates[gpu].step_ns / 1e6:.1f}",
        )
        for gpu in GPUS
    ],
    left=3,
    below="Peaks and bandwidths: the makers' figures for dense products. Your job at these peaks; network: virtual.",
)

# %% tags=["claim"]
peaks = resolve("b200").half_flops_per_s / resolve("a100").half_flops_per_s
gains = [
    max(times["a100"].values()) / max(times["b200"].values()),
    estimates["a100"].step_ns / estimates["b200"].step_ns,
]
display(L.reveal("faster", gains[1], "times as fast"))
L.claim(
    "from a T4 to a B200, the limit moves from arithmetic to memory or the host; from an A100 to a B200, peaks grow "
    "7.2-fold, your job and the network by less than two thirds of that",
    limits["t4"] == limits["a100"] == "arithmetic"
    and limits["b200"] == "host"
    and len(set(limits.values())) >= 2
    and estimates["t4"].bottleneck == "arithmetic" != estimates["b200"].bottleneck
    and max(gains) < peaks * 2 / 3,
    before=peaks,
    after=gains[1],
    unit="times as fast",
    names=("peaks", "network"),
    source=VIRTUAL,
)

# %% [markdown]
# So a purchase moves the bottleneck. Fewer launches and fused kernels bring little on a T4, but pay on a B200 ([12](12_launch_fusion_graphs.ipynb)); with larger batches, arithmetic is the limit again ([03](03_parallel_work_and_batch.ipynb)). Repeat this calculation before you move to a new generation.

# %% [markdown]
# ## Exercise: a plan
#
# ### 19.6 100 epochs in a day
#
# The job of 19.4 has 5 million sequences per epoch, and the loader needs 10,000 s of CPU time for them; if they are decoded once and stored, 1,250 s. (The plan does not count the decoding itself.) There are 8 cores for each GPU. Each doubling of the number of GPUs makes the job 1.8 times as fast. Train 100 epochs within 24 hours for as few dollars as possible. The names of the GPUs are the keys of `prices`. `L.hint("plan")` helps.

# %% tags=["exercise"]
# <blank> for example gpu="a100", gpus=2, workers=8, decode_once=False; workers: for each GPU
# was: plan = rental.TrainingPlan(gpu="h100", gpus=1, workers=4)
plan = rental.TrainingPlan(gpu="rtx4090", gpus=2, workers=8, decode_once=True)
# </blank>
print(f"{plan.epoch_s:,.0f} s per epoch, {plan.hours:.1f} h, {plan.cost:.2f} dollars")
L.score("plan", math.ceil(plan.cost) if plan.in_time else None)

# %% tags=["claim"]
usual = rental.TrainingPlan(gpu="h100", gpus=1, workers=4)
bigger = rental.TrainingPlan(gpu="b200", gpus=2, workers=4)
L.claim(
    "with decoded data and two of the cheapest GPUs, the job ends in a day for a tenth of what one H100 behind four "
    "workers costs; two B200 behind the same loader miss the day, and cost more",
    plan.in_time and plan.cost < usual.cost / 10 and not bigger.in_time and bigger.cost > usual.cost,
    before=usual.cost,
    after=plan.cost,
    unit="dollars",
    source=VIRTUAL,
)

# %% [markdown]
# The order of the decisions matters: first the loader (for the H100, almost a factor of eight), then the GPU, then the number of GPUs, which only the deadline requires.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 19.7 Energy is not time: a host that spins
#
# While the GPU works, the host waits. It can ask again and again whether the GPU is ready (*spin*), or block until it is woken. Both take 0.3 s. A thread that sleeps stands in for the GPU here. (If other programs use the same cores, the loop gets only a part of a core.)

# %% tags=["predict"]
L.predict("spin")


# %% tags=["measure"]
def spin(signal):
    while not signal.query():
        pass


# <blank> a wait that blocks: signal.wait()
# was: block = spin
def block(signal):
    signal.wait()


# </blank>
waits = {"spin": epoch_meter.measure_wait(spin), "block": epoch_meter.measure_wait(block)}
for name, wait in waits.items():
    print(
        f"{name}: {1000 * wait.wall_s:.0f} ms, {1000 * wait.cpu_s:.1f} ms of CPU time, {wait.core_frac:.1%} of a core"
    )

# %% tags=["claim"]
display(L.reveal("spin"))
L.claim(
    "both waits take 0.3 s; the one that spins needs at least ten times the CPU time of the one that blocks",
    all(0.29 < wait.wall_s < 1 for wait in waits.values()) and waits["spin"].cpu_s > 10 * waits["block"].cpu_s,
    before=waits["spin"].cpu_s * 1000,
    after=waits["block"].cpu_s * 1000,
    unit="ms of CPU time",
    source=MEASURED,
)

# %% [markdown]
# CUDA chooses by itself whether `synchronize()` spins or yields. `torch.cuda.Event(blocking=True)` blocks in its `synchronize()`: it reacts a little later and frees a core, which loader workers may need. So a process with 100 % CPU need not be the bottleneck; it may only wait.

# %% [markdown]
# ### 19.8 GPU-hours held and used
#
# The simulated week of eight GPUs from notebook [16](16_scheduling_and_sharing.ipynb), read from gpulab's history. Somebody pays for each hour that a process *holds* a GPU. Write what an hour of *use* costs.

# %% tags=["measure"]
PRICE_PER_H = 1.00  # dollars; yours
with tempfile.TemporaryDirectory() as folder:
    idle_week.write_idle_week(Path(folder) / "watch.sqlite")
    report = [one for one in idle_week.process_report(Path(folder) / "watch.sqlite") if one.used_h > 0]


def used_hour_cost(usage, price_per_h):
    """Return the cost of a GPU-hour in use; usage has held_h and used_h."""
    # <blank> what was paid, divided by the hours used
    # was: return price_per_h
    return price_per_h * usage.held_h / usage.used_h
    # </blank>


used_cost = {one.label: used_hour_cost(one, PRICE_PER_H) for one in report}
tables.table_view(
    ("program", "held, h", "used, h", "an hour of use, dollars"),
    [(one.label, f"{one.held_h:.0f}", f"{one.used_h:.0f}", f"{used_cost[one.label]:.2f}") for one in report],
    below="In the simulated week; price as set.",
)

# %% tags=["claim"]
notebook_cost = next(cost for label, cost in used_cost.items() if "explore.ipynb" in label)
training_cost = min(used_cost.values())
L.claim(
    "an hour of use costs over 40 times the price of an hour in the notebook that was left open, and less than "
    "1.3 times in training",
    notebook_cost > 40 * PRICE_PER_H and PRICE_PER_H < training_cost < 1.3 * PRICE_PER_H,
    before=notebook_cost,
    after=training_cost,
    unit="dollars",
    names=("notebook", "training"),
    source=COUNTED,
)

# %% [markdown]
# ### 19.9 CO2 by the hour of the start
#
# The CO2 of a kWh depends on which power plants run. Here is a recorded day of one region; the job takes 8 hours at 0.7 kW. Choose the hour of the start.

# %% tags=["measure"]
by_start = {start: when_to_run.co2_g(start, 8, 0.7) for start in range(24)}
# <blank> the hour with the least CO2
# was: start = max(by_start, key=by_start.get)
start = min(by_start, key=by_start.get)
# </blank>
print(f"a start at hour {start} (UTC) causes {by_start[start] / 1000:.2f} kg of CO2")
tables.table_view(
    ("start, UTC", *(f"{hour} h" for hour in range(0, 24, 3))),
    [("CO2, kg", *(f"{by_start[hour] / 1000:.2f}" for hour in range(0, 24, 3)))],
    below=f"Recorded: {when_to_run.CARBON_SOURCE}.",
)

# %% tags=["claim"]
worst = max(by_start.values())
saved_share = 1 - by_start[start] / worst
L.claim(
    "on this day, the best start saves 10 % of the CO2 of the worst one",
    round(saved_share, 2) == 0.10,
    before=worst / 1000,
    after=by_start[start] / 1000,
    unit="kg",
    source=COUNTED,
)

# %% [markdown]
# In this region and on this day, the hours differ by 18 %; where sun and wind have a larger share, they differ more. Compare with 19.2 and 19.3: removing waits and limiting power save a larger share, in any region. `GPULAB_CO2=350` adds CO2 to gpulab's reports.

# %% [markdown]
# ### 19.10 Checkpoints on a preemptible instance
#
# Preemptible (*spot*) instances cost less, but the provider can take them back at any time. A checkpoint takes 2 minutes, an instance is taken back after 4 hours on average, a restart takes 5 minutes, and the work since the last checkpoint is lost. How often do you save? Write the formula of Young and Daly.

# %% tags=["predict"]
L.predict("interval")

# %% tags=["measure"]
CHECKPOINT_MIN, FAILURE_MIN, RESTART_MIN = 2, 240, 5


def interval_min(checkpoint_min, failure_min):
    """Return the minutes of work between two checkpoints."""
    # <blank> the square root of 2 * C * M
    # was: return failure_min
    return math.sqrt(2 * checkpoint_min * failure_min)
    # </blank>


rates = (CHECKPOINT_MIN, FAILURE_MIN, RESTART_MIN)
tried = [5 * 1.18**power for power in range(22)]
simulated = {minutes: when_to_run.overhead(minutes, *rates) for minutes in tried}
best_min = min(simulated, key=simulated.get)
yours_min = interval_min(CHECKPOINT_MIN, FAILURE_MIN)
extra = when_to_run.overhead(yours_min, *rates)
print(
    f"yours: {yours_min:.0f} min, {extra:.1%} more time; simulated best: {best_min:.0f} min, {simulated[best_min]:.1%}"
)
plots.line_plot(
    f"The minimum is flat, near {best_min:.0f} minutes",
    {"simulated": {minutes: 100 * share for minutes, share in simulated.items()}},
    x="minutes between checkpoints",
    y="extra time, %",
    source=SIMULATED,
    log_x=True,
)

# %% tags=["claim"]
display(L.reveal("interval", best_min, "min"))
L.claim(
    "the formula is within 20 % of the best simulated interval, and costs at most half a point more time; a spot price "
    "of 80 % of the full one would pay",
    abs(yours_min / best_min - 1) < 0.2 and extra - simulated[best_min] < 0.005 and 0.8 * (1 + extra) < 1,
    before=simulated[best_min],
    after=extra,
    unit="%",
    names=("best", "yours"),
    source=SIMULATED,
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
# You pay for hours, so remove waiting first: it makes a run faster and cheaper, and saves energy, too. Utilisation tells how much waiting there is to remove, not how good the work is. A power limit saves energy for its owner, and no money for a renter. Rank GPUs by dollars per epoch of *your* job; add a second one if the speed-up exceeds the ratio of the prices per hour, with everything included; rent enough cores to feed it. Before you move to a new generation, find out what will limit the job there.

# %% tags=["card"]
L.card()
