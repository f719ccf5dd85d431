# %% [markdown]
# # 18 Case study: the path to 90 %
#
# A service finds a page of a book from a photo of it. The team that trains its model looked at a monitor, and saw that the GPU is often idle. You speed up the training one change at a time, choose each change from the evidence of the last run, and compare its predicted gain with the result. This takes 45 minutes. The data pipeline is real and runs on your cores. The GPU of the case is your own or a virtual H100, and the results say which. In 18.4 and 18.5, you check the method on recordings of a real H100.

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
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.data.page_photos import (
    Snapshots,
    augment_batch,
    decode_images,
    image_search_network,
    sample_batches,
)
from gpulab.lessons.labs.machine.monitoring import recorded_gpus
from gpulab.lessons.labs.steps import compiled_training, recorded_fixes
from gpulab.lessons.labs.steps.checklist import OPEN, checklist, checklist_items
from gpulab.lessons.labs.steps.optimisation_steps import OptimisationPath
from gpulab.lessons.labs.steps.throughput import fastest_cpu_s

torch.manual_seed(0)
steps = L.pick(tiny=14, lab=24, full=60)
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
# How much can a change gain at most? If a share *s* of each step goes to one part of the ledger, a step without this part is 1 / (1 - *s*) times as fast. This is Amdahl's law. Calculate the bound for each part: it shows which changes are not worth trying yet.

# %% tags=["measure"]
ledger = gpulab.diagnose(before).ledger
shares = {part.label: ledger.total_frac(part.key) for part in ledger.parts}
# <blank> a dict with, for each label in shares, how many times as fast a step is without this part
# was: bounds = dict.fromkeys(shares, 1.0)
bounds = {label: 1 / (1 - share) for label, share in shares.items()}
# </blank>
tables.table_view(
    ("part of a step", "share", "without it, times as fast"),
    [(label, f"{share:.1%}", f"{bounds[label]:.2f}") for label, share in shares.items() if share >= 0.001],
    below=f"{before.source}. Parts below 0.1 % are left out.",
)

# %% tags=["claim"]
others = [bound for label, bound in bounds.items() if label != "waiting for data"]
L.claim(
    "without waiting for data, a step would be more than three times as fast; without any other part, less than 1.5 "
    "times",
    bounds["waiting for data"] > 3 and max(others) < 1.5,
    before=max(others),
    after=bounds["waiting for data"],
    unit="times as fast",
    names=("without any other part, at most", "without waiting for data"),
    source=before,
)

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

# %% [markdown]
# Pinned memory is on every list of tips, too, and it was part of the fix in the very first report. A batch of `decoded` has 1.2 MB, which takes 0.2 ms at the 7 GB/s of pageable memory. Predict both changes, as the next change after `decoded`.

