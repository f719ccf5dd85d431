# %% [markdown]
# # 00 Start here: why is the GPU idle?
#
# - **Part 1 (5 minutes).** You profile a slow training loop, apply a fix, and compare the predicted speed-up with the measured one.
# - **Part 2 (15 minutes)** can wait.
#
# Run the cells from top to bottom (Shift+Enter). You need no GPU.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("00_start_here")
L

# %% [markdown]
# ## Part 1: from a slow loop to a measured fix
#
# ### 00.1 A loop that loads its own data
#
# The photos come from a simulated file server: each read takes 8 ms. Then the photo is decoded, cropped and flipped. All else is ordinary PyTorch, which you need not study.

# %% tags=["setup"]
import torch
from torch import nn
from torch.utils.data import DataLoader

from gpulab import synthetic
from gpulab.lessons.labs.data.photos import Photos

if L.device == "cpu":
    torch.set_num_threads(1)  # leaves cores for loading data
batches = L.pick(tiny=40, lab=40, full=200)
dataset = Photos(synthetic.images(40), length=16 * batches)


# %% tags=["given"]
def make_model():
    width = 8 if L.device == "cpu" else 256
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    ).to(L.device)


def train(loader):
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for images, labels in loader:
        images, labels = images.to(L.device, non_blocking=True), labels.to(L.device, non_blocking=True)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


# %% [markdown]
# #### Predict

# %% tags=["predict"]
L.predict("wait")

# %% [markdown]
# #### Measure
#
# `%%gpuprofile before` records this cell as a run named `before`. Read the bold sentence of its report; the rest can wait until part 2.

# %% tags=["measure"]
# %%gpuprofile before
losses_before = train(DataLoader(dataset, batch_size=16))

# %% tags=["reveal"]
diagnosis = gpulab.diagnose(gpulab.runs["before"])
L.reveal("wait", diagnosis.step.frac("loader"), "%")

# %% [markdown]
# #### Fix
#
# Workers are processes that load the next batches while the model trains. Write a DataLoader with two workers that stay alive after an epoch: `num_workers=2, persistent_workers=True`. (The report proposes more, because they mostly wait; part 2 tries that.)
#
# With `--compare before`, the cell shows a comparison instead of a second report. Read its bold sentence and the line *Measured step time*: it checks the prediction for two workers.

# %% tags=["measure"]
# %%gpuprofile after --compare before
# <blank> two workers that stay alive after an epoch
# was: loader = DataLoader(dataset, batch_size=16)
loader = DataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True)
# </blank>
losses_after = train(loader)

# %% [markdown]
# #### Verify
#
# Is it the same training?

# %% tags=["same"]
L.same(losses_before, losses_after)

# %% tags=["claim"]
comparison = gpulab.compare("before", "after")
L.claim(
    "with two workers a step is at least 1.3 times as fast",
    comparison.ratio >= 1.3,
    before=comparison.before_ns / 1e6,
    after=comparison.after_ns / 1e6,
    unit="ms",
)

# %% [markdown]
# That was part 1. Do the same with your own code: write `%%gpuprofile before` on top of the cell that trains.

# %% [markdown]
# ## Part 2: on your own
#
# You choose the number of workers yourself, and learn two mistakes of timing by hand.
#
# Two workers wait for two photos at the same time, and waiting does not occupy a core. Decoding occupies a core in whichever process it runs, so workers have a cost on a machine with few cores.
#
# ### Read the report of `before` again
#
# - **Predicted step time** is a range, not a promise. Its first number is the step time today. The *upper bound* is what a perfect fix for this cause would give: the rest of the step remains.
# - **Where the step time goes** divides the same step time into parts that add up to it. *Complete* steps are steps that were recorded from start to end.

# %% tags=["check"]
# <blank> "a", "b" or "c"; run the cell once to see the question
# was: answer = None
answer = "b"
# </blank>
L.check("parts", answer)

# %% [markdown]
# In a cell marked *your turn*, you write the code. Most questions and exercises have three hints below them.
#
# ### Your turn: use the number of workers that your report recommends
#
# The dataset is defined in a module and not in this notebook, because worker processes must be able to import it. Enter the number of workers and check the prediction. (The worked solution uses 4; your report may recommend another number.) It may be larger than your number of cores; your report explains why that does no harm here.
#
# Workers finish together, so they deliver batches in groups: with eight workers, eight batches at a time. A comparison needs several groups. So this loop has more batches than the two loops above.

# %% tags=["setup"]
import warnings

warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores: see lesson 05
more_photos = Photos(dataset.files, length=16 * max(120, batches))

# %% tags=["measure"]
# %%gpuprofile own
# <blank> the number of workers that the report of `before` recommends
# was: workers = 2
workers = 4
# </blank>
losses_own = train(DataLoader(more_photos, batch_size=16, num_workers=workers, persistent_workers=True))

# %% tags=["measure"]
# %gpucompare before own

