# %% [markdown]
# # 17 Monitoring and tools: which tool shows what, and when should it wake you?
#
# `nvidia-smi`, the PyTorch profiler, Nsight Systems, TensorBoard, DCGM, gpulab: each shows a part of the same run. You let several of them watch one training loop and check that they agree, measure what they cost, read timelines with a few lines of pandas, and write an alert that does not wake you for nothing.
#
# It takes 60 minutes and needs no GPU. The training loops and their profilers run live on your CPU. What needs a GPU comes from recordings of a real H100, with the readings that NVML gave. Experiment 17.7 needs `pip install "gpulab[exporters]"`.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("17_monitoring_and_tools")
L

# %% tags=["setup"]
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pynvml
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # TensorBoard is not installed: one view less
    SummaryWriter = None

from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.machine.monitoring import (
    alert_weeks,
    history_week,
    host_sampler,
    metrics_page,
    recorded_gpus,
    slow_loop,
    standin_nvml,
    timelines,
)
from gpulab.lessons.labs.memory.live_bytes import count_live_bytes
from gpulab.views.charts.drawing import plots
from gpulab.watch.clock import Clock
from gpulab.watch.observation import Observer

MIB = 2**20
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch.profiler would report each start and stop
torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The symptom
#
# Four jobs on an H100. These are the highest readings during each recording, as `nvidia-smi` shows them; gpulab read them from NVML, the library behind `nvidia-smi`, `nvitop` and `gpustat`.

# %% tags=["given"]
rows = []
for name in ("h100_01", "h100_02", "h100_11", "h100_13"):
    samples = recorded_gpus.recording(name).gpu_samples
    used, power = samples["memory_used_bytes"].max() / MIB, samples["power_w"].max()
    rows.append((name, f"{samples['util_frac'].max():.0%}", f"{used:,.0f} MiB", f"{power:.0f} W"))
tables.table_view(("recording", "GPU-Util", "Memory-Usage", "Power"), rows, below="Recorded on an NVIDIA H100.")

# %% [markdown]
# In all four jobs, kernels run less than half of the time. In one job the GPU waits for batches to be copied to it, in one for results to be copied to the host, in one for the DataLoader, in one for kernel launches. Nothing in this table says which is which. A monitor tells you *that* a GPU waits; another tool has to tell you *why*.

# %% [markdown]
# ## One run, several tools
#
# ### 17.1 Do they agree?
#
# A training loop reads slow batches. A stopwatch, the PyTorch profiler, TensorBoard and a counter of tensor bytes watch the same eight steps.

# %% tags=["predict"]
L.predict("column")

# %% [markdown]
# Run the loop. The first two steps run without the profiler, the next two warm it up, and eight are recorded. (PyTorch may warn that memory was allocated before the profiling started: the recording does not show when it is freed.)

# %% tags=["measure"]
FIRST, STEPS = 4, 12  # the first recorded step; all steps
loader = DataLoader(slow_loop.SlowRows(STEPS, rows=512, wait_s=0.02), batch_size=None)
network = slow_loop.make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)


def train_step(rows, labels):
    optimizer.zero_grad()
    functional.cross_entropy(network(rows), labels).backward()
    optimizer.step()


writer = SummaryWriter(folder / "scalars") if SummaryWriter else None
plan = schedule(wait=2, warmup=2, active=STEPS - FIRST, repeat=1)
stopwatch_ms = []
with profile(activities=[ProfilerActivity.CPU], schedule=plan, profile_memory=True) as profiler:
    begin = time.perf_counter()
    for number, batch in enumerate(loader):
        train_step(*batch)
        stopwatch_ms.append(1e3 * (time.perf_counter() - begin))
        if writer:
            writer.add_scalar("step_ms", stopwatch_ms[-1], number)
        profiler.step()
        begin = time.perf_counter()
if writer:
    writer.close()
profiler.export_chrome_trace(str(folder / "trace.json"))  # chrome://tracing, ui.perfetto.dev and gpulab.load read it
run = gpulab.load(folder / "trace.json")

with count_live_bytes() as live:  # one more step, counted tensor by tensor
    train_step(*next(iter(loader)))
print(profiler.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=4))

# %% [markdown]
# A Chrome trace is a JSON file, and you can query it. `traceEvents` is a list of dicts with `name`, `ts` and `dur` in microseconds, and `args`. Each recorded step is an event whose name begins with `ProfilerStep#`. With `profile_memory=True`, each allocation is an event named `[memory]`, whose `args` have its `Bytes` and the `Total Allocated` after it. This total does not begin at zero: subtract what it was before the first event.

# %% tags=["measure"]
events = json.loads((folder / "trace.json").read_text())["traceEvents"]
memory = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
before = memory[0]["args"]["Total Allocated"] - memory[0]["args"]["Bytes"]
# <blank> the lengths of the steps in ms, and the highest "Total Allocated" less `before`, in bytes
# was: trace_ms, trace_peak = [0.0], 0
trace_ms = [event["dur"] / 1e3 for event in events if event.get("name", "").startswith("ProfilerStep#")]
trace_peak = max(event["args"]["Total Allocated"] for event in memory) - before
# </blank>
ledger = gpulab.diagnose(run).ledger
step_ms = {
    "stopwatch": statistics.median(stopwatch_ms[FIRST:]),
    "Chrome trace": statistics.median(trace_ms),
    "gpulab's ledger": float(np.median(ledger.step_ns)) / 1e6,
}
if writer:
    step_ms["TensorBoard"] = statistics.median(slow_loop.stored_scalars(folder / "scalars")["step_ms"][FIRST:])
