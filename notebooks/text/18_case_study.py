# %% [markdown]
# # 18 Case study: the path to 90 %
#
# A service finds a page of a book from a photo of it. The team that trains its model looked at a monitor, and saw that the GPU is often idle. You speed up the training one change at a time, choose each change from the evidence of the last run, and record its gain. This takes 35 minutes. The data pipeline is real and runs on your cores; the GPU is your own or a virtual H100, and the results say which.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("18_case_study")
L

# %% [markdown]
# ## The symptom
#
# Here is the program in its first version. A step uses 64 photos. Each is a JPEG file, which is opened, decoded, downsized, cropped to 64 x 64 pixels, flipped and brightened when the loop asks for it; the dataset `Snapshots` does all of this. The model has six convolutions. The loop reads the loss in every step to print it.

# %% tags=["setup"]
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader

from gpulab import synthetic
from gpulab.lessons import MEASURED
from gpulab.lessons.labs.data.page_photos import (
    Snapshots,
    augment_batch,
    decode_images,
    image_search_network,
    sample_batches,
)
from gpulab.lessons.labs.machine import monitor_readings
from gpulab.lessons.labs.steps.checklist import OPEN, checklist, checklist_items
from gpulab.lessons.labs.steps.optimisation_steps import OptimisationPath, photo_us
from gpulab.lessons.labs.steps.throughput import fastest_cpu_s

torch.manual_seed(0)
steps = L.pick(tiny=20, lab=24, full=60)
files = synthetic.images(64, 256)


