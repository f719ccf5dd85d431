# %% [markdown]
# # 00 Start here: why is the GPU idle?
#
# You train a small image classifier, see that it is slow, let gpulab say why, apply the fix it names, and check its prediction against what you measure. It runs on any laptop, and uses a CUDA GPU where there is one. Nothing is downloaded.
#
# Run the cells from top to bottom (Shift and Enter). Three kinds of cell come back in every lesson:
#
# - `L.predict` asks before you measure. Choose, then run on; a wrong guess costs nothing and helps you to see. `L.reveal` tells.
# - `L.claim` states what an experiment shows, and checks it with your own figures: HOLDS or FAILS. Where a time FAILS while other programs are busy, run the cells that measured it again.
# - A cell that says *your turn* has something for you to write.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("00_start_here")
L

# %% [markdown]
# ## Before you measure: can you trust a clock?
#
# ### 00.1 A clock that is stopped too early
#
# PyTorch hands its work to the GPU through a queue. What does that do to a stopwatch around a call? Any queue shows it, so here is one on the CPU: a thread that works through what it is handed, 20 ms a piece.

# %% tags=["setup"]
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

queue = ThreadPoolExecutor(max_workers=1)


def launch():
    """Hand 20 ms of work to the queue, as a CUDA call does."""
    return queue.submit(time.sleep, 0.02)


# %% tags=["predict"]
L.predict("time")


# %% tags=["measure"]
def timed(wait):
    """Milliseconds of one launch, by a clock that waits for the work or does not."""
    began = time.perf_counter()
    work = launch()
    if wait:
        work.result()
    spent_ms = 1000 * (time.perf_counter() - began)
    work.result()
    return spent_ms


timed(wait=True)  # the first call also starts the thread: no part of what comes after
# <fix>
# was: too_early_ms = median(timed(wait=True) for _ in range(20))
too_early_ms = median(timed(wait=False) for _ in range(20))
# </fix>
waited_ms = median(timed(wait=True) for _ in range(20))
print(f"stopped at once: {too_early_ms:.3f} ms; after the work: {waited_ms:.1f} ms")

# %% tags=["reveal"]
L.reveal("time", too_early_ms / waited_ms, "%")

# %% tags=["claim"]
L.claim(
    "a clock that does not wait for the work sees less than half of it",
    too_early_ms < 0.5 * waited_ms,
    before=too_early_ms / waited_ms,
    unit="%",
)

# %% [markdown]
# Three habits follow, and gpulab keeps them for you: the first calls are left out, because they also load and compile; the clock stops when the device is done; and a figure comes from many steps, as their median (the middle one), with the smallest and the largest beside it.
#
# ### 00.2 A machine that is not known
#
# What is there, and what can be measured here? Look at the cores: containers and clusters often allow fewer than the machine has, and the fix of this lesson needs some.

# %% tags=["measure"]
# %gpuinfo

# %% tags=["claim"]
import os

# <fix>
# was: cores_allowed = None
cores_allowed = L.machine.cores_allowed
# </fix>
L.claim(
    "the number of cores that may be used is known, and is at most what the machine has",
    cores_allowed is not None and cores_allowed <= os.cpu_count(),
    before=cores_allowed,
    unit="cores",
)

# %% [markdown]
# ## The symptom
#
# ### 00.3 A loop that fetches its own data
#
# The training reads photos from a file server. Both are made here: noisy JPEG files of ten colours, and a wait of 8 ms for each read. Each photo is then decoded, cropped and flipped, as in any image training.
#
# The dataset stands in a module and not in this notebook, because the worker processes that come later must be able to import it. This is what it does for one photo.

# %% tags=["setup"]
import inspect

import torch
from torch import nn

from gpulab import synthetic
from gpulab.lessons.labs.data.photos import Photos

if L.device == "cpu":
    torch.set_num_threads(1)  # the model takes one core, so that the others are free for loading data
batches = L.pick(tiny=40, lab=48, full=200)  # by the size on the card above
dataset = Photos(synthetic.images(40), length=16 * batches)
print(inspect.getsource(Photos.__getitem__))


# %% [markdown]
# Model and loop are ordinary PyTorch. Nothing in them knows that it will be profiled.

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
# ## Predict

# %% tags=["predict"]
L.predict("wait")

# %% [markdown]
# ## Measure
#
# `%%gpuprofile before` records this cell under the name `before`. Watch the panel while it runs; the report takes its place when the cell ends.

