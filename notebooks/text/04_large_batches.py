# %% [markdown]
# # 04 Large batches and quality: when is training faster, and when only samples per second?
#
# Notebook [03](03_parallel_work_and_batch.ipynb) asked how much work a GPU needs at once, and found that a larger batch raises the samples per second up to a knee. This one asks what a larger batch does to the model. You train with small and large batches, and let the accuracy decide which of these statements are right: "scale the learning rate", "warm up", "use LARS", "large batches generalise worse", "a larger batch fixes an idle GPU".
#
# It takes 45 minutes and needs no GPU. All models train for real, on small images, in seconds. Seeds are fixed, and most results are means of several runs with different seeds.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("04_large_batches")
L

# %% tags=["setup"]
from functools import partial
from statistics import mean, median

import torch
from torch.nn import functional

from gpulab.lessons import COUNTED, MEASURED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.kernels import gradient_noise
from gpulab.lessons.labs.steps import batch_gradients, large_batches, throughput, weight_noise
from gpulab.views.charts.drawing import plots

torch.set_num_threads(1)
SEEDS = range(L.pick(tiny=3, lab=5))

# %% [markdown]
# ## The symptom
#
# A team trains a small classifier with batch 32, on a GPU that is idle most of the time. Somebody sets the batch to 1,024. Samples per second rise, and an epoch takes a fraction of the time. A week later, somebody else notices that the model has become worse.
#
# Here is the loop. The data are 8,192 noisy images of ten patterns, and 4,096 others to test with. `train` yields the loss of each update, so a caller can stop when it likes. `factor` changes the learning rate during training; for now it is 1. (The test images also serve to choose learning rates here. A real project needs a third set for that.)

# %% tags=["given"]
data = large_batches.pattern_images()
ROWS, EPOCHS, RATE = len(data.inputs), 8, 0.05
SMALL, LARGE = 32, 1024  # the two batch sizes that are compared


