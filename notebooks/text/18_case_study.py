# %% [markdown]
# # 18 Case study: the path to 90 %
#
# An image search is trained on photographs of pages. Its team looked at a monitor and saw the GPU below a quarter, often at nothing. You mend it one change at a time, each chosen from the evidence of the last, and keep what each was worth. An hour. The data pipeline is real and runs on your cores; the GPU is yours, or a virtual H100 that says so.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("18_case_study")
L

# %% [markdown]
# ## The symptom
#
# The program, as it was written on the first day: photographs are JPEG files, opened, decoded, cropped, flipped and brightened one by one when the loop asks for them; the loss is fetched in every step to be printed.

# %% tags=["setup"]
import torch
from torch import nn
from torch.utils.data import DataLoader

from gpulab import datasets
from gpulab.lessons.labs.snapshots import Snapshots, changed, decoded, drawn, network

torch.manual_seed(0)
steps = L.pick(tiny=8, lab=20, full=60)
files = datasets.images(64, 256)


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
def computing(name):
    """The share of the steps in which the GPU computes or copies, by the ledger of a run."""
    return gpulab.diagnose(gpulab.runs[name]).ledger.busy_frac


before = computing("before")
L.reveal("busy", before, "%")

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("first", answer)

# %% [markdown]
# ### 18.2 The order of changes
#
# Many guides name the same four changes: data, batch, precision, waits. Does the order matter? Take precision first, because it is one line.

# %% tags=["predict"]
L.predict("precision")

# %% tags=["measure"]
# <fix>
# was: early = gpulab.whatif(gpulab.runs["before"], "workers=8").prediction.speedup
early = gpulab.whatif(gpulab.runs["before"], "amp=bf16").prediction.speedup
# </fix>
gpulab.whatif(gpulab.runs["before"], "amp=bf16")

# %% tags=["reveal"]
L.reveal("precision", early, "times as fast")

# %% tags=["claim"]
L.claim(
    "mixed precision, applied first, makes the starving loop less than a fifth faster",
    early < 1.2,
    before=1.0,
    after=early,
    unit="times as fast",
    source=gpulab.runs["before"],
)

# %% [markdown]
# So the data comes first. Two changes are at hand. Workers decode meanwhile, as far as there are cores. Or the work itself goes away: decode every photograph once, keep its bytes (19 kB each), send bytes instead of floats, and crop, flip and brighten a whole batch at once on the GPU, which has time. That is what the team of the case did, with a library for it.

# %% tags=["measure"]
# %%gpuprofile --virtual auto workers
train(DataLoader(Snapshots(files, 64 * steps), batch_size=64, num_workers=2))

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
sped = gpulab.compare(gpulab.runs["before"], gpulab.runs["decoded"])
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
# Now the GPU is what the step waits for. A larger batch gives it more to do for each launch, so that the host has time to spare. Then precision, the very change that was worth next to nothing, comes again.

# %% tags=["measure"]
# %%gpuprofile --virtual auto large
train(drawn(kept, 512, steps), change=changed)

# %% tags=["measure"]
# %%gpuprofile --virtual auto precise
# <fix>
# was: train(drawn(kept, 512, steps), change=changed)
train(drawn(kept, 512, steps), change=changed, precision=torch.bfloat16)
# </fix>

# %% tags=["claim"]
late = gpulab.compare(gpulab.runs["large"], gpulab.runs["precise"])
L.claim(
    "the same change, applied after data and batch, is worth more than a fifth",
    late.ratio > 1.2,
    before=late.before_ns / 1e6,
    after=late.after_ns / 1e6,
    unit="ms",
    source=gpulab.runs["precise"],
)

# %% [markdown]
# The report of `precise` names what is left: images are turned around inside the convolutions, because the GPU wants the channels last; and the loop fetches its loss in every step, and waits for it. Both are a line.

# %% tags=["measure"]
# %%gpuprofile --virtual auto after
# <fix>
# was: train(DataLoader(Snapshots(files, 64 * steps), batch_size=64))
train(drawn(kept, 512, steps), change=changed, precision=torch.bfloat16, fetch_every=100, layout=torch.channels_last)
# </fix>

# %% [markdown]
# What each change was worth, for the same work: microseconds for one photograph, and the share of each step in which the GPU computes or copies.

# %% tags=["measure"]
def photo_us(name):
    """Microseconds of one photograph."""
    batch = 512 if name in ("large", "precise", "after") else 64
    return gpulab.diagnose(gpulab.runs[name]).steps.step_ns / batch / 1e3


story = ("before", "workers", "decoded", "large", "precise", "after")
for name in story:
    print(f"{name:10} {photo_us(name):8.1f} us  GPU {computing(name):4.0%}   {gpulab.runs[name].source}")

# %% tags=["measure"]
gpulab.charts.ledger(*(gpulab.runs[name] for name in ("before", "workers", "decoded")))

# %% tags=["claim"]
L.claim(
    "the GPU computes for less than a quarter of a step before, and for more than three quarters after",
    before < 0.25 and computing("after") > 0.75,
    before=before,
    after=computing("after"),
    unit="%",
    source=gpulab.runs["after"],
)