# %% tags=["measure"]
# %%gpuprofile before
from torch.utils.data import DataLoader

losses_before = train(DataLoader(dataset, batch_size=16))

# %% tags=["reveal"]
diagnosis = gpulab.diagnose(gpulab.runs["before"])
L.reveal("wait", float(diagnosis.ledger.share("loader")), "%")

# %% [markdown]
# ## Diagnose
#
# Read three things in the report.
#
# - **The first sentence** names the cause; the lines below it tell what was measured to say so.
# - **Expect** is a range, not a promise. It begins with the step as it is without the profiler, so that its first number is not quite that of the table. Where it says *at most*, that is a bound: however well this cause is mended, the rest of the step remains.
# - **Where a step goes** splits the mean step into parts that sum to it exactly. (The first sentence takes the median step, so its share differs a little.) *Interior* steps are those recorded from end to end.

# %% tags=["check"]
# <blank> "a", "b" or "c"; run it once to read the question
# was: answer = None
answer = "b"
# </blank>
L.check("parts", answer)

# %% [markdown]
# ## Fix
#
# The loop itself reads and decodes the photos, one after the other, while the model waits. Worker processes can fetch the next batches meanwhile. Your report proposes a number of them; begin with two.

# %% tags=["predict"]
L.predict("gain")

# %% tags=["measure"]
# %%gpuprofile after
# <fix>
# was: loader = DataLoader(dataset, batch_size=16)
loader = DataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True)
# </fix>
losses_after = train(loader)

# %% [markdown]
# ## Verify
#
# Is it still the same training? Only then is it worth asking whether it is faster, and whether that was foretold. `workers=2` tells the comparison what was changed, so that it works out from `before` alone what two workers should give.
#
# If it says *No difference above the noise*, other programs were busy: run both recordings again.

# %% tags=["same"]
L.same(losses_before, losses_after)

# %% tags=["measure"]
# %gpucompare before after workers=2

# %% tags=["reveal"]
seen = gpulab.compare(gpulab.runs["before"], gpulab.runs["after"], rewrites="workers=2")
L.reveal("gain", float(seen.ratio), "times as fast")

# %% tags=["claim"]
L.claim(
    "with two workers a step is at least 1.3 times as fast",
    seen.ratio >= 1.3,
    before=seen.before_ns / 1e6,
    after=seen.after_ns / 1e6,
    unit="ms",
)

# %% [markdown]
# Two workers wait for two photos at once, and waiting takes no core. Decoding takes a core wherever it is done, so on a small machine workers are not free. And the model computes while they fetch.
#
# ### Your turn: the number that your report proposes
#
# Put it in, and see whether the promise is kept. It may be more than you have cores: PyTorch warns of that, and your report says why it does no harm here. (`{workers}` puts your number into the line.)

# %% tags=["measure"]
# %%gpuprofile own
# <blank> the number of workers that the report of `before` proposes
# was: workers = 2
workers = 4
# </blank>
losses_own = train(DataLoader(dataset, batch_size=16, num_workers=workers, persistent_workers=True))

# %% tags=["measure"]
# %gpucompare before own workers={workers}

# %% tags=["claim"]
own = gpulab.compare(gpulab.runs["before"], gpulab.runs["own"], rewrites=f"workers={workers}")
# <fix>
# was: foretold = 1.0
foretold = own.predicted.worst_speedup
# </fix>
L.claim(
    "the first run alone foretold at least 1.3 times the speed, and the measured gain stays within the bound it gave",
    foretold >= 1.3 and own.ratio <= 1.1 * own.predicted.bound,
    before=foretold,
    after=float(own.ratio),
    unit="times as fast",
)

# %% [markdown]
# ## What next
#
# - Put `%%gpuprofile` on a cell of your own. Its results, output and errors stay what they were.
# - `%gpureport before` shows a report again; `%gpuwhy no_workers` tells how that finding is proved, and what it is confused with; `%%gpuprofile --help` lists the options.
# - Keep a run with `gpulab.save(gpulab.runs["before"], "before.gpulab")`; show it with `gpulab.report(gpulab.runs["before"]).save("before.html")`, one file that needs neither gpulab nor a network.
# - In a script: `with gpulab.profile("before"): train()`, then `print(gpulab.report(gpulab.runs["before"]))`.
# - [01 What is utilisation?](01_what_is_utilisation.ipynb) comes next; the [index](index.ipynb) has a path for your problem.

# %% tags=["card"]
L.card()