mean_ms = statistics.mean(stopwatch_ms[FIRST:])  # the profiler's table has means only
table_ms = slow_loop.profiled_step_ms(profiler)
print(f"mean step: stopwatch {mean_ms:.1f} ms, profiler's table {table_ms:.1f} ms")
tables.table_view(("tool", "median step, ms"), [(name, f"{value:.1f}") for name, value in step_ms.items()])

# %% tags=["claim"]
largest, smallest = max(step_ms.values()), min(step_ms.values())
L.claim(
    "a stopwatch, TensorBoard, a Chrome trace, the profiler's table and gpulab's ledger give the same step time, "
    "within 20 %",
    largest <= 1.2 * smallest and abs(table_ms / mean_ms - 1) <= 0.2,
    before=smallest,
    after=largest,
    unit="ms",
    names=("smallest", "largest"),
    source=MEASURED,
)

# %% [markdown]
# And the memory? The profiler's table has a column *Self CPU Mem* (on a GPU, *Self CUDA Mem*). Compare the sum of its positive entries with the peak that the trace shows, and with a counter that follows every tensor of one step.

# %% tags=["claim"]
column_bytes = slow_loop.memory_column_bytes(profiler)
display(L.reveal("column", column_bytes / live.peak_bytes, "times the peak"))
gpulab_peak = float(run.memory["allocated_bytes"].max()) - before
L.claim(
    "the trace, gpulab and a counter of tensors agree on the peak of a step within 10 %; the memory column of the "
    "profiler's table adds up to more than five times as much",
    abs(trace_peak / live.peak_bytes - 1) < 0.1
    and abs(gpulab_peak / live.peak_bytes - 1) < 0.1
    and column_bytes > 5 * trace_peak,
    before=trace_peak / MIB,
    after=column_bytes / MIB,
    unit="MiB",
    names=("peak", "sum of the column"),
    source=COUNTED,
)

# %% [markdown]
# An entry adds up all calls of an operator: what it allocates, less what is freed while it runs. What is freed later is a negative entry of another row, such as `ProfilerStep*`. So the column tells you who allocates, not how much memory you need.
#
# ### 17.1 continued: three numbers called memory
#
# On a GPU there is one more trap. PyTorch knows the bytes of its tensors (`torch.cuda.max_memory_allocated`) and the bytes that it took from the driver and keeps for later tensors (`torch.cuda.max_memory_reserved`). NVML knows neither: it counts the GPU memory that all processes hold.

# %% tags=["predict"]
L.predict("memory")

# %% [markdown]
# `memory_views` returns the highest value of all three, for each of 14 recordings. Which one does NVML follow?

# %% tags=["measure"]
views = {name: recorded_gpus.memory_views(name) for name in recorded_gpus.RECORDINGS}
# <blank> the counter of PyTorch that NVML follows: "allocated" or "reserved"
# was: counter = "allocated"
counter = "reserved"
# </blank>
difference_mib = {name: (view["used"] - view[counter]) / MIB for name, view in views.items()}
factor = max(view["used"] / view["allocated"] for view in views.values() if view["allocated"] > 1000 * MIB)
tables.table_view(
    ("recording", "allocated, MiB", "reserved, MiB", "NVML, MiB", f"NVML - {counter}"),
    [
        (
            name,
            *(f"{view[key] / MIB:,.0f}" for key in ("allocated", "reserved", "used")),
            f"{difference_mib[name]:,.0f}",
        )
        for name, view in views.items()
        if name in ("h100_01", "h100_04", "h100_08", "h100_11", "h100_14")
    ],
    below="5 of the 14 recordings.",
)

# %% tags=["claim"]
display(L.reveal("memory"))
L.claim(
    "in 14 recordings of an H100, NVML shows 700 to 900 MiB more than PyTorch has reserved, and up to seven times what "
    "its tensors need",
    all(700 <= mib <= 900 for mib in difference_mib.values()) and 5 < factor < 7,
    before=min(difference_mib.values()),
    after=max(difference_mib.values()),
    unit="MiB",
    names=("smallest difference", "largest"),
    source=recorded_gpus.recording("h100_01"),
)

# %% [markdown]
# The difference of 761 to 853 MiB is memory that PyTorch does not manage: mainly the CUDA context, with the code of its libraries. So before you call a GPU full, compare what `nvidia-smi` shows with `max_memory_allocated`: in recording 14, it is seven times as much.
#
# Utilisation needs the same care. Here are the recordings whose steps were long enough for five readings of NVML:

# %% tags=["given"]
pairs = {name: recorded_gpus.utilisation_views(name) for name in recorded_gpus.RECORDINGS}
tables.table_view(
    ("recording", "NVML, mean of its readings", "kernels in the trace"),
    [(name, f"{pair[0]:.1%}", f"{pair[1]:.1%}") for name, pair in pairs.items() if pair],
    below="Recorded on an NVIDIA H100, 10 readings per second.",
)