# %% tags=["claim"]
whole = photo_us("before") / photo_us("after")
of_data = photo_us("before") / photo_us("decoded")
L.claim(
    "the data alone gives more than all later changes together",
    of_data > whole / of_data and whole > 5,
    before=of_data,
    after=whole / of_data,
    unit="times as fast",
    source=gpulab.runs["after"],
)

# %% [markdown]
# The larger batch by itself gave next to nothing: with the data mended the GPU was full already. It is what the change after it stands on, because a faster GPU would soon wait for the host. A list of tips cannot know that; the ledger after each change does.
#
# ### A popular change that does nothing
#
# Pinned memory is on every list. Does it help here? Each batch of bytes is pinned by hand before it is copied, and no worker does so meanwhile.

# %% tags=["measure"]
# %%gpuprofile --virtual auto pinned
train(
    ((images.pin_memory(), labels.pin_memory()) for images, labels in drawn(kept, 64, steps)),
    change=changed,
)

# %% tags=["claim"]
# <fix>
# was: pinned = gpulab.compare(gpulab.runs["before"], gpulab.runs["pinned"])
pinned = gpulab.compare(gpulab.runs["decoded"], gpulab.runs["pinned"])
# </fix>
L.claim(
    "pinning each batch by hand gains less than a tenth",
    pinned.ratio < 1.1,
    before=pinned.before_ns / 1e6,
    after=pinned.after_ns / 1e6,
    unit="ms",
    source=gpulab.runs["pinned"],
)

# %% [markdown]
# A copy of 1.2 MB takes the link less than a tenth of a millisecond; asking for pinned memory anew in every step costs more than that. Pinned memory pays where a buffer is used again, or where the loader's own thread pins while the model computes: [lesson 07](07_host_to_device.ipynb).
#
# ## Rules of thumb
#
# ### 18.3 Four rules on eight machines
#
# One guide reads utilisation and memory, and derives what to do: GPU low and CPU high, cheaper batches; CPU memory low, more workers; GPU and CPU low, better code; GPU memory low, a larger batch. Eight machines, each with one cause, and a model of a step that you can read in `gpulab.lessons.labs.readings`: a step takes as long as its slowest side. How often is the rule's change the one that helps most?

# %% tags=["predict"]
L.predict("rules")

# %% tags=["check"]
from gpulab.lessons.labs import readings

print(f"{'machine':30}{'GPU':>5}{'CPU':>5}{'RAM':>5}{'VRAM':>6}  {'the rules say':22}{'helps most':22}")
for at in readings.STATIONS:
    seen = at.readings
    shares = "".join(f"{share:5.0%}" for share in (seen.gpu, seen.cpu, seen.ram)) + f"{seen.gpu_memory:6.0%}"
    print(f"{at.name:30}{shares}  {readings.advice(seen) or 'nothing':22}{readings.best(at) or 'nothing':22}")

# %% tags=["reveal"]
L.reveal("rules")

# %% tags=["claim"]
by_rule = sum(readings.advice(at.readings) == readings.best(at) for at in readings.STATIONS)
# <fix>
# was: by_side = by_rule
by_side = sum(readings.advice_by_side(at) == readings.best(at) for at in readings.STATIONS)
# </fix>
L.claim(
    "the rules are right on at most half of the machines, and the slowest side names the best change on all of them",
    by_rule <= 4 and by_side == len(readings.STATIONS),
    before=by_rule,
    after=by_side,
    unit="of 8",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# Free memory of the host is a limit, not a sign: it says that workers would fit, not that they are missing. And a low GPU is a symptom with several causes; which side of the step is the slowest is what a ledger tells and a monitor does not.
#
# ### 18.4 A checklist with evidence
#
# A checklist is ticked from memory. This one is judged by what a run showed: *to do* names the evidence, *in order* says how many rules looked, and what could not be judged says why.

# %% tags=["measure"]
from gpulab.lessons.labs.checklist import OPEN, checklist, items

checklist(gpulab.runs["before"])

# %% tags=["measure"]
checklist(gpulab.runs["after"])

# %% tags=["claim"]
feeding = items(gpulab.runs["before"])[0], items(gpulab.runs["after"])[0]
L.claim(
    "the checklist has data to do before, with evidence, and no longer after",
    feeding[0].state == OPEN and feeding[1].state != OPEN,
    source=gpulab.runs["after"],
)

# %% [markdown]
# Try it on a script of your own: `runpy.run_path("train.py")` inside `with L.gpu("mine"):`, then `checklist(gpulab.runs["mine"])`.
#
# ## Make
#
# Go from `before` to a GPU that computes for 80 % of each step with as few changes as you can, each of them worth 5 % or more by itself when you make it. Write the arguments of `train` that you end with, and count the changes.

# %% tags=["exercise"]
# <blank> how many changes did you need?
# was: count = None
count = 3
# </blank>
L.score("changes", count)

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% tags=["card"]
L.card()