def train(model, optimizer, batch, epochs=EPOCHS, seed=0, factor=lambda update: 1.0):
    """Train, and yield the loss of each update. `factor(update)` multiplies the learning rate."""
    rate = optimizer.param_groups[0]["lr"]
    for update, rows in enumerate(large_batches.shuffled_batches(ROWS, batch, epochs, seed)):
        optimizer.param_groups[0]["lr"] = rate * factor(update)
        loss = functional.cross_entropy(model(data.inputs[rows]), data.labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def accuracy(model):
    """Return the share of test images that are classified correctly."""
    return large_batches.correct_frac(model, data.test_inputs, data.test_labels)


def trained(batch, rate, seed=0, optimizer=torch.optim.SGD, normalize=False, **options):
    """Train a new model; return it and the losses of its updates."""
    model = large_batches.pattern_classifier(seed, normalize)
    return model, list(train(model, optimizer(model.parameters(), lr=rate), batch, seed=seed, **options))


def mean_accuracy(*settings, **options):
    """Return the mean accuracy of one run for each seed."""
    return mean(accuracy(trained(*settings, seed=seed, **options)[0]) for seed in SEEDS)


# %% [markdown]
# ## What a larger batch changes
#
# ### 04.1 The same epochs, or the same updates
#
# Repeat what the team did: batch 1,024 instead of 32, at the same learning rate, for the same eight epochs.

# %% tags=["predict"]
L.predict("accuracy")

# %% tags=["measure"]
# <blank> a tuple: the batch size LARGE, and the same learning rate
# was: large_settings = (SMALL, RATE)
large_settings = (LARGE, RATE)
# </blank>
small_accuracy = mean_accuracy(SMALL, RATE)
large_accuracy = mean_accuracy(*large_settings)
rates = {batch: batch / large_batches.update_cpu_s(data, batch) for batch in (SMALL, large_settings[0])}
tables.table_view(
    ("batch", "samples/s", "updates", "accuracy"),
    [
        (f"{batch:,}", f"{rates[batch]:,.0f}", f"{EPOCHS * ROWS // batch:,}", f"{result:.1%}")
        for batch, result in ((SMALL, small_accuracy), (large_settings[0], large_accuracy))
    ],
    below="Measured on this CPU; the accuracy is the mean of all seeds.",
)

# %% tags=["claim"]
display(L.reveal("accuracy", small_accuracy - large_accuracy, "%"))
L.claim(
    "a batch of 1,024 processes at least twice as many samples per second as one of 32, and after the same epochs at "
    "the same learning rate the accuracy is at least 15 points lower",
    tuple(large_settings) == (LARGE, RATE)
    and rates[large_settings[0]] >= 2 * rates[SMALL]
    and small_accuracy - large_accuracy >= 0.15,
    before=small_accuracy,
    after=large_accuracy,
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# Look at the column *updates*. The large batch had 64 chances to change the weights, the small one 2,048. If this is the cause, the large batch must reach the accuracy of the small one after the same number of updates. (Hoffer, Hubara and Soudry, 2017: "Train longer, generalize better".)

# %% tags=["measure"]
updates = EPOCHS * ROWS // SMALL
# <blank> the number of epochs in which batch LARGE makes `updates` updates (an integer; an epoch has ROWS samples)
# was: more_epochs = EPOCHS
more_epochs = updates * LARGE // ROWS
# </blank>
equal_runs = [trained(LARGE, RATE, seed, epochs=more_epochs) for seed in range(L.pick(tiny=1, lab=3))]
equal_accuracy = mean(accuracy(model) for model, _ in equal_runs)
equal_updates = len(equal_runs[0][1])
plots.bar_plot(
    f"Batch 1,024 after {equal_updates:,} updates: {equal_accuracy:.0%}",
    {
        f"batch 32, {EPOCHS} epochs": 100 * small_accuracy,
        f"batch 1,024, {EPOCHS} epochs": 100 * large_accuracy,
        f"batch 1,024, {more_epochs} epochs": 100 * equal_accuracy,
    },
    x="test accuracy, %",
    source=MEASURED,
)

# %% tags=["claim"]
L.claim(
    "with the same number of updates, the accuracy of batch 1,024 is within 2 points of batch 32; it takes 32 times as "
    "many samples",
    equal_updates == updates and more_epochs == 32 * EPOCHS and abs(equal_accuracy - small_accuracy) <= 0.02,
    before=large_accuracy,
    after=equal_accuracy,
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# At this low learning rate, 32 times as many samples gained nothing. The gradients of both batch sizes have the same mean, the gradient of the whole data; the larger batch only has less noise around it. So nothing is wrong with the large batch as such, but it needs longer updates.
#
# ### 04.2 Longer updates: the linear rule, warm-up, LARS
#
# Goyal and others (2017) trained ImageNet with batches of 8,192 in an hour. Their *linear rule*: if the batch is k times as large, make the learning rate k times as large. Their second rule: begin with a lower rate and raise it over the first updates, the *warm-up*.

# %% tags=["predict"]
L.predict("linear")

# %% tags=["measure"]
WARM_UP = 24  # updates, of 64
# <blank> the linear rule: scale RATE, which is for batch SMALL, to batch LARGE
# was: linear_rate = RATE
linear_rate = RATE * LARGE / SMALL
# </blank>


def warm_up(update):
    """Return the factor of the learning rate for this update, which is counted from 0."""
    # <blank> from 1 / WARM_UP in equal steps to 1, and then 1
    # was: return 1.0
    return min(1.0, (update + 1) / WARM_UP)
    # </blank>


at_once = [trained(LARGE, linear_rate, seed) for seed in SEEDS]
warmed = [trained(LARGE, linear_rate, seed, factor=warm_up) for seed in SEEDS]
peak_at_once = [max(losses) / losses[0] for _, losses in at_once]
peak_warmed = [max(losses) / losses[0] for _, losses in warmed]
once_accuracy, warmed_accuracy = (mean(accuracy(model) for model, _ in runs) for runs in (at_once, warmed))
print(
    f"accuracy: batch 32 {small_accuracy:.1%}, linear rule at once {once_accuracy:.1%}, warm-up {warmed_accuracy:.1%}"
)
normalized = mean_accuracy(LARGE, linear_rate, normalize=True)
print(f"the linear rule at once, in a network with BatchNorm: {normalized:.1%}")
plots.line_plot(
    f"The loss rises {peak_at_once[0]:.0f}-fold at once, {peak_warmed[0]:.1f}-fold with warm-up",
    {
        "linear rule at once": dict(list(enumerate(at_once[0][1], 1))[:32]),
        "linear rule with warm-up": dict(list(enumerate(warmed[0][1], 1))[:32]),
    },
    x="update",
    y="training loss",
    source=MEASURED,
    log_y=True,
)

# %% tags=["claim"]
display(L.reveal("linear", min(peak_at_once), "times the first loss"))
L.claim(
    "with the linear rule at once, the loss rises to more than 5 times its first value in every run; with warm-up it "
    "does not, and the accuracy is within 3 points of batch 32",
    min(peak_at_once) > 5
    and max(peak_warmed) < 5
    and once_accuracy < warmed_accuracy - 0.1
    and warmed_accuracy > small_accuracy - 0.03,
    before=once_accuracy,
    after=warmed_accuracy,
    unit="%",
    source=MEASURED,
)


# %% [markdown]
# Warm-up helps if the loss is strongly curved at the *start* of training. Our network is built that way: the weights of its hidden layers start 1.7 times as large as with He initialization. With He initialization, the same rate works without warm-up (92 % in our runs), and so it does with BatchNorm, as the output above shows. The linear rule also has a limit: with 0.1 instead of 0.05 at batch 32, it fails in spite of the warm-up (16 % in our runs). Above some batch size, no learning rate makes the same progress with fewer updates; 04.4 looks for this size.
#
# You, Gitman and Ginsburg (2017) found that the norm of the weights divided by the norm of their gradient differs widely between layers, so that no single rate suits all of them. Their LARS (*layer-wise adaptive rate scaling*) multiplies the gradient of each layer by this *trust ratio*, so that (without momentum) an update changes each layer by the same share of its norm. Write this ratio. Biases, which are vectors, keep a ratio of 1. (The paper also multiplies by a trust coefficient, which is part of the learning rate here, and adds weight decay.)

# %% tags=["measure"]
class Lars(torch.optim.Optimizer):
    """SGD with momentum and a trust ratio for each weight matrix."""

    def __init__(self, parameters, lr, momentum=0.9):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                # <blank> the norm of the weight / the norm of its gradient, if weight.dim() > 1
                # was: ratio = 1.0
                ratio = weight.norm() / weight.grad.norm() if weight.dim() > 1 else 1.0
                # </blank>
                velocity = self.state[weight].setdefault("velocity", torch.zeros_like(weight))
                velocity.mul_(group["momentum"]).add_(weight.grad * ratio, alpha=group["lr"])
                weight.sub_(velocity)


lars_accuracy = mean_accuracy(LARGE, 0.01, optimizer=Lars)
print(f"after 64 updates with batch 1,024: SGD {large_accuracy:.1%}, linear rule with warm-up {warmed_accuracy:.1%}")
print(f"LARS {lars_accuracy:.1%}; batch 32 {small_accuracy:.1%}")

# %% tags=["claim"]
L.claim(
    "LARS, without warm-up, recovers at least 90 % of the accuracy that batch 1,024 lost",
    lars_accuracy - large_accuracy >= 0.9 * (small_accuracy - large_accuracy) > 0.1,
    before=large_accuracy,
    after=lars_accuracy,
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# LARS at batch 1,024 is even more accurate than SGD at batch 32. This is not due to the large batch: at batch 32, with a rate of 0.001, LARS reaches the same accuracy (93 to 94 % in our runs). It suits this network better than plain SGD at both batch sizes. Nado and others (2021, "A Large Batch Optimizer Reality Check") found that, if well tuned, Nesterov momentum keeps up with LARS on ImageNet, and Adam with LAMB, its relative, on BERT. Compare optimizers only if all of them are tuned.
#
# ### 04.3 Sharp minima, and the noise of gradients
#
# Keskar and others (2017) found that large batches end in *sharp* minima, and linked this to worse generalisation. Test both parts. Stop all runs at a training loss of about 0.2, so that none is simply trained less. Then add noise to the weights: how much does the loss rise? So that layers of different size are treated alike, the norm of the noise is a fixed share of the norm of each weight tensor.

# %% tags=["predict"]
L.predict("sharp")


# %% tags=["measure"]
def make_noise(weight, share, generator):
    """Return random noise in the shape of `weight`."""
    noise = torch.randn(weight.shape, generator=generator)
    # <blank> scale the noise: its norm shall be `share` times the norm of the weight
    # was: return torch.zeros_like(noise)
    return noise * (share * weight.norm() / noise.norm())
    # </blank>


def train_to_loss(batch, rate, seed, check_every=32, factor=lambda update: 1.0):
    """Train until the loss on all training images is 0.2; check it every few updates."""
    model = large_batches.pattern_classifier(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for update, _ in enumerate(train(model, optimizer, batch, 400, seed, factor), 1):
        if update % check_every == 0 and large_batches.mean_loss(model, data.inputs, data.labels) <= 0.2:
            break
    return model


stopped = {
    "batch 32": [train_to_loss(SMALL, RATE, seed) for seed in SEEDS],
    "batch 1,024": [train_to_loss(LARGE, RATE, seed) for seed in SEEDS],
    "batch 1,024, linear rule": [train_to_loss(LARGE, 32 * RATE, seed, 1, large_batches.ramp(24)) for seed in SEEDS],
}
probe = (data.inputs[:2048], data.labels[:2048])
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
noisy = {
    name: {share: [weight_noise.noisy_loss(model, probe, make_noise, share) for model in models] for share in SHARES}
    for name, models in stopped.items()
}
rises = {
    name: [after - before for before, after in zip(by_share[0.0], by_share[0.4], strict=True)]
    for name, by_share in noisy.items()
}
stopped_accuracy = {name: mean(map(accuracy, models)) for name, models in stopped.items()}
weight = stopped["batch 32"][0][0].weight.detach()  # of the first layer
noise_share = float(make_noise(weight, 0.4, torch.Generator().manual_seed(0)).norm() / weight.norm())
print(f"the noise of 40 % has {noise_share:.0%} of the norm of the weight (in the first layer)")
for name, result in stopped_accuracy.items():
    print(f"{name:25} test accuracy {result:.1%}")
plots.line_plot(
    f"Noise of 40 % adds {mean(rises['batch 32']):.2f} at batch 32, {mean(rises['batch 1,024']):.2f} at batch 1,024",
    {name: {100 * share: mean(losses) for share, losses in by_share.items()} for name, by_share in noisy.items()},
    x="noise, % of the norm of each weight",
    y="training loss",
    source=MEASURED,
)

# %% tags=["claim"]
display(L.reveal("sharp", abs(stopped_accuracy["batch 1,024"] - stopped_accuracy["batch 32"]), "%"))
L.claim(
    "at the same rate and training loss, weight noise raises the loss of batch 1,024 more than that of batch 32, in "
    "every run; at the linear rate, less; the test accuracies are within 2 points",
    all(large > 1.1 * small for small, large in zip(rises["batch 32"], rises["batch 1,024"], strict=True))
    and mean(rises["batch 1,024, linear rule"]) < mean(rises["batch 32"])
    and abs(stopped_accuracy["batch 1,024"] - stopped_accuracy["batch 32"]) < 0.02
    and abs(noise_share - 0.4) < 0.01,
    before=mean(rises["batch 32"]),
    after=mean(rises["batch 1,024"]),
    unit="(rise of the loss)",
    names=("batch 32", "batch 1,024"),
    source=MEASURED,
)

# %% [markdown]
# Be careful with the sentence "large batches find sharp minima". Here it is true at the *same* learning rate, and false at the linear rate. Jastrzębski and others (2017) explain such results by the ratio of learning rate to batch size, which the linear rule keeps. And on this data the sharper model is not less accurate. Weight noise is one measure of sharpness among several, and they can disagree (Dinh and others, 2017: "Sharp minima can generalize"). The accuracy lost in 04.1 was lost because the model made too few updates.
#
# Now the gradients. The gradient of a batch is the true gradient plus noise, and a larger batch averages the noise away. McCandlish and others (2018) ask: from which batch size on is it mostly signal? Their *gradient noise scale* is the variance of the gradients of single samples (summed over all weights), divided by the squared norm of the true gradient: B_simple = tr(Σ) / |G|².
#
# You need no gradients of single samples to estimate it. The squared norm of a gradient of b samples is |G|² + tr(Σ) / b on average. Two batch sizes give two equations. Solve them. (A data-parallel job has both sizes anyway: the gradient of one rank, and the mean of all.)

# %% tags=["predict"]
L.predict("noise")


# %% tags=["measure"]
def estimate(norms):
    """Return tr(Σ) and |G|², from the squared norms of the gradients of small batches and of a large one."""
    # <blank> solve norms.small = signal + variance / norms.small_batch, and the same for norms.large
    # was: variance, signal = norms.small, norms.large
    variance = (norms.small - norms.large) / (1 / norms.small_batch - 1 / norms.large_batch)
    signal = norms.large - variance / norms.large_batch
    # </blank>
    return variance, signal


model = large_batches.pattern_classifier(0)
estimated, exact = {}, {}
for update, _ in enumerate(train(model, torch.optim.SGD(model.parameters(), lr=RATE), SMALL), 1):
    if update in (1, 32, 256, 2048):
        norms = batch_gradients.squared_norms(batch_gradients.gradients_by_batch(model, *probe, 32), 32)
        variance, signal = estimate(norms)
        estimated[update] = variance / signal
        exact[update] = gradient_noise.noise_scale(gradient_noise.per_sample_gradients(model, *probe))
tables.table_view(
    ("update", "noise scale from batches of 32 and 2,048", "from single samples"),
    [(f"{update:,}", f"{estimated[update]:,.0f}", f"{exact[update]:,.0f}") for update in exact],
    left=0,
    below="In samples, for the first run with batch 32.",
)

# %% tags=["claim"]
display(L.reveal("noise", exact[2048] / exact[1], "times"))
L.claim(
    "the noise scale from two batch sizes is within 25 % of that from single samples at four points of a training run, "
    "and grows more than tenfold",
    all(abs(estimated[update] / exact[update] - 1) < 0.25 for update in exact) and estimated[2048] > 10 * estimated[1],
    before=estimated[1],
    after=estimated[2048],
    unit="samples",
    names=("first update", "last update"),
    source=MEASURED,
)

# %% [markdown]
# So a batch that is useful late in training is wasteful at the start, which is why some runs begin with a smaller one (as in [03.6](03_parallel_work_and_batch.ipynb)). The noise scale predicts the useful batch size only roughly, but in a data-parallel job it costs almost nothing to log. One update has a single large gradient, and its norm is noisy: average both estimates over many updates, and then divide.

# %% [markdown]
# ## Which batch size is the fastest?
#
# ### 04.4 Samples per second, or time to accuracy
#
# Train five batch sizes until 88 % of the test images are right, and count the updates. Each batch size needs its own learning rate: 0.4 at batch 32, otherwise in proportion to the batch size, but at most 0.8. (At 1.6, this network needed a warm-up in 04.2.)

# %% tags=["predict"]
L.predict("fastest")


# %% tags=["measure"]
def rate_for(batch):
    """Return the learning rate for this batch size."""
    # <blank> 0.4 at batch 32, in proportion to the batch, at most 0.8
    # was: return RATE
    return min(0.4 * batch / 32, 0.8)
    # </blank>


def updates_to_target(batch, seed):
    """Return the number of updates until the test accuracy is 88 %, checked every 512 samples; at most 40 epochs."""
    model = large_batches.pattern_classifier(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate_for(batch))
    for update, _ in enumerate(train(model, optimizer, batch, 40, seed), 1):
        if update % max(1, 512 // batch) == 0 and accuracy(model) >= 0.88:
            break
    return update


BATCHES = (8, 32, 128, 512, 2048)
needed = {batch: median(updates_to_target(batch, seed) for seed in SEEDS) for batch in BATCHES}
samples = {batch: batch * count for batch, count in needed.items()}
plots.line_plot(
    f"Critical batch size: {batch_gradients.critical_batch(needed):.0f} samples",
    {"updates": needed, "samples / 100": {batch: count / 100 for batch, count in samples.items()}},
    x="batch size",
    y="needed for 88 %",
    source=COUNTED,
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
L.claim(
    "from batch 8 to 32, the number of updates until 88 % falls by more than half; from 512 to 2,048, by less than "
    "30 %",
    needed[32] < 0.5 * needed[8] and needed[2048] > 0.7 * needed[512] and needed[2048] < 0.5 * needed[8],
    before=needed[8],
    after=needed[2048],
    unit="updates",
    names=("batch 8", "batch 2,048"),
    source=COUNTED,
)

# %% [markdown]
# On the left, four times the batch needs little more than a quarter of the updates, and almost the same samples: the linear rule at work. On the right, four times the batch saves hardly any updates, and each of them processes four times as many samples. In between is the *critical batch size*: the fewest samples divided by the fewest updates, as McCandlish and others define it. It lies in the range of the noise scales of 04.3, which is wide. It is a property of the data, the model, the optimizer and the target, not of the GPU.
#
# Now the clock. How long does each batch size take until 88 %?

# %% tags=["measure"]
samples_per_s = {batch: batch / large_batches.update_cpu_s(data, batch) for batch in BATCHES}
# <blank> the time until 88 % for each batch size, in seconds, from `samples` and `samples_per_s`
# was: time_s = {batch: 1 / samples_per_s[batch] for batch in BATCHES}
time_s = {batch: samples[batch] / samples_per_s[batch] for batch in BATCHES}
# </blank>
most_samples, first_there = max(samples_per_s, key=samples_per_s.get), min(time_s, key=time_s.get)
for batch in BATCHES:
    print(f"batch {batch:5,}: {samples_per_s[batch]:9,.0f} samples/s, 88 % after {1e3 * time_s[batch]:6.1f} ms")
plots.line_plot(
    f"Most samples per second: batch {most_samples:,}. First at 88 %: batch {first_there:,}",
    {
        "samples per second": {batch: 100 * samples_per_s[batch] / samples_per_s[most_samples] for batch in BATCHES},
        "speed to 88 %": {batch: 100 * time_s[first_there] / time_s[batch] for batch in BATCHES},
    },
    x="batch size",
    y="% of the best",
    source=MEASURED,
    log_x=True,
)

# %% tags=["claim"]
display(L.reveal("fastest", time_s[2048] / time_s[first_there], "times the time of the fastest"))
L.claim(
    "the batch with the most samples per second takes at least 1.5 times as long to reach 88 % as the fastest one",
    time_s[most_samples] >= 1.5 * time_s[first_there],
    before=1e3 * time_s[first_there],
    after=1e3 * time_s[most_samples],
    unit="ms",
    names=("fastest", "most samples per second"),
    source=MEASURED,
)

# %% [markdown]
# (This is CPU time of the updates, without the evaluations in between.) Two limits meet here. The machine sets the *knee* (03.1): below it, a larger batch costs little time. The training sets the critical batch size: above it, a larger batch saves few updates. For a small model on a large GPU, the critical batch size comes first (04.8). A large model has its knee at a few samples per GPU; then the critical batch size limits how many GPUs can usefully share a batch.

# %% [markdown]
# ## Exercise
#
# ### 04.5 Batch 512, 90 % accuracy
#
# Reach 90 % with batch 512 in **at most three epochs** of 16 updates, in each of three runs. You choose the optimizer, its rate, and the warm-up: `make_optimizer` is called with the parameters of each new model, and `factor` with the number of each update, as in `train`. You can use `Lars`, `warm_up` and all of `torch.optim`; `large_batches.ramp(8)` is a warm-up over eight updates, `ramp(1)` is none.

# %% tags=["exercise"]
# <blank> partial(an optimizer class, lr=its rate), and a function that returns the factor of the rate
# was: make_optimizer, factor = partial(torch.optim.SGD, lr=RATE), large_batches.ramp(1)
make_optimizer, factor = partial(torch.optim.Adam, lr=0.02), large_batches.ramp(1)
# </blank>


def epochs_to_target(make_optimizer, batch, factor, seed, most=20):
    """Return the number of epochs until the accuracy is 90 %, or None after `most` epochs."""
    model = large_batches.pattern_classifier(seed)
    for update, _ in enumerate(train(model, make_optimizer(model.parameters()), batch, most, seed, factor), 1):
        if update % (ROWS // batch) == 0 and accuracy(model) >= 0.9:
            return update * batch // ROWS
    return None


epochs = [epochs_to_target(make_optimizer, 512, factor, seed) for seed in range(3)]
slowest = None if None in epochs else max(epochs)
if slowest is None:
    print("90 % is not reached within 20 epochs with seed", *(seed for seed in range(3) if epochs[seed] is None))
L.score("epochs", slowest)

# %% tags=["claim"]
small_epochs = [
    epochs_to_target(partial(torch.optim.SGD, lr=RATE), SMALL, lambda update: 1.0, seed) for seed in range(2)
]
L.claim(
    "with a suitable optimizer, batch 512 reaches 90 % in at most three epochs; SGD with batch 32 and rate 0.05 needs "
    "at least five",
    slowest is not None and slowest <= 3 and min(small_epochs) >= 5,
    before=min(small_epochs),
    after=slowest,
    unit="epochs",
    names=("batch 32, SGD", "batch 512"),
    source=COUNTED,
)

# %% [markdown]
# A fair comparison gives batch 32 the better optimizer as well: Adam with 0.004 then needs two epochs in our runs. So batch 512 needs half as many samples again, but 48 updates instead of 512. Where launches take the time, that is a good trade.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 04.6 Gradient accumulation: the same update
#
# If a batch does not fit into memory, you can add up the gradients of its parts ([03.3](03_parallel_work_and_batch.ipynb)). Here the parts have 100 images, and the last one only 24. With which weight does the mean loss of a part enter the loss of the batch?

# %% tags=["predict"]
L.predict("accumulate")


# %% tags=["measure"]
def equal_weight(part_rows, parts, batch_rows):
    """Return the weight of a part, if all parts count the same."""
    return 1 / parts


def weight_of_part(part_rows, parts, batch_rows):
    """Return the weight of a part of `part_rows` samples, one of `parts` parts of a batch of `batch_rows`."""
    # <blank> in proportion to its samples
    # was: return equal_weight(part_rows, parts, batch_rows)
    return part_rows / batch_rows
    # </blank>


def accumulate(model, rows, weight, part=100):
    """Add up the gradients of parts of a batch."""
    model.zero_grad()
    parts = rows.split(part)
    for part_rows in parts:
        loss = functional.cross_entropy(model(data.inputs[part_rows]), data.labels[part_rows])
        (loss * weight(len(part_rows), len(parts), len(rows))).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


model = large_batches.pattern_classifier(0)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
first_rows = next(large_batches.shuffled_batches(ROWS, LARGE, 1))
whole = accumulate(model, first_rows, equal_weight, part=LARGE)
off_by_size, off_equal = (
    float((accumulate(model, first_rows, weight) - whole).norm() / whole.norm())
    for weight in (weight_of_part, equal_weight)
)
for rows in large_batches.shuffled_batches(ROWS, LARGE, EPOCHS):
    accumulate(model, rows, weight_of_part)
    optimizer.step()
accumulated_accuracy, whole_accuracy = accuracy(model), accuracy(trained(LARGE, RATE)[0])
print(f"difference from the gradient of the batch: by size {off_by_size:.1e}, equal weights {off_equal:.1e}")
print(f"accuracy after {EPOCHS} epochs: accumulated {accumulated_accuracy:.1%}, batch 1,024 {whole_accuracy:.1%}")

# %% tags=["claim"]
display(L.reveal("accumulate"))
L.claim(
    "weighted by size, 11 unequal parts give the gradient of the batch to 1 in 10,000; with equal weights it is off by "
    "more than 1 %; the accuracy is that of the large batch, to within a point",
    off_by_size < 1e-4 and off_equal > 0.01 and abs(accumulated_accuracy - whole_accuracy) < 0.01,
    before=off_equal,
    after=off_by_size,
    unit="%",
    names=("equal weights", "by size"),
    source=MEASURED,
)

# %% [markdown]
# Language models have unequal parts all the time, because texts have different numbers of tokens. In 2024, several libraries corrected this mistake, among them Transformers, whose `Trainer` now passes the token count of the whole update (`num_items_in_batch`) to the loss.
#
# Accumulation makes as few updates as the large batch, and its kernels are those of the small one. So it gives you neither a better model nor a busier GPU, only the large batch in less memory (and fewer optimizer steps and gradient exchanges per sample). Marek and others (2025) train language models with batches down to 1, and advise against accumulation, unless the bandwidth between several devices is the bottleneck.
#
# ### 04.7 Adam: the square root rule
#
# The noise of a mean falls with the square root of the number of samples. So some multiply the rate by the square root of k instead of k: Krizhevsky (2014) mentions this rule for SGD, and Malladi and others (2022) derive it for Adam (they also adapt Adam's betas and epsilon to the batch; here only the rate changes). Here is Adam, with a good rate for batch 32.

# %% tags=["predict"]
L.predict("adam")

# %% tags=["measure"]
ADAM_RATE = 0.004
# <blank> the square root rule: scale ADAM_RATE, which is for batch SMALL, to batch LARGE
# was: root_rate = ADAM_RATE
root_rate = ADAM_RATE * (LARGE / SMALL) ** 0.5
# </blank>
adam = partial(mean_accuracy, optimizer=torch.optim.Adam)
adam_accuracy = {
    "batch 32": adam(SMALL, ADAM_RATE),
    "batch 1,024, same rate": adam(LARGE, ADAM_RATE),
    "batch 1,024, square root": adam(LARGE, root_rate),
    "batch 1,024, linear": adam(LARGE, ADAM_RATE * LARGE / SMALL),
}
tables.table_view(
    ("Adam", "accuracy"),
    [(name, f"{result:.1%}") for name, result in adam_accuracy.items()],
    below="The mean of all seeds, after eight epochs.",
)

# %% tags=["claim"]
display(L.reveal("adam"))
root = adam_accuracy["batch 1,024, square root"]
L.claim(
    "with Adam at batch 1,024, the square root rule is within 2 points of batch 32; the same rate loses more than 4 "
    "points, the linear rule more than 10",
    adam_accuracy["batch 32"] - root < 0.02
    and adam_accuracy["batch 32"] - adam_accuracy["batch 1,024, same rate"] > 0.04
    and adam_accuracy["batch 32"] - adam_accuracy["batch 1,024, linear"] > 0.1,
    before=adam_accuracy["batch 1,024, linear"],
    after=root,
    unit="%",
    names=("linear", "square root"),
    source=MEASURED,
)

# %% [markdown]
# A rule needs a good starting point. From a rate of 0.001, which is too low for batch 32, the linear rule gave a better result in our runs than the square root rule (93 and 89 %), because its larger factor made up for the low rate. Scale a *tuned* rate, then also try half and twice the result.
#
# ### 04.8 An idle GPU: a larger batch, or a shorter step?
#
# Back to the team of the symptom. (This experiment needs the updates that you counted in 04.4: run its cells first.) On a large GPU, this small model is launch-bound: the GPU waits for the host most of the time. The next cell records some steps with three batch sizes (on a virtual H100, if you have no GPU) and multiplies the step time by the updates of 04.4. The last row of the table keeps batch 128 and predicts a shorter step: a CUDA graph ([12](12_launch_fusion_graphs.ipynb)) launches all kernels of a step with one call. The row uses the lower end of the predicted gain. `gpulab.whatif(run)` lists the changes that gpulab can predict, among them `"cuda_graphs"`, `"amp=bf16"` and `"instant_gpu"` (kernels that take no time).

# %% tags=["predict"]
L.predict("busy")


# %% tags=["measure"]
def record(batch):
    """Record some steps with this batch size."""
    with L.gpu(f"batch {batch}"):
        model = large_batches.pattern_classifier(0).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        inputs, labels = data.inputs[:batch].to("cuda"), data.labels[:batch].to("cuda")
        for _ in range(12):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return throughput.step_throughput(gpulab.runs[f"batch {batch}"], batch)


# <blank> one of these three: the change that replaces all launches of a step by one
# was: change = "instant_gpu"
change = "cuda_graphs"
# </blank>
on_gpu, with_change_ns = {}, []
for _ in range(3):  # other programs may disturb a round
    for batch in (8, 128, 2048):
        step = record(batch)
        on_gpu[batch] = min(step, on_gpu.get(batch, step), key=lambda each: each.step_ns)
    with_change_ns.append(gpulab.runs["batch 128"].whatif(change).prediction.worst_ns)
steps = [(f"batch {batch:,}", batch, f"{step.busy_frac:.0%}", step.step_ns / 1e6) for batch, step in on_gpu.items()]
steps.append((f"batch 128, {change}", 128, "", min(with_change_ns) / 1e6))
to_target_ms = {name: needed[batch] * step_ms for name, batch, _, step_ms in steps}
tables.table_view(
    ("", "GPU busy", "step, ms", "samples/s", "time to 88 %, ms"),
    [
        (name, busy, f"{step_ms:.2f}", f"{1e3 * batch / step_ms:,.0f}", f"{to_target_ms[name]:.0f}")
        for name, batch, busy, step_ms in steps
    ],
    below="Steps estimated on a virtual GPU, or measured on yours; the last row is a prediction. Updates from 04.4.",
)

# %% tags=["claim"]
display(L.reveal("busy"))
at_128, with_change = to_target_ms["batch 128"], to_target_ms[f"batch 128, {change}"]
L.claim(
    "batch 2,048 instead of 128 raises samples per second more than tenfold and gets to 88 % less than twice as soon; "
    "a CUDA graph at batch 128 gets there at least twice as soon",
    on_gpu[2048].per_s > 10 * on_gpu[128].per_s
    and at_128 < 2 * to_target_ms["batch 2,048"]
    and at_128 >= 2 * with_change,
    before=at_128,
    after=with_change,
    unit="ms",
    source=gpulab.runs["batch 128"],
)

# %% [markdown]
# With batch 2,048, the GPU is still idle most of the time, and training reaches 88 % only a little sooner. Up to the critical batch size, a larger batch is the simplest fix for an idle GPU. Beyond it, you process more samples for almost the same progress. Use the idle time in another way: a shorter step, a larger model, or several models at once ([03.9](03_parallel_work_and_batch.ipynb)).

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
# A larger batch at the same learning rate and for the same epochs makes fewer updates, and they are not longer, so the model is trained less. Raise the rate: in proportion to the batch for SGD, by the square root for Adam, with a warm-up if the loss rises at first. This works up to the critical batch size, and not much further. Measure that size by the number of updates to a target, or estimate it by the noise scale. Then choose the batch by the time to accuracy, and report samples per second only together with it.

# %% tags=["card"]
L.card()