# %% [markdown]
# At 100 %, both agree. Where the trace shows 1 to 67 %, NVML reads higher: 35 % instead of 20 % in recording 01. (Copies do not explain this: kernels and copies together cover 98 % of the time in this recording.) So a utilisation in the middle of the scale is a hint, not a measurement.
#
# Which tool answers which question? Match them.

# %% tags=["check"]
# <blank> a letter for each question; run the cell once to see the tools
# was: tools = {
# was:     "Is anybody using GPU 3 now?": "",
# was:     "Which operator of my model takes the most time?": "",
# was:     "Which CUDA, NVTX and OS calls of which process overlap?": "",
# was:     "Why is this one kernel slow?": "",
# was:     "Which of our 200 GPUs were idle last month?": "",
# was:     "Did memory grow while the loss fell, in any of 50 runs?": "",
# was: }
tools = {
    "Is anybody using GPU 3 now?": "c",
    "Which operator of my model takes the most time?": "e",
    "Which CUDA, NVTX and OS calls of which process overlap?": "a",
    "Why is this one kernel slow?": "f",
    "Which of our 200 GPUs were idle last month?": "b",
    "Did memory grow while the loss fell, in any of 50 runs?": "d",
}
# </blank>
L.check("tools", tools)

# %% [markdown]
# ## The price of a tool
#
# ### 17.2 A loop of small operators, with and without a profiler
#
# A monitor reads counters once a second and costs almost nothing. A profiler records every operator. Measure its price in CPU time per step, for a loop of small operators and for one of large ones. `with_stack=True` records the Python calls, `record_shapes=True` the shapes of all inputs, `profile_memory=True` each allocation.

# %% tags=["predict"]
L.predict("overhead")


# %% tags=["measure"]
def make_step(width, rows):
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(8)])
    x, sgd = torch.randn(rows, width), torch.optim.SGD(layers.parameters(), lr=0.01)

    def step():
        sgd.zero_grad()
        layers(x).square().mean().backward()
        sgd.step()

    return step


def cpu_ms(step, steps, step_end=lambda: None):
    """Return the median CPU time of a step of this thread, in ms."""
    times = []
    for _ in range(steps):
        begin = time.thread_time()
        step()
        times.append(1e3 * (time.thread_time() - begin))
        step_end()
    return statistics.median(times)


def profiled(step, steps, plan=None, **options):
    """Profile the steps; return the CPU time of one in ms, and the size of the trace in bytes."""
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, **options) as profiler:
        median_ms = cpu_ms(step, steps, profiler.step if plan else lambda: None)
    path = folder / "overhead.json"
    profiler.export_chrome_trace(str(path))
    return median_ms, path.stat().st_size


# <blank> a dict with the three options for stacks, shapes and memory
# was: everything = {}
everything = {"with_stack": True, "record_shapes": True, "profile_memory": True}
# </blank>
LOOPS = {"small operators": (make_step(32, 8), 40), "large operators": (make_step(512, 512), 3)}
cost_ms, trace_bytes = {}, {}
for name, (step, steps) in LOOPS.items():
    cpu_ms(step, 2)  # warm up
    for _ in range(3):  # the best of three rounds
        measured = {
            "plain": (cpu_ms(step, steps), 0),
            "profiler": profiled(step, steps),
            "everything": profiled(step, steps, **everything),
        }
        for mode, (median_ms, size) in measured.items():
            cost_ms[name, mode] = min(median_ms, cost_ms.get((name, mode), median_ms))
            trace_bytes[name, mode] = size
overhead = {key: cost_ms[key] / cost_ms[key[0], "plain"] - 1 for key in cost_ms if key[1] != "plain"}
plots.bar_plot(
    "A profiler is expensive where operators are small",
    {f"{name}, {mode}": 100 * max(0, value) for (name, mode), value in overhead.items()},
    x="additional CPU time, %",
    source=MEASURED,
)

# %% tags=["claim"]
small = overhead["small operators", "everything"]
display(L.reveal("overhead", small, "%"))
sizes = [trace_bytes["small operators", mode] for mode in ("profiler", "everything")]
L.claim(
    "recording everything costs a loop of small operators at least 50 % more CPU time, and a loop of large ones "
    "at most a third of that; stacks and shapes more than double the trace",
    small >= 0.5 and overhead["large operators", "everything"] <= small / 3 and sizes[1] > 2 * sizes[0],
    before=cost_ms["small operators", "plain"],
    after=cost_ms["small operators", "everything"],
    unit="ms per step",
    source=MEASURED,
)

# %% [markdown]
# The price is per event, not per second. So the profiler slows down loops of many small operators most. Take the step time from a run without a profiler.
#
# You need not record everything all the time. A schedule skips steps, lets the profiler warm up, records a few steps, and stops.