# %% tags=["claim"]
own = gpulab.compare(gpulab.runs["before"], gpulab.runs["own"], rewrites=f"workers={workers}")
# <blank> the low end of the predicted gain: own.predicted.worst_speedup
# was: predicted_speedup = 1.0
predicted_speedup = own.predicted.worst_speedup
# </blank>
L.claim(
    "the first run alone predicts a speed-up of at least 1.3, and the measured one does not exceed the upper bound",
    predicted_speedup >= 1.3 and own.ratio <= 1.1 * own.predicted.bound,
    before=predicted_speedup,
    after=float(own.ratio),
    unit="times as fast",
)

# %% [markdown]
# gpulab measured all of this for you. If you time code yourself, two mistakes are common.
#
# ### 00.2 A timer that is stopped too early
#
# PyTorch sends its work to the GPU through a queue. How does that affect a timer around a call? Any queue shows the effect, so this cell uses one on the CPU: a thread that runs what it is given, 20 ms per task.

# %% tags=["setup"]
import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from gpulab.lessons.labs.machine import core_limits

queue = ThreadPoolExecutor(max_workers=1)


def launch():
    """Put 20 ms of work on the queue, as a CUDA call does."""
    return queue.submit(time.sleep, 0.02)


# %% tags=["predict"]
L.predict("time")


# %% tags=["measure"]
def launch_time_ms(wait):
    """Time one launch, in milliseconds; `wait`: stop the timer only when the work is done."""
    start_s = time.perf_counter()
    work = launch()
    if wait:
        work.result()
    elapsed_ms = 1000 * (time.perf_counter() - start_s)
    work.result()
    return elapsed_ms


launch_time_ms(wait=True)  # warm-up: the first call also starts the thread
# <blank> time 20 launches without waiting for their results
# was: without_waiting_ms = median(launch_time_ms(wait=True) for _ in range(20))
without_waiting_ms = median(launch_time_ms(wait=False) for _ in range(20))
# </blank>
with_waiting_ms = median(launch_time_ms(wait=True) for _ in range(20))
print(f"stopped when the call returns: {without_waiting_ms:.3f} ms; when the work is done: {with_waiting_ms:.1f} ms")

# %% tags=["reveal"]
L.reveal("time", without_waiting_ms / with_waiting_ms, "%")

# %% tags=["claim"]
L.claim(
    "a timer that does not wait for the work measures less than half of it",
    without_waiting_ms < 0.5 * with_waiting_ms,
    before=without_waiting_ms / with_waiting_ms,
    unit="%",
)

# %% [markdown]
# So time code in this way: leave out the first calls, because they also load and compile code; stop the timer when the device has finished; and report the median of many steps, together with the smallest and the largest value. gpulab does all three for you.
#
# ### 00.3 How many cores may you use?
#
# Containers and clusters often allow a process fewer cores than the machine has. A program that asks the wrong function starts too many workers. The next cell starts a process that may use one core, as a cluster job with `--cpus-per-task=1` usually does, and asks three functions there. (macOS has no such limits. A container limit such as `docker run --cpus=1` is a quota of CPU time, which none of the three functions sees; `%gpuinfo` below reads it.)

# %% tags=["measure"]
counts = core_limits.counts_with_one_core()
print(f"os.cpu_count(): all cores of the machine? {counts.all_cores == os.cpu_count()}")
print(f"os.sched_getaffinity(0): {counts.affinity}; threads of PyTorch: {counts.threads}")
# <blank> the count that sees the limit: counts.affinity
# was: usable_cores = counts.all_cores + 1
usable_cores = counts.affinity
# </blank>

# %% [markdown]
# `%gpuinfo` shows what your process may use (affinity and the limits of its container), and everything else that gpulab can measure on this machine.

# %% tags=["measure"]
# %gpuinfo

# %% tags=["claim"]
L.claim(
    "in a process that may use one core, os.cpu_count() still counts all cores of the machine; its affinity counts one",
    counts.all_cores == os.cpu_count() and usable_cores in (1, None),
    before=counts.all_cores,
    after=usable_cores,
    unit="cores",
)

# %% [markdown]
# ## Next steps
#
# - Put `%%gpuprofile` on a cell of your own. The cell's results, output and errors do not change.
# - `%gpureport before` shows a report again. `%gpuwhy no_workers` explains how gpulab detects this cause, and which other causes look similar. `%%gpuprofile --help` lists the options.
# - Save a run with `gpulab.save(gpulab.runs["before"], "before.gpulab")`. Save its report with `gpulab.report(gpulab.runs["before"]).save("before.html")`; the file needs neither gpulab nor a network connection.
# - In a script, write `with gpulab.profile("before"): train()`, then `print(gpulab.report(gpulab.runs["before"]))`.
# - The next lesson is [01 What is utilisation?](01_what_is_utilisation.ipynb); the [index](index.ipynb) suggests a path for your problem.

# %% tags=["card"]
L.card()
