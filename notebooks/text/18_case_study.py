# %% [markdown]
# # 18 Case study: the path to 90 %
#
# A service finds a page of a book by a photograph of it. The team that trains its model looked at a monitor, and saw a GPU that is often idle. You mend the training one change at a time, each chosen from the evidence of the last, and keep what each was worth. Thirty-five minutes. The data pipeline is real and runs on your cores; the GPU is yours, or a virtual H100 that says so.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("18_case_study")
L

# %% [markdown]
# ## The symptom
#
# The program, as it was written on the first day. A step takes 64 photographs. Each is a JPEG file, which is opened, decoded, made smaller, cropped to 64 x 64 pixels, flipped and brightened when the loop asks for it; all that is in the data set `Snapshots`. The model has six convolutions. The loss is fetched in every step, to be printed.

# %% tags=["setup"]
import torch
from torch import nn
from torch.utils.data import DataLoader

from gpulab import synthetic
from gpulab.lessons.labs.machine import monitor_readings
from gpulab.lessons.labs.steps.checklist import OPEN, checklist, items
from gpulab.lessons.labs.steps.optimisation_steps import Mending, photo_us
from gpulab.lessons.labs.data.snapshots import Snapshots, changed, decoded, drawn, network

torch.manual_seed(0)
steps = L.pick(tiny=8, lab=20, full=60)
files = synthetic.images(64, 256)


# %% tags=["given"]
def train(batches, change=None, precision=None, fetch_every=1, layout=torch.contiguous_format):
    """The loop: every argument is one of the changes to come."""
    model = network().to("cuda", memory_format=layout)
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
# ### 18.1 An image search that starves
#
# `--virtual auto` takes the GPU that is here, or plays an H100 where there is none. The loader and its decoding run for real either way.

# %% tags=["measure"]
# %%gpuprofile --virtual auto before
train(DataLoader(Snapshots(files, 64 * steps), batch_size=64))


# %% tags=["reveal"]
def computing(run):
    """The share of the steps in which the GPU computes or copies, by the ledger of a run."""
    return gpulab.diagnose(run).ledger.busy_frac


before = gpulab.runs["before"]
L.reveal("busy", computing(before), "%")

# %% [markdown]
# What to change first is a question to the report above. Run the next cell to see it put, then write a letter in place of `None` and run it again.

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("first", answer)

# %% [markdown]
# ### 18.2 The order of changes
#
# Many guides name the same four changes: data, batch, precision, waits. Does the order matter? Try precision first, because it is one line. Nothing has to be run for it: `gpulab.whatif` replays the recorded run with that change.

# %% tags=["predict"]
L.predict("precision")

# %% tags=["measure"]
# <fix>
# was: early = gpulab.whatif(before, "workers=8").prediction.speedup
early = gpulab.whatif(before, "amp=bf16").prediction.speedup
# </fix>
gpulab.whatif(before, "amp=bf16")

# %% tags=["reveal"]
L.reveal("precision", early, "times as fast")

# %% tags=["claim"]
L.claim(
    "mixed precision, applied first, is predicted to make the starving loop less than 15 % faster",
    early < 1.15,
    before=early,
    unit="times as fast",
    source=before,
)

# %% [markdown]
# So the data comes first, and there are two ways. Workers decode while the GPU computes, as far as there are cores. Or the work itself goes away: decode every photograph once and keep its bytes (80 x 80 pixels in three colours, 19 kB), send bytes instead of floats, and crop, flip and brighten a whole batch at once on the GPU, which has time. The team of the case did the second, with a library for it; here `decoded` keeps the bytes, `drawn` makes batches of them, and `changed` is what the GPU does.

# %% tags=["measure"]
# %%gpuprofile --virtual auto workers
train(DataLoader(Snapshots(files, 64 * steps), batch_size=64, num_workers=2))

# %% [markdown]
# Two workers help, and the loop still waits. Read the advice on the number of workers with one question: do they wait, or compute? These compute, so each needs a core of its own. The card at the top says how many cores there are here; more workers than that share them, and give nothing.