# %% tags=["measure"]
PROFILED_STEPS = 60
step, _ = LOOPS["small operators"]
# <blank> wait for 50 steps, warm up for 2, record 4, once: schedule(wait=..., warmup=..., active=..., repeat=1)
# was: few = None
few = schedule(wait=50, warmup=2, active=4, repeat=1)
# </blank>
_, all_bytes = profiled(step, PROFILED_STEPS, **everything)
_, few_bytes = profiled(step, PROFILED_STEPS, few, **everything)
few_steps = (folder / "overhead.json").read_text().count('"ProfilerStep#')
print(f"trace of 60 steps {all_bytes / 1e6:.1f} MB, of {few_steps} steps {few_bytes / 1e6:.1f} MB")

# %% tags=["claim"]
L.claim(
    "recording 4 of 60 steps writes less than a fifth of the trace",
    few_steps == 4 and few_bytes < all_bytes / 5,
    before=all_bytes / 1e6,
    after=few_bytes / 1e6,
    unit="MB",
    source=COUNTED,
)

# %% [markdown]
# And a monitor? `Observer.observe` reads all sensors once, as `gpulab watch` does each second. (On a machine without a GPU, these are the sensors of the host only.)

# %% tags=["measure"]
observer = Observer(Clock())
# <blank> the CPU time of one call of observer.observe, in ms: cpu_ms(...)
# was: reading_ms = 0.0
reading_ms = cpu_ms(observer.observe, 20)
# </blank>
observer.close()
monitor_share = reading_ms / 1000  # of a core, with one reading per second
profiler_share = small / (1 + small)  # of the time of a profiled step
print(f"monitor {monitor_share:.2%} of a core; profiler {profiler_share:.0%} of a step of small operators")

# %% tags=["claim"]
L.claim(
    "one reading of the sensors per second takes less than 2 % of a core; the profiler takes at least ten times "
    "as much of a loop of small operators",
    0 < monitor_share < 0.02 and profiler_share > 10 * monitor_share,
    before=monitor_share,
    after=profiler_share,
    unit="%",
    names=("monitor", "profiler"),
    source=MEASURED,
)

# %% [markdown]
# `%%gpuprofile` and `gpulab.profile` do the same without a schedule: they record a few steps, stop the profiler, and compare the recorded steps with steps that were not recorded. The report says how much slower a recorded step was. On a GPU, `nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop` records from `torch.cuda.profiler.start()` to `torch.cuda.profiler.stop()`; without the second option, nsys ends your program at the stop. `ncu -k regex:gemm -s 10 -c 5` skips ten matching kernels and measures the next five; it runs each of them several times.

# %% [markdown]
# ## Timelines
#
# ### 17.3 What fills the gaps?
#
# Back to the four jobs of the symptom, and a fifth that is busy. `timelines.recorded_timeline` returns a timeline of the complete steps. Its `events` is a DataFrame with `kind` (*kernel*, *memcpy*, *loader*, *op*, *launch* and others), `name`, `start_ns` and `dur_ns`. `busy_frac` is the share of the time in which a kernel runs. `gap_frac(rows)` is the share of the other, idle time that these rows cover.

# %% tags=["predict"]
L.predict("gaps")


# %% tags=["measure"]
def candidates(events):
    """Return the events that may fill the gaps, by cause; the first that covers over half of the idle time wins."""
    kind, name = events["kind"], events["name"]
    # <blank> rows for "data" (loader), "copies" (memcpy, name with HtoD), "sync" (DtoH), "small kernels" (launch, op)
    # was: return {"data": events[kind == "loader"]}
    return {
        "data": events[kind == "loader"],
        "copies": events[(kind == "memcpy") & name.str.contains("HtoD")],
        "sync": events[(kind == "memcpy") & name.str.contains("DtoH")],  # the host waits for a result
        "small kernels": events[kind.isin(["launch", "op"])],
    }
    # </blank>


def cause_of_gaps(timeline):
    if timeline.busy_frac > 0.8:
        return "busy"
    shares = {cause: timeline.gap_frac(rows) for cause, rows in candidates(timeline.events).items()}
    return next((cause for cause, share in shares.items() if share > 0.5), "unknown")


recorded = {name: timelines.recorded_timeline(name) for name in timelines.PLANTED_CAUSES}
answers = {name: cause_of_gaps(timeline) for name, timeline in recorded.items()}
tables.table_view(
    ("recording", "kernels run", "median kernel, us", "the gaps are", "planted"),
    [
        (name, f"{timeline.busy_frac:.0%}", f"{timeline.median_kernel_us():.1f}", answers[name], planted)
        for (name, timeline), planted in zip(recorded.items(), timelines.PLANTED_CAUSES.values(), strict=True)
    ],
)

# %% tags=["claim"]
display(L.reveal("gaps"))
correct = sum(answers[name] == planted for name, planted in timelines.PLANTED_CAUSES.items())
L.claim(
    "a query of a few lines names what fills the gaps in 5 of 5 recordings of an H100",
    correct == 5,
    before=correct,
    unit="of 5",
    source=recorded_gpus.recording("h100_01"),
)

# %% [markdown]
# The order matters: while the host waits for a copy, it is inside an operator, too. So look for the specific causes first.
#
# Your own trace of 17.1 has no kernels; there, idle means that no operator runs. Apply the same function to it, and compare the result with what the loop does: every item takes 20 ms.

