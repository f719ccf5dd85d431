# %% [markdown]
# # 00 Start here: why is the GPU idle?
#
# You train a small image classifier, see that it is slow, let gpulab say why, apply the fix it names, and check its prediction against what you measure. Twenty minutes, on any laptop; with a CUDA GPU it uses that. Nothing is downloaded.

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
# A GPU works through a queue. A call puts work into it and returns; the work is done later. Any queue shows what that does to a stopwatch, so here is one on the CPU: a thread that works through what it is handed.

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
    before=too_early_ms,
    after=waited_ms,
    unit="ms",
)

# %% [markdown]
# Three habits follow, and gpulab keeps them for you: the first calls are left out, because they also load and compile; the clock stops when the device is done; and a figure comes from many steps, as their median with the spread beside it.
#
# ### 00.2 A machine that is not known
#
# How many cores may this notebook really use, which GPU is there, what can be measured and what cannot? Containers and clusters often allow fewer cores than the machine has.

# %% tags=["measure"]
# %gpuinfo

# %% tags=["measure"]
import os

cores_of_machine = os.cpu_count()
# <fix>
# was: cores_allowed = None
cores_allowed = L.machine.cores_allowed
# </fix>
print(f"{cores_of_machine} cores in the machine, {cores_allowed} allowed")

# %% tags=["claim"]
L.claim(
    "the number of cores that may be used is known, and is at most what the machine has",
    cores_allowed is not None and cores_allowed <= cores_of_machine,
)

# %% [markdown]
# ## The symptom
#
# ### 00.3 A loop that fetches its own data
#
# A folder of photographs on a file server would do; here they are made, so that nothing has to be downloaded: noisy JPEG files of ten colours. Each read waits 4 ms, as a server lets you wait. Then the photo is decoded, cropped and flipped, as in any image training.
#
# The dataset lies in a module, `gpulab.lessons.labs.photos`, and not in this notebook: DataLoader workers are processes of their own and must be able to import it.

# %% tags=["setup"]
import inspect

import torch
from torch import nn

from gpulab import datasets
from gpulab.lessons.labs.photos import Photos

if L.device == "cpu":
    torch.set_num_threads(1)  # the model takes one core, so that the others are free for loading data
dataset = Photos(datasets.images(40), length=16 * L.pick(tiny=50, lab=60, full=200))
print(inspect.getsource(Photos.__getitem__))


# %% [markdown]
# The model and the loop are ordinary PyTorch. Nothing in them knows that it will be profiled.

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
# Three things in the report are worth your time.
#
# - **The first sentence** names the cause, and the lines below it what was measured to say so.
# - **Expect** is a range, not a promise, and the *at most* behind it is a bound: no work on this cause can give more, because the rest of the step remains.
# - **The bar** splits a step without a remainder: its parts sum to the step.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("parts", answer)

# %% [markdown]
# The same answer as data, for a script or a test:

# %% tags=["check"]
parts, step = sum(diagnosis.ledger.part_ns.values()), diagnosis.ledger.step_ns
print("cause:", diagnosis.first.rule)
print("the parts sum to the step:", (parts == step).all())

# %% [markdown]
# ## Fix
#
# The loop itself reads and decodes the photos, one after the other, while the model waits. Worker processes fetch the next batches meanwhile. Two of them here, which suits a small laptop; compare with what your report proposes.

# %% tags=["predict"]
L.predict("gain")

# %% tags=["measure"]
# %%gpuprofile after
# <fix>
# was: loader = DataLoader(dataset, batch_size=16)
loader = DataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True, pin_memory=L.device == "cuda")
# </fix>
losses_after = train(loader)

# %% [markdown]
# ## Verify
#
# First: is it still the same training? Then: is it faster, and was the prediction right? `workers=2` says what was changed; without it, the fix of the first finding is taken as applied, and your report may propose more workers than two.

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

# %% tags=["claim"]
bound = seen.predicted.bound
L.claim(
    "the gain is at least a fifth and stays within the bound that was given for it",
    1.2 <= seen.ratio <= 1.1 * bound,
    before=bound,
    after=float(seen.ratio),
    unit="times as fast",
)

# %% [markdown]
# The prediction told two kinds of cost apart: *waiting* for the file server takes no core, so two workers wait for two photos at once; *decoding* costs the same CPU time in a worker, so on two cores workers are not free.
#
# ## Keep it, show it
#
# A run is a value: save it, send it, open it next year. The report is one HTML file that needs neither gpulab nor a network.

# %% tags=["check"]
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
kept = gpulab.save(gpulab.runs["before"], folder / "before.gpulab")
page = gpulab.report(gpulab.load(kept)).save(folder / "before.html")
print(kept.name, page.name)

# %% [markdown]
# ## What next
#
# - Put `%%gpuprofile` on a cell of your own. Nothing else has to change: results, output and errors of the cell stay what they were.
# - `%%gpuprofile --help` lists the options; `%gpureport before` shows a report again; `%gpuwhy starving` tells how that finding is proved, and what it is confused with.
# - In a script: `with gpulab.profile("before"): train()`, then `print(gpulab.report(gpulab.runs["before"]))`.
# - [01 What is utilisation?](01_what_is_utilisation.ipynb) comes next; the [index](index.ipynb) has a path for your problem.

# %% tags=["card"]
L.card()