# %% tags=["measure"]
# %%gpuprofile --virtual auto decoded
kept = decoded(files)
# <fix>
# was: train(DataLoader(Snapshots(files, 64 * steps), batch_size=64))
train(drawn(kept, 64, steps), change=changed)
# </fix>

# %% tags=["measure"]
# %gpucompare before workers decoded

# %% tags=["claim"]
sped = gpulab.compare(before, gpulab.runs["decoded"])
L.claim(
    "decoding once makes a step at least 2.5 times as fast",
    sped.ratio >= 2.5,
    before=sped.before_ns / 1e6,
    after=sped.after_ns / 1e6,
    unit="ms",
    source=gpulab.runs["decoded"],
)

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("next", answer)

# %% [markdown]
# It is the change that was worth next to nothing a moment ago.

# %% tags=["measure"]
# %%gpuprofile --virtual auto precise
train(drawn(kept, 64, steps), change=changed, precision=torch.bfloat16)

# %% tags=["claim"]
late = gpulab.whatif(gpulab.runs["decoded"], "amp=bf16").prediction.speedup
L.claim(
    "the same change, after that of the data, is predicted to make a step more than 15 % faster",
    late > 1.15,
    before=early,
    after=late,
    unit="times as fast",
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# The report of `precise` names the layout of the images next: convolutions want the colours of a pixel side by side, and turn every image around to have that. Before you mend it, look at the ledger of `decoded` once more, and at the share of a step in which the GPU is busy.

# %% tags=["predict"]
L.predict("share")

# %% tags=["reveal"]
mending = Mending(L, train, kept, steps, {(): gpulab.runs["decoded"], ("precision",): gpulab.runs["precise"]})
both = computing(mending.run("precision", "layout")) - computing(gpulab.runs["decoded"])
L.reveal("share", both, "%")

# %% [markdown]
# ## Make: the shortest way to twice as fast
#
# From here on you choose. `decoded` is where you start, and there are five changes:
#
# | name | what it does |
# |---|---|
# | `"batch"` | 512 photographs in a step in place of 64 |
# | `"fetch"` | the loss is fetched in every hundredth step |
# | `"layout"` | model and images with the channels last |
# | `"pin"` | each batch is pinned by hand before it is copied |
# | `"precision"` | autocast to bfloat16, as above |
#
# Write the names into `order`, and run the next cell: it trains with each change added to those before it, and says what the report names then. Begin with `("precision", "layout")`, read what is named after it, and add to them. The aim is a photograph in half the time it takes with `decoded`, with as few changes as you can; par is four, and three may do. Then try an order of your own, such as one with the batch first.

# %% tags=["exercise"]
# <blank> the changes in your order, such as ("precision",)
# was: order = ()
order = ("precision", "layout", "fetch", "batch")
# </blank>

# %% tags=["measure"]
mending.path(order)

# %% tags=["score"]
L.score("changes", mending.needed(order, target=2))

# %% [markdown]
# ### What each change was worth, for 18.2
#
# All five in one order, and beside it what the same change gives when it is the first one after `decoded`.

# %% tags=["measure"]
everything = ("precision", "layout", "fetch", "batch", "pin")
mending.early_and_late(everything)

# %% tags=["claim"]
# <fix>
# was: after = before
after = mending.run("precision", "layout", "fetch", "batch")
# </fix>
L.claim(
    "the GPU computes for less than a quarter of a step before, and for more than three quarters after",
    computing(before) < 0.25 and computing(after) > 0.75,
    before=computing(before),
    after=computing(after),
    unit="%",
    source=after,
)

# %% tags=["claim"]
of_data = photo_us(before) / photo_us(gpulab.runs["decoded"])
# <fix>
# was: of_rest = of_data
of_rest = mending.gain("precision", "layout", "fetch", "batch")
# </fix>
L.claim(
    "decoding once gives more than the four later changes together",
    of_data > of_rest,
    before=of_data,
    unit="times as fast by the data alone",
    source=after,
)

# %% [markdown]
# Nearly every change gives more in its place than it would have given first. With the data mended the GPU was full already, so a larger batch, or a fetch less, had little to free. Each change that makes the GPU faster leaves the host less time to hide in, and what was hidden comes up: the fetch, then the calls, then the copy. A list of tips cannot know that; the ledger after each change does. How much each gives depends on the host as well: on a faster one the batch gives less.
#
# ### A popular change, too early
#
# Pinned memory is on every list, and in the very first report the fix had it along. Right after `decoded` it has little to gain: a batch of bytes is 1.2 MB, which takes 0.2 ms at the 6 GB/s of ordinary memory.

# %% tags=["claim"]
# <fix>
# was: pinned = gpulab.whatif(before, "workers=8").prediction.speedup
pinned = gpulab.whatif(gpulab.runs["decoded"], "pin_memory").prediction.speedup
# </fix>
L.claim(
    "pinned memory, right after decoding once, is predicted to gain less than a tenth",
    pinned < 1.1,
    before=pinned,
    unit="times as fast",
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# And pinned by hand, as the table above has it, it gives even less: the host needs about as long to pin a batch as the copy took. At the end of the path the same change is what the report names first, and it gives its few percent: there the step is short, and the host has time. It pays more where a buffer is used again, or where the loader's own thread pins: [07 Host to device](07_host_to_device.ipynb).
#
# ## Rules of thumb
#
# ### 18.3 Four rules on eight machines
#
# One guide reads a monitor, and derives what to do. Its four rules, of which the first that fits is taken (low is under a half, high four fifths or more):
#
# | the monitor reads | the rule says |
# |---|---|
# | GPU low, CPU high | make batches cheaper |
# | RAM of the host low | more workers |
# | GPU low, CPU low | better code |
# | memory of the GPU low | larger batch |
#
# Here are eight machines, each with one cause, as a model: a step takes as long as its slowest side, which is the GPU, the host that launches its work, or whoever makes the batches. So it can be worked out which change helps most.

# %% tags=["predict"]
L.predict("rules")

# %% tags=["reveal"]
by_rule = sum(monitor_readings.advice(at.readings) == monitor_readings.best(at) for at in monitor_readings.STATIONS)
L.reveal("rules", by_rule, "of 8")

# %% tags=["given"]
monitor_readings.shown()

# %% tags=["claim"]
# <fix>
# was: by_side = by_rule
by_side = sum(monitor_readings.advice_by_side(at) == monitor_readings.best(at) for at in monitor_readings.STATIONS)
# </fix>
L.claim(
    "the rules are right on at most half of the machines, and the slowest side names the best change on all eight",
    by_rule <= 4 and by_side == len(monitor_readings.STATIONS),
    before=by_rule,
    after=by_side,
    unit="of 8",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# That the slowest side is right on all eight is no wonder, for the machines are made that way. What matters is that none of the four readings tells which side that is. Free memory of the host says that workers would fit, not that they are missing; a low GPU is a symptom with several causes. The ledger of a run tells.
#
# ### 18.4 A checklist with evidence
#
# A checklist is ticked from memory. This one is judged by what a run showed, and its items come up one after the other: *nothing now* does not mean that all is well with an item, but that mending it would give nothing worth a change today.

# %% tags=["measure"]
checklist(before, gpulab.runs["decoded"], after, names=("before", "decoded", "after"))

# %% tags=["measure"]
checklist(gpulab.runs["decoded"])

# %% tags=["claim"]
# <fix>
# was: first, then = items(before), items(before)
first, then = items(before), items(gpulab.runs["decoded"])
# </fix>
L.claim(
    "of the checklist, batches are to do before and no longer once decoded; precision is to do only then",
    (first[0].state, then[0].state == OPEN, first[6].state == OPEN, then[6].state) == (OPEN, False, False, OPEN),
    source=gpulab.runs["decoded"],
)

# %% [markdown]
# On a script of your own, `train.py`, it takes four lines; on a machine without a GPU the virtual one is used.
#
# ```python
# import runpy
#
# with L.gpu("mine"):
#     runpy.run_path("train.py")
# checklist(gpulab.runs["mine"])
# ```
#
# ## Transfer
#
# Another team, other counters. Run the cell to see them.

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