# %% tags=["measure"]
own = timelines.recorded_timeline(run)
own_cause = cause_of_gaps(own)
# <blank> the share of the whole time in which the loop waits for data and no operator runs (busy_frac, gap_frac)
# was: wait_frac = 0.0
wait_frac = (1 - own.busy_frac) * own.gap_frac(candidates(own.events)["data"])
# </blank>
wait_ms = wait_frac * (own.end_ns - own.start_ns) / 1e6 / own.steps
print(f"{own_cause}: {wait_ms:.1f} ms per step")

# %% tags=["claim"]
L.claim(
    "the same query finds the wait for data in a trace of this CPU: 20 to 45 ms per step, where 20 ms were planted",
    own_cause == "data" and 19.5 <= wait_ms <= 45 and wait_frac + own.busy_frac <= 1,
    before=20,
    after=wait_ms,
    unit="ms",
    names=("planted", "in the trace"),
    source=MEASURED,
)

# %% [markdown]
# Nsight Systems shows the same events as rows of a timeline: kernels and copies of the GPU, CUDA calls, NVTX ranges, and calls of the OS runtime libraries. `nsys profile -t cuda,nvtx,osrt -o report python train.py` records them, `nsys stats report.nsys-rep` prints tables, and `nsys export --type sqlite report.nsys-rep` writes a file that `gpulab.load` and pandas read.

# %% [markdown]
# ## Alerts
#
# ### 17.4 Threshold, window, hysteresis
#
# Nobody looks at a monitor at 3 a.m. The next cells use a simulated week of one GPU, with a reading every 10 s. Jobs load their data, validate, and write checkpoints: these short pauses are no reason to wake anybody. The week also has seven real problems: six jobs hang for 40 minutes or more, with a short peak now and then, and one job waits for data so often that its utilisation varies around 30 %.

# %% tags=["predict"]
L.predict("alarms")

# %% [markdown]
# `begin_times` goes through the values and returns when an alarm begins. It should begin below one limit and end above another, higher one: that is *hysteresis*. Without it, a value near the limit starts a new alarm every few minutes.

# %% tags=["measure"]
week = alert_weeks.readings_week()


def begin_times(values, begin_below, end_above, week=week):
    """Return when alarms begin, in seconds; NaN (no process holds memory) neither begins nor ends one."""
    active, begins = False, []
    for at_s, value in zip(week.at_s, values, strict=True):
        if not active and value < begin_below:
            active = True
            begins.append(at_s)
        # <blank> end the alarm only above `end_above`
        # was: elif active and value >= begin_below:
        elif active and value > end_above:
            # </blank>
            active = False
    return begins


single = alert_weeks.window_means(week, alert_weeks.PERIOD_S)  # each reading
means = alert_weeks.window_means(week, 5 * 60)  # the mean of the last five minutes
rules = {
    "a look at 9 a.m.": alert_weeks.morning_looks(week),
    "each reading < 30 %": begin_times(single, 0.3, 0.3),
    "mean of 5 min < 30 %": begin_times(means, 0.3, 0.3),
    "the same, until > 50 %": begin_times(means, 0.3, 0.5),
}
scores = {name: alert_weeks.score_alarms(week, begins) for name, begins in rules.items()}
tables.table_view(alert_weeks.HEADER, alert_weeks.score_table(list(scores.items())), below="A simulated week.")

# %% tags=["claim"]
threshold, window, steady = list(scores.values())[1:]
display(L.reveal("alarms", threshold.alarms, "alarms"))
L.claim(
    "in a simulated week with seven problems, a threshold alone gives more than 400 false alarms, a window of 5 "
    "minutes fewer than 50; hysteresis removes the repeated ones, and all seven problems are found within 5 minutes",
    threshold.false_alarms > 400
    and window.false_alarms < 50
    and window.repeated > 0
    and steady.repeated == 0
    and steady.missed == 0
    and steady.worst_delay_min <= 5,
    before=threshold.alarms,
    after=steady.alarms,
    unit="alarms",
    source=SIMULATED,
)


# %% [markdown]
# ### Exercise: an alert that you can trust
#
# More than 30 false alarms in a week are still too many: after a few days, everybody ignores them. Write a rule that finds all seven problems, with no false and no repeated alarm. The score is its worst delay in minutes; the target is 10.
#
# A longer window helps. But the mean of ten minutes is below 30 % after a pause of seven. `alert_weeks.window_fifths(week, seconds)` returns the highest mean of five equal parts of the window: it is below the limit only if *every* part is. `L.hint("alert")`, in a new cell, gives up to three hints.

# %% tags=["exercise"]
def wake_me(week):
    """Return when alarms begin, in seconds."""
    # <blank> choose values (window_means or window_fifths), a window, and two limits
    # was: return begin_times(alert_weeks.window_means(week, 5 * 60), 0.3, 0.5, week)
    return begin_times(alert_weeks.window_fifths(week, 10 * 60), 0.3, 0.5, week)
    # </blank>


own_rule = alert_weeks.score_alarms(week, wake_me(week))
in_words = "idle < 30 % for 10 min while memory is held"
by_gpulab = alert_weeks.score_alarms(week, alert_weeks.engine_alarms(week, in_words))
display(
    tables.table_view(
        alert_weeks.HEADER, alert_weeks.score_table([("your rule", own_rule), (f"gpulab: {in_words}", by_gpulab)])
    )
)
L.score("alert", alert_weeks.alert_target(own_rule))