# %% tags=["claim"]
# <blank> the run `decoded`, with "amp=bf16" and with "pin_memory"
# was: late, pinned = early, early
late = gpulab.whatif(gpulab.runs["decoded"], "amp=bf16").prediction.speedup
pinned = gpulab.whatif(gpulab.runs["decoded"], "pin_memory").prediction.speedup
# </blank>
L.claim(
    "mixed precision is predicted to gain less than 15 % before the fix of data loading, and more than 15 % after it; "
    "pinned memory gains less than 10 % even then",
    early < 1.15 and late > 1.15 and pinned < 1.1,
    before=early,
    after=late,
    unit="times as fast",
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# Next, the report of `precise` names one of two causes. If the host is fast, it is the memory layout of the images: convolutions need the channels of a pixel next to each other (channels last), and convert every image to get that. On a slow or busy host, it is the loss, which the loop reads in every step. Before you fix them, look at the ledger of `decoded` once more, at the share of a step in which the GPU is busy, and at what lower precision alone does to it. The answer comes from replaying `decoded`, so the host takes exactly as long in both steps.

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
# Write the names into `order`, and run the next cell. It applies your changes one after the other, trains after each, and shows what the report names then. *Predicted gain* is what `gpulab.whatif` says about the run above, before the change is made; *gain* is the result. Start with `("precision", "layout")`, read what is named next, and add changes. The goal is to halve the time per photo of `decoded` with as few changes as possible; the target is four, and three may be enough. Then try an order of your own, for example with the batch first.

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
# Compare predicted and actual gain in your path first. Where they differ most, the time of the host decides: a replay knows how long the host took in the run before, and not how busy it will be in the next one. 18.4 makes the same comparison on a real GPU.
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

# %% [markdown]
# The same change has two different gains, depending on what was done before it. Each change that makes the GPU faster leaves less GPU work for the host's work to overlap with, and what was hidden becomes visible: first the reads of the loss, then the launches, then the copy. So a change can gain more in its place than as the first one. It can also gain less, if an earlier change already removed a part of the same time. The gains also depend on the host, which runs for real here: on a faster one, the larger batch gains less, and on a busy one, they change from run to run. Decoding once gained more than all later changes together.
#
# In the last row, the loop itself pins each batch. This gains little, and it may cost time, because the host first copies the batch into pinned memory. Pinning gains more if a buffer is reused, or if the DataLoader's own thread pins: see [07 Host to device](07_host_to_device.ipynb).
#
# ### 18.3 All levers, and torch.compile
#
# There are more levers than these five. Without a named change, `gpulab.whatif` predicts all that it can for a run, and says why it cannot predict the others. The run is the one with precision, layout and fetch. Which lever would you pull next?

# %% tags=["measure"]
launching = optimisation.run("precision", "layout", "fetch")
gpulab.whatif(launching)

# %% [markdown]
# Three of these levers, `torch.compile`, a CUDA graph and a larger batch, reduce the time in which launches leave the GPU idle. Prefetching and pinned memory shorten the wait for the copy. The larger batch comes free of charge if the training still converges as well ([04 Large batches](04_large_batches.ipynb)). The compiler has a price: the first call compiles, and each new set of shapes does so again. torch.compile does not run on a virtual GPU, so here is the same network on a CPU: 16 channels, 16 images of 32 x 32 pixels, compiled with inductor. At size tiny, the cell uses an earlier measurement, because compiling took 43 s; with `GPULAB_SIZE=lab` it compiles here.

# %% tags=["predict"]
L.predict("compile")

# %% tags=["claim"]
stored = compiled_training.STORED_TRAINING
timing = L.pick(tiny=lambda: stored, lab=lambda: compiled_training.time_training(image_search_network))()
print(f"first step {timing.first_step_s:.1f} s, then {timing.eager_ms:.1f} -> {timing.compiled_ms:.1f} ms per step")
# <blank> compiled_training.steps_to_break_even(first step, eager step, compiled step), from timing
# was: break_even_steps = 0
break_even_steps = compiled_training.steps_to_break_even(timing.first_step_s, timing.eager_ms, timing.compiled_ms)
# </blank>
L.claim(
    "on a CPU, compiling this network pays off only after more than 500 steps",
    break_even_steps > 500,
    before=break_even_steps,
    unit="steps",
    source="recorded on two cores of an AMD EPYC, 2026-11-28" if timing is stored else MEASURED,
)

# %% tags=["reveal"]
L.reveal("compile", break_even_steps, "steps")

# %% [markdown]
# On this CPU the compiler gains little: convolutions take most of the step, and both versions call the same library for them. What it can fuse is batch norm and ReLU. On the GPU, the table above predicts more: there, the compiler also saves launches. The next cell assumes that the first step takes as long there as it took here, which nobody measured. Compare the result with the number of steps that you will run with these shapes. For the few steps of this notebook it never pays; for a training run of many epochs it may. `torch.compile` caches compiled code on disk, so a second run of the same program starts faster. Notebook [12](12_launch_fusion_graphs.ipynb) shows a chain of elementwise operators, for which the compiler gains far more.

# %% tags=["measure"]
compiled = gpulab.whatif(launching, "compile").prediction
eager_ms, compiled_ms = compiled.step_ns / 1e6, compiled.likely_ns / 1e6
on_gpu = compiled_training.steps_to_break_even(timing.first_step_s, eager_ms, compiled_ms)
print(f"predicted: {eager_ms:.1f} -> {compiled_ms:.1f} ms per step; pays off after {on_gpu:,.0f} steps")

# %% [markdown]
# ## Check the method on a real H100
#
# ### 18.4 Predicted beside measured
#
# So far you trusted predictions. Are they good enough to choose by? Seven training loops were recorded on a real H100, each with one cause, and again with one change. `recorded_fixes.fix_results()` predicts each change from the first recording alone. The second recording shows what it really gained.

# %% tags=["predict"]
L.predict("ranges")

# %% tags=["measure"]
results = recorded_fixes.fix_results()
recorded_fixes.predicted_and_measured(results)

# %% tags=["claim"]
in_range = sum(result.in_range for result in results)
# <blank> the largest ratio of measured_ms to worst_ms over all results
# was: slowest = max(result.before_ms / result.worst_ms for result in results)
slowest = max(result.measured_ms / result.worst_ms for result in results)
# </blank>
L.claim(
    "no change is slower than its predicted range, and each measured gain is within a factor of two of its prediction",
    slowest <= 1 and all(0.5 < result.measured_ms / result.likely_ms < 2 for result in results),
    before=in_range,
    unit=f"of {len(results)} measured step times lie within the predicted range",
    source=recorded_gpus.recording("h100_01"),
)

# %% tags=["reveal"]
L.reveal("ranges", in_range, f"of {len(results)}")

# %% [markdown]
# Where a measured time is outside its range, the change was *better* than predicted. So use a prediction to decide which change to try, and not as a promise: a lever that is predicted to gain 5 % and one that is predicted to gain five times are safe to tell apart, two levers at 1.25 and 1.4 times are not. That is why you record again after each change.
#
# ### 18.5 A checklist, applied in order
#
# Most engineers do not start from a what-if but from a checklist. A good one is PyTorch's own [Performance Tuning Guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide). `open_items` returns what a recording leaves open, in the order of the guide; items that a recording cannot show, such as `cudnn.benchmark`, are left out. An engineer applies the first open item, measures, and goes on to the next. For eight recordings of an H100, the right change and its gain are known, because each has a twin with this change.

# %% tags=["predict"]
L.predict("guide")

# %% tags=["measure"]
recorded_fixes.advice_table()

# %% tags=["claim"]
FIXES = recorded_fixes.RECORDED_FIXES
right_by_report = sum(recorded_fixes.first_finding(fix) == fix.rule for fix in FIXES)
# <blank> count the FIXES for which recorded_fixes.guide_attempts(fix) is 1: the first open item is right
# was: right_by_guide = right_by_report
right_by_guide = sum(recorded_fixes.guide_attempts(fix) == 1 for fix in FIXES)
# </blank>
L.claim(
    "the first open item of the guide is the right change for at most 3 of the 8 recordings; the first finding of the "
    "report is right for all 8",
    right_by_guide <= 3 and right_by_report == len(FIXES),
    before=right_by_guide,
    after=right_by_report,
    unit="of 8",
    names=("guide", "report"),
    source=recorded_gpus.recording("h100_01"),
)

# %% tags=["reveal"]
L.reveal("guide", right_by_guide, "of 8")

# %% [markdown]
# The guide is not wrong: for six of the eight, the right change is on its list, and someone who works through the whole list finds it. But it cannot say which item matters here, so `torch.compile` comes first for five loops, whatever they wait for. Two causes are on no list: a call of `empty_cache()`, and an optimizer that updates one tensor after the other. The utilisation of `nvidia-smi` does not help either: it is high in two of the loops, and low in the other six, for six different reasons.
#
# Be fair to the guide: these recordings belong to gpulab's own tests, which demand the right first finding. That the report is right for all eight is therefore no measurement of its accuracy; the number for the guide is one.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 18.6 A checklist with evidence
#
# Most checklists are ticked from memory. This one is filled in from a recording, and its items become relevant one after the other: *nothing now* does not mean that an item is perfect, but that improving it today would gain almost nothing. The recordings are of a real H100, which trains with convolutions in bfloat16.

# %% tags=["measure"]
convolutions = recorded_gpus.recording("h100_04")
checklist(convolutions)

# %% tags=["measure"]
converted = recorded_fixes.fixed_recording("h100_04")
checklist(convolutions, converted, names=("before", "channels_last"))

# %% tags=["claim"]
# <blank> the items of both recordings: checklist_items(...)
# was: items_before, items_after = checklist_items(convolutions), checklist_items(convolutions)
items_before, items_after = checklist_items(convolutions), checklist_items(converted)
# </blank>
L.claim(
    "the layout is the only item to do before, and after channels_last there is none",
    [item.state == OPEN for item in items_before].count(True) == 1
    and items_before[7].state == OPEN
    and all(item.state != OPEN for item in items_after),
    source=convolutions,
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