# %% tags=["given"]
def train(batches, change=None, precision=None, fetch_every=1, layout=torch.contiguous_format):
    """Train; each argument is one of the changes that you will make."""
    model = image_search_network().to("cuda", memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (images, labels) in enumerate(batches):
        images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
        if change is not None:
            images = change(images)
        images = images.contiguous(memory_format=layout)
        with torch.autocast("cuda", precision or torch.bfloat16, enabled=precision is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % fetch_every == 0:
            loss.item()


# %% tags=["predict"]
L.predict("busy")

# %% [markdown]
# ## Measure
#
# ### 18.1 An image search that waits for data
#
# `--virtual auto` uses your GPU, or a virtual H100 if there is none. The DataLoader and the decoding run for real in both cases.

# %% tags=["measure"]
# %%gpuprofile --virtual auto before
train(DataLoader(Snapshots(files, 64 * steps), batch_size=64))


# %% tags=["reveal"]
def gpu_busy_share(run):
    """Return the share of the steps in which the GPU computes or copies, from the ledger of a run."""
    return gpulab.diagnose(run).ledger.busy_frac


before = gpulab.runs["before"]
L.reveal("busy", gpu_busy_share(before), "%")

# %% [markdown]
# Use the report above to decide what to change first. Run the next cell to see the question, replace `None` with a letter, and run it again.

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("first", answer)

# %% [markdown]
# ### 18.2 The order of changes
#
# Many guides name the same four changes: data loading, batch size, precision, synchronisation. Does the order matter? Try precision first, because it is one line. You need not even run it: `gpulab.whatif` replays the recorded run with this change.

# %% tags=["predict"]
L.predict("precision")

# %% tags=["measure"]
# <blank> predict precision first: the change is amp=bf16
# was: early = gpulab.whatif(before, "workers=8").prediction.speedup
early = gpulab.whatif(before, "amp=bf16").prediction.speedup
# </blank>
gpulab.whatif(before, "amp=bf16")

# %% tags=["reveal"]
L.reveal("precision", early, "times as fast")

# %% tags=["claim"]
L.claim(
    "applied first, to the loop that waits for data, mixed precision is predicted to gain less than 15 %",
    early < 1.15,
    before=early,
    unit="times as fast",
    source=before,
)

# %% [markdown]
# So data loading comes first, and there are two ways to improve it. Workers can decode while the GPU computes, as long as there are enough cores. Or you can avoid the work: decode every photo once and keep the pixels (80 x 80 pixels in three colours, 19 kB), send these bytes to the GPU instead of floats, and crop, flip and brighten a whole batch at once on the GPU, which has time for it. The team in this case did the second, with a library. Here `decode_images` stores the pixels, `sample_batches` makes batches of them, and `augment_batch` augments a batch on the GPU.

# %% tags=["measure"]
# %%gpuprofile --virtual auto workers
train(DataLoader(Snapshots(files, 64 * steps), batch_size=64, num_workers=2))

# %% [markdown]
# On a machine with two cores, two workers help little or not at all; with more cores they help more, but the loop still waits. When you read the recommended number of workers, ask whether the workers wait or compute. These compute, so each of them needs a core of its own. The table at the top shows how many cores you have; more workers than cores have to share them and gain nothing.

# %% tags=["measure"]
# %%gpuprofile --virtual auto decoded
pixels = decode_images(files)
# <blank> batches of the decoded pixels, partial(sample_batches, pixels, 64), augmented on the GPU by augment_batch
# was: make_batches, change = lambda count: DataLoader(Snapshots(files, 64 * count), batch_size=64), None
make_batches, change = partial(sample_batches, pixels, 64), augment_batch
# </blank>
train(make_batches(steps), change=change)

# %% tags=["measure"]
# %gpucompare before workers decoded

# %% tags=["claim"]
decoding_ms = 1e3 * fastest_cpu_s(lambda: next(iter(DataLoader(Snapshots(files, 64), batch_size=64))), 3)
decoded_ms = 1e3 * fastest_cpu_s(lambda: next(iter(make_batches(1))), 3)
L.claim(
    "with photos decoded only once, a batch takes the CPU less than a fifth of the time",
    decoded_ms < decoding_ms / 5,
    before=decoding_ms,
    after=decoded_ms,
    unit="ms of CPU time",
    source=MEASURED,
)

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("next", answer)

# %% [markdown]
# This is the change that would have gained almost nothing before.

# %% tags=["measure"]
# %%gpuprofile --virtual auto precise
train(sample_batches(pixels, 64, steps), change=augment_batch, precision=torch.bfloat16)

# %% tags=["claim"]
late = gpulab.whatif(gpulab.runs["decoded"], "amp=bf16").prediction.speedup
L.claim(
    "after the fix of data loading, the same change is predicted to gain more than 15 %",
    late > 1.15,
    before=early,
    after=late,
    unit="times as fast",
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# Next, the report of `precise` names the memory layout of the images: convolutions need the channels of a pixel next to each other (channels last), and convert every image to get that. Before you fix it, look at the ledger of `decoded` once more, at the share of a step in which the GPU is busy, and at what lower precision alone does to it. The answer comes from replaying `decoded`, so the host takes exactly as long in both steps.

# %% tags=["predict"]
L.predict("share")

# %% tags=["reveal"]
optimisation = OptimisationPath(
    L, train, pixels, steps, {(): gpulab.runs["decoded"], ("precision",): gpulab.runs["precise"]}
)
lower_precision = gpulab.whatif(gpulab.runs["decoded"], "amp=bf16").prediction
L.reveal("share", lower_precision.busy_frac - lower_precision.model.busy_frac, "%")

# %% [markdown]
# ## Exercise: twice as fast with the fewest changes
#
# From here on, you choose. You start from `decoded`, and there are five changes:
#
# | name | change |
# |---|---|
# | `"batch"` | batches of 512 photos instead of 64 |
# | `"fetch"` | the loss is read every hundred steps |
# | `"layout"` | model and images in channels-last layout |
# | `"pin"` | the loop pins each batch before it copies it |
# | `"precision"` | autocast to bfloat16, as above |
#
# Write the names into `order`, and run the next cell. It applies your changes one after the other, trains after each, and shows what the report names then. Start with `("precision", "layout")`, read what is named next, and add changes. The goal is to halve the time per photo of `decoded` with as few changes as possible; the target is four, and three may be enough. Then try an order of your own, for example with the batch first.

# %% tags=["exercise"]
# <blank> the changes in your order, for example ("precision",)
# was: order = ()
order = ("precision", "layout", "fetch", "batch")
# </blank>

# %% tags=["measure"]
optimisation.path_view(order)

# %% tags=["score"]
L.score("changes", optimisation.changes_needed(order, target=2))

# %% [markdown]
# ### 18.2 continued: the gain of each change
#
# The table shows all five changes in one order, and next to each of them the gain that it has as the first change after `decoded`.

# %% tags=["measure"]
all_changes = ("precision", "layout", "fetch", "batch", "pin")
optimisation.order_view(all_changes)

# %% tags=["claim"]
# <blank> run with the other four changes: optimisation.run("precision", ...)
# was: after = before
after = optimisation.run("precision", "layout", "fetch", "batch")
# </blank>
L.claim(
    "the GPU is busy for less than a quarter of a step before the changes, and for more than three quarters after them",
    gpu_busy_share(before) < 0.25 and gpu_busy_share(after) > 0.75,
    before=gpu_busy_share(before),
    after=gpu_busy_share(after),
    unit="%",
    source=after,
)

# %% tags=["claim"]
loading_gain = photo_us(before) / photo_us(gpulab.runs["decoded"])
# <blank> the gain of these four changes: optimisation.gain("precision", ...)
# was: other_gain = loading_gain
other_gain = optimisation.gain("precision", "layout", "fetch", "batch")
# </blank>
L.claim(
    "decoding once gains more than the four later changes together",
    loading_gain > other_gain,
    before=loading_gain,
    unit="times as fast by data loading alone",
    source=after,
)

# %% [markdown]
# Most of the later changes gain more in their place than they would have gained first (when this lesson was written: the layout, the larger batch and pinning, but not the reads of the loss). After the fix of data loading, the GPU was busy for most of a step, so changes on the side of the host could save less. Each change that makes the GPU faster leaves less GPU work for the host's work to overlap with, and what was hidden becomes visible: first the reads of the loss, then the launches, then the copy. A list of tips cannot know that; the ledger after each change does. The gain of each change also depends on the host: on a faster one, the larger batch gains less.
#
# ### A popular change, made too early
#
# Pinned memory is on every list of tips, and it was part of the fix in the very first report. Directly after `decoded`, it can gain little: a batch has 1.2 MB, which takes 0.2 ms at the 7 GB/s of pageable memory.

# %% tags=["claim"]
# <blank> the change pin_memory, on the run `decoded`
# was: pinned = gpulab.whatif(before, "workers=8").prediction.speedup
pinned = gpulab.whatif(gpulab.runs["decoded"], "pin_memory").prediction.speedup
# </blank>
L.claim(
    "directly after decoding once, pinned memory is predicted to gain less than 10 %",
    pinned < 1.1,
    before=pinned,
    unit="times as fast",
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# If the loop itself pins each batch, as in the table above, there is no gain as the first change, and it may cost time: pinning takes the host at least as long as the copy took. At the end of the path, the report names this same change first, and it gains a few percent: by then the step is short, and the host has time. Pinning gains more if a buffer is reused, or if the DataLoader's own thread pins: see [07 Host to device](07_host_to_device.ipynb).

# %% [markdown]
# ## Rules of thumb
#
# ### 18.3 Four rules on eight machines
#
# One guide derives recommendations from a monitor. It has four rules, and the first one that matches is used (low means under a half, high means four fifths or more):
#
# | the monitor shows | the rule recommends |
# |---|---|
# | GPU low, CPU high | make batches cheaper |
# | RAM of the host low | more workers |
# | GPU low, CPU low | better code |
# | memory of the GPU low | larger batch |
#
# The next cells model eight machines, each with one cause. In this model, a step takes as long as the slowest part of the pipeline: the GPU, the host that launches its work, or the processes that load the batches. So the most effective change can be calculated.

# %% tags=["predict"]
L.predict("rules")

# %% tags=["reveal"]
machines = monitor_readings.MACHINE_MODELS
right_by_rule = sum(
    monitor_readings.rule_of_thumb(machine.readings) == monitor_readings.best_change(machine) for machine in machines
)
L.reveal("rules", right_by_rule, "of 8")

# %% tags=["given"]
monitor_readings.machines_view()

# %% tags=["claim"]
# <blank> count for how many machines monitor_readings.advice_by_bottleneck gives the best change
# was: right_by_slowest = right_by_rule
right_by_slowest = sum(
    monitor_readings.advice_by_bottleneck(machine) == monitor_readings.best_change(machine) for machine in machines
)
# </blank>
L.claim(
    "the rules are right on at most half of the machines; the slowest part of the pipeline names the best change on "
    "all 8",
    right_by_rule <= 4 and right_by_slowest == len(machines),
    before=right_by_rule,
    after=right_by_slowest,
    unit="of 8",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# Is the order of the rules to blame? No: in the best of its 24 orders, the first rule that matches is right on three machines. If you look at all rules that match, the best change is among them on five machines, but next to one or two others. It is no surprise that the slowest part is right on all eight, because the model is built that way. The point is that none of the four numbers shows which part is the slowest. Free host memory says that more workers would fit, not that they are needed; low GPU utilisation is a symptom with several causes. The ledger of a run shows the cause.
#
# ### 18.4 A checklist with evidence
#
# Most checklists are ticked from memory. This one is filled in from recorded runs, and its items become relevant one after the other: *nothing now* does not mean that an item is perfect, but that improving it today would gain almost nothing.

# %% tags=["measure"]
checklist(before, gpulab.runs["decoded"], after, names=("before", "decoded", "after"))

# %% tags=["measure"]
checklist(gpulab.runs["decoded"])

# %% tags=["claim"]
# <blank> the items of the run `decoded`
# was: items_before, items_decoded = checklist_items(before), checklist_items(before)
items_before, items_decoded = checklist_items(before), checklist_items(gpulab.runs["decoded"])
# </blank>
L.claim(
    "in the checklist, data loading is to do before, but no longer once photos are decoded; precision then is",
    (items_before[0].state, items_decoded[0].state == OPEN, items_decoded[6].state) == (OPEN, False, OPEN),
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# For a script of your own, `train.py`, it takes four lines; on a machine without a GPU, the virtual one is used.
#
# ```python
# import runpy
#
# with L.gpu("mine"):
#     runpy.run_path("train.py")
# checklist(gpulab.runs["mine"])
# ```

# %% [markdown]
# ## Transfer
#
# Here are the counters of another team. Run the cell to see them.

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