# %% [markdown]
# You chose the limits on this week, so test them on two other weeks before you trust them.

# %% tags=["claim"]
others = {f"week {seed}": alert_weeks.readings_week(seed) for seed in (3, 4)}
tests = {name: alert_weeks.score_alarms(other, wake_me(other)) for name, other in others.items()}
display(tables.table_view(alert_weeks.HEADER, alert_weeks.score_table(list(tests.items()))))
L.claim(
    "a rule with a window in five parts finds all problems of three simulated weeks within 10 minutes, without a "
    "false alarm",
    all(
        alert_weeks.alert_target(score) is not None and score.worst_delay_min <= 10
        for score in (own_rule, *tests.values())
    ),
    before=steady.false_alarms,
    after=own_rule.false_alarms,
    unit="false alarms",
    source=SIMULATED,
)

# %% [markdown]
# gpulab's alerts work like this: "for 10 min" means that the mean of each fifth is beyond the limit, and an alert ends when the mean of a minute is clearly on the other side (here above 36 %; your 50 % is farther from the limit, which is why gpulab's rule repeats one alarm above). *While memory is held* leaves out GPUs that nobody uses. `gpulab watch --alert "idle < 30 % for 10 min while memory is held" --webhook URL` runs it on a machine. In Prometheus, an alert with `for: 10m` fires only if its expression was true at *every* evaluation for ten minutes. A single peak resets this time, so compare `avg_over_time(DCGM_FI_DEV_GPU_UTIL[2m])` with the limit instead of single readings.

# %% [markdown]
# ## Weeks
#
# ### 17.5 A pattern in the history
#
# An alert is about one night. A history shows whether GPUs are idle *every* night. Here is the use of four GPUs in a simulated week, from a database like that of `gpulab watch`.

# %% tags=["given"]
database = folder / "week.sqlite"
history_week.write_week(database)
history_week.week_heat_map(database)

# %% tags=["predict"]
L.predict("nights")

# %% [markdown]
# `minutes` has a row per GPU and minute: `gpu`, `day`, `hour`, `util_frac`, and `held_idle`, which is 1 if a process held the GPU and nothing ran. Find the hours of the day in which a GPU is held and idle for at least 80 % of the time, on at least 6 of the 7 days.

# %% tags=["measure"]
minutes = history_week.week_minutes(database)
hourly = minutes.groupby(["gpu", "day", "hour"])["held_idle"].mean().reset_index()
# <blank> a list of hours for each GPU, such as {0: [], 1: [22, 23], ...}
# was: idle_hours = {gpu: [] for gpu in hourly["gpu"].unique()}
often = hourly[hourly["held_idle"] >= 0.8].groupby(["gpu", "hour"])["day"].nunique()
idle_hours = {gpu: [hour for hour in range(24) if often.get((gpu, hour), 0) >= 6] for gpu in hourly["gpu"].unique()}
# </blank>
patterns = history_week.week_patterns(database)
print(f"your query: { ({int(gpu): hours for gpu, hours in idle_hours.items() if hours}) }")
for pattern in patterns:
    print(f"gpulab, {pattern.kind}: {pattern.claim}; {pattern.wasted_gpu_h:.0f} GPU-hours; {pattern.advice}")

# %% tags=["claim"]
display(L.reveal("nights"))
first, last = history_week.NIGHT_HOURS
night = sorted([*range(first, 24), *range(last)])
nightly = [pattern for pattern in patterns if pattern.kind == "idle_hours"]
L.claim(
    "a query over one week finds the planted idle nights of one GPU and nothing on the others, and gpulab names "
    "the same hours and the process",
    {gpu: hours for gpu, hours in idle_hours.items() if hours} == {history_week.NIGHT_GPU: night}
    and len(nightly) == 1
    and history_week.night_label() in nightly[0].claim,
    before=len(night),
    unit="idle hours in each night",
    source=COUNTED,
)

# %% [markdown]
# GPU 3 has a different problem: since Friday, 9:00, a process has held it without using it. Your query looks for hours that repeat on at least six days, so it does not find this. gpulab looks for ten such patterns; `gpulab history 7d` shows those of your machine, with the hours, who held the GPU, and the cost.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 17.6 Five signatures, and a confusion table
#
# A rule that many dashboards use: low utilisation means slow data loading. How often is it right? Classify the 14 recordings of an H100: *data*, *copies*, *host* (launches, Python), *device* (the GPU is the limit) or *memory* (it grows from step to step).

# %% tags=["predict"]
L.predict("signatures")


# %% tags=["measure"]
def by_utilisation(counters):
    return "data" if counters["busy"] < 0.5 else "device"


def by_signature(counters):
    """Name the cause from busy, loader, copies, calls, python (shares of a step) and growth (bytes per step)."""
    # <blank> busy at least 0.5: memory if growth is over 512 KiB, else device; not busy: the largest wait of
    # data (loader), copies, and host (calls + python)
    # was: return by_utilisation(counters)
    if counters["busy"] >= 0.5:
        return "memory" if counters["growth"] > 512 * 1024 else "device"
    waits = {"data": counters["loader"], "copies": counters["copies"], "host": counters["calls"] + counters["python"]}
    return max(waits, key=waits.get)
    # </blank>


planted = list(recorded_gpus.PLANTED_SIGNATURES.values())
by_monitor = list(recorded_gpus.classified(by_utilisation).values())
by_counters = list(recorded_gpus.classified(by_signature).values())
display(recorded_gpus.confusion_table(planted, by_monitor))
recorded_gpus.confusion_table(planted, by_counters)

# %% tags=["claim"]
right_by_monitor = sum(map(str.__eq__, planted, by_monitor))
right_by_counters = sum(map(str.__eq__, planted, by_counters))
display(L.reveal("signatures", right_by_monitor, "of 14"))
L.claim(
    "utilisation alone names the cause of fewer than half of 14 recordings of an H100, five signatures at least 13",
    right_by_monitor < 7 and right_by_counters >= 13,
    before=right_by_monitor,
    after=right_by_counters,
    unit="of 14",
    source=recorded_gpus.recording("h100_01"),
)

# %% [markdown]
# The limits, 50 % and 512 KiB, come from the twelve cases of notebook [20](20_diagnosis_drills.ipynb), not from these recordings. Still, the recordings are from the same authors, who planted one clear cause in each. Your jobs may have two at a time.
#
# ### 17.7 Containers and Prometheus
#
# There is no "NVIDIA-Docker stats". `docker stats` shows what the control groups (cgroups) of Linux count for a container (CPU time, memory, block I/O, processes), and its network traffic. It has no GPU column: NVIDIA's driver does not report GPU use to cgroups. Use `nvidia-smi` inside the container, or an exporter on the host. NVIDIA's DCGM exporter and `gpulab watch --prometheus 9400` serve the same names, such as `DCGM_FI_DEV_GPU_UTIL`.

# %% tags=["predict"]
L.predict("docker")

# %% [markdown]
# This is a page of gpulab's exporter. The GPU readings come from a recording, the load of the host from this machine. Each sample is a line `name{labels} value`. Write a parser.

# %% tags=["measure"]
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpulab.integrations.prometheus import WatchCollector

collector, registry = WatchCollector("node"), CollectorRegistry()
collector(metrics_page.exporter_observation(), {})  # the watcher does this each second
registry.register(collector)
page = generate_latest(registry).decode()
print(metrics_page.sample_lines(page, "GPU_UTIL", "FB_USED", "host_cpu"))


def parse_page(page):
    """Return the value of each metric by name."""
    samples = {}
    for line in page.splitlines():
        # <blank> skip comments; the name ends before "{", the value begins after the last space
        # was: continue
        if not line.startswith("#"):
            samples[line.split("{")[0]] = float(line.rsplit(" ", 1)[1])
        # </blank>
    return samples


samples = parse_page(page)
print(f"docker stats: {', '.join(metrics_page.DOCKER_STATS_FIELDS)}")
counters = {name: value for name, value in metrics_page.cgroup_readings().items() if value == value}  # not NaN
print(f"cgroup of this process: {counters or 'no counters here'}")

# %% tags=["claim"]
display(L.reveal("docker"))
reading = metrics_page.recorded_reading()
official = {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}
L.claim(
    "the parser reads a page of the exporter as Prometheus' own client does, and finds the GPU's utilisation and "
    "memory",
    samples == official
    and samples.get("DCGM_FI_DEV_GPU_UTIL") == 100 * reading["util_frac"]
    and samples.get("DCGM_FI_DEV_FB_USED") == reading["memory_used_bytes"] / MIB,
    before=len(samples),
    unit="metrics",
    source=COUNTED,
)

# %% [markdown]
# `DCGM_FI_DEV_GPU_UTIL` is the utilisation of NVML, with all that notebook [01](01_what_is_utilisation.ipynb) says about it. `DCGM_FI_PROF_SM_ACTIVE`, `DCGM_FI_PROF_PIPE_TENSOR_ACTIVE` and `DCGM_FI_PROF_DRAM_ACTIVE` come from performance counters of data-centre GPUs and tell a full GPU from a nearly empty one. (The default list of the DCGM exporter has the first of these three commented out.) `dcgmi dmon -e 203,1002,1004,1005` prints all four, once a second.
#
# ### 17.8 System metrics beside the loss
#
# Trackers read CPU, memory and GPU in a thread of their own, so their timestamps differ from those of the steps. This loop has a fault: it appends a tensor to a list in each step. The loss does not show it.

# %% tags=["predict"]
L.predict("tracker")

# %% tags=["measure"]
LOGGED = 12
log_path, stored = folder / "log.jsonl", []
network = slow_loop.make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.4)
batches = DataLoader(slow_loop.SlowRows(LOGGED, rows=64, wait_s=0.05), batch_size=None)
with host_sampler.HostSampler() as sampler, log_path.open("w") as log:
    for number, (rows, labels) in enumerate(batches):
        loss = functional.cross_entropy(network(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stored.append(torch.ones(10 * MIB))  # 40 MiB: the fault
        # <blank> write a line of JSON (end it with "\n") with "step", "time_s" (time.time()) and "loss" (a float)
        # was: pass
        log.write(json.dumps({"step": number, "time_s": time.time(), "loss": loss.item()}) + "\n")
        # </blank>
stored.clear()
lines = [json.loads(line) for line in log_path.read_text().splitlines()]
steps = pd.DataFrame(lines, columns=["step", "time_s", "loss"]).astype(float)
# <blank> for each step the last reading before it: pd.merge_asof(left, right, on=...)
# was: aligned = steps.assign(rss_mib=0.0, cpu_percent=0.0)
aligned = pd.merge_asof(steps, sampler.readings, on="time_s")
# </blank>
growth = aligned["rss_mib"] - aligned["rss_mib"].min()
aligned.assign(time_s=aligned["time_s"] - aligned["time_s"].min(), memory_growth_mib=growth).iloc[::3].round(2)

# %% tags=["claim"]
display(L.reveal("tracker"))
complete = len(aligned.dropna())
grown_mib = growth.iloc[-1] if len(growth) else 0.0
L.claim(
    "all 12 steps have a loss and a reading of the host; the loss falls by more than a quarter, and the memory of the "
    "process grows by more than 300 MiB",
    complete == LOGGED and grown_mib > 300 and aligned["loss"].iloc[-1] < 0.75 * aligned["loss"].iloc[0],
    before=0,
    after=grown_mib,
    unit="MiB",
    source=MEASURED,
)


# %% [markdown]
# Real trackers do this for you: W&B records system metrics by itself after `wandb.init()`, MLflow after `mlflow.enable_system_metrics_logging()`. TensorBoard's `SummaryWriter.add_scalar` has none: add `psutil.cpu_percent()` and `torch.cuda.memory_allocated()` as scalars. `gpulab.integrations.wandb.log_run(run)`, `.mlflow.log_run(run)` and `.tensorboard.log_run(run, writer)` add what gpulab knows: shares of a step, energy, the verdict.
#
# ### 17.9 Status in code
#
# A scheduler script or a dashboard needs the status of GPUs as data, on machines with and without a GPU. Query NVML through `pynvml` (the package `nvidia-ml-py`). Two things go wrong in practice: there is no driver, or a GPU does not support a reading (in MIG mode, for example, it has no utilisation). Missing is not zero: with zero, the mean power of the cluster is too low, and nobody sees why.

# %% tags=["measure"]
def query_value(nvml, query):
    """Return the result of `query()`; if the GPU does not support it, what stands for unknown."""
    try:
        return query()
    except nvml.NVMLError:
        # <blank> the value of a reading that the driver does not give
        # was: return 0.0
        return None
        # </blank>


def gpu_readings(nvml, handle):
    queries = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "memory_total_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "util_frac": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    }
    return {field: query_value(nvml, query) for field, query in queries.items()}


def gpu_status(nvml):
    """Return a dict for each GPU; a machine without one gives a dict for the CPU. None: unknown."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        # <blank> one dict with the same fields, all None except the name "cpu"
        # was: return []
        return [{**dict.fromkeys(standin_nvml.STATUS_FIELDS), "name": "cpu"}]
        # </blank>
    return [gpu_readings(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]


here = gpu_status(pynvml)
two = gpu_status(standin_nvml.standin_nvml())
none = gpu_status(standin_nvml.standin_nvml(gpus=()))
print(f"this machine: {here}")
print(f"torch: {torch.cuda.is_available()=}, {torch.cuda.device_count()=}")
pd.DataFrame([*two, *none], dtype=object)  # object: a None stays a None

# %% tags=["claim"]
fields = [tuple(row) for row in (*here, *two, *none)]
L.claim(
    "the query gives the same fields for this machine, for two stand-in GPUs and for a machine without a driver; "
    "what is not supported is None, not 0",
    len(here) >= 1 and len(none) == 1 and set(fields) == {standin_nvml.STATUS_FIELDS} and two[1]["power_w"] is None,
    before=len(fields),
    unit="rows",
    source=COUNTED,
)

# %% [markdown]
# In PyTorch, `torch.cuda.mem_get_info()` gives free and total bytes of the device, like NVML; `memory_allocated()` and `memory_reserved()` those of your process; `torch.cuda.utilization()` (%), `temperature()` (°C) and `power_draw()` (mW) call pynvml. TensorFlow has `tf.config.list_physical_devices("GPU")` and `tf.config.experimental.get_memory_info("GPU:0")`.

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# | question | tool |
# |---|---|
# | who uses which GPU now? | `nvitop`, `gpustat -cup`; `nvidia-smi` (processes, no users); in code NVML |
# | why is a step slow? | `%%gpuprofile`, `torch.profiler` for a few steps |
# | what do processes, CUDA and the OS do together? | `nsys profile -t cuda,nvtx,osrt -o report python train.py` |
# | why is one kernel slow? | `ncu --set full -k regex:NAME -c 5 -o kernels python train.py` |
# | what happened in a week, on a machine or in a cluster? | `gpulab watch`; DCGM exporter, Prometheus, Grafana |
# | which of my experiments was it? | TensorBoard, MLflow, W&B, with system metrics |
#
# Begin with the cheap tool that says *that* something is wrong, and use the expensive one for a few steps to see *why*. Check which number a tool shows before you compare it with another. An alert needs a window, hysteresis, and a test against weeks in which nothing was wrong.

# %% tags=["card"]
L.card()
