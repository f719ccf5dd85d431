# %% [markdown]
# # 11 Architecture and search: which design is fast, and how do you find it?
#
# A smaller architecture or better hyperparameters often gain more than any tuning of kernels. But the usual measures mislead: fewer FLOPs are not always less time, and zeros in a matrix are multiplied like all other numbers. In this notebook you measure what depthwise convolutions, pruning and distillation really gain. Then you search: with Optuna for networks that are accurate, fast and small, and with ASHA for good hyperparameters in a third of the epochs.
#
# It takes 60 minutes and needs no GPU: networks are trained for real, on small images that are generated here. Only the times of a GPU come from a virtual one if there is no real one. One experiment needs Optuna (`pip install optuna`).

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("11_architecture_and_search")
L

# %% tags=["setup"]
import copy
import math
from functools import cache, partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from gpulab.lessons import COUNTED, MEASURED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.kernels import fusion
from gpulab.lessons.labs.kernels.architecture import (
    candidates,
    frameworks,
    halving,
    network_costs,
    optimizers,
    pareto,
    residual_nets,
)
from gpulab.lessons.labs.steps import large_batches, throughput
from gpulab.views.charts.drawing import plots

MIB = 2**20
torch.set_num_threads(1)
data = large_batches.pattern_images(rows=2048, test_rows=4096)  # noisy images of ten patterns

# %% [markdown]
# ## The symptom
#
# Most of the time of a network is spent in 3 x 3 convolutions. A colleague has read about MobileNet and wants to replace each of them by two cheaper layers. Here is what one of them costs.

# %% tags=["given"]
INPUTS, OUTPUTS, SHAPE = 64, 128, (2, 64, 32, 32)


def full(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


full_cost = network_costs.network_cost(partial(full, INPUTS, OUTPUTS), SHAPE)
print(f"3 x 3 convolution: {full_cost.parameters:,} weights, {full_cost.flops / 1e6:.0f} MFLOP for two images")

# %% [markdown]
# ## Cheaper layers
#
# ### 11.1 Depthwise separable convolutions
#
# A convolution mixes pixels and channels at once. A *depthwise separable* one does it in two steps: a 3 x 3 convolution within each channel (`groups=inputs`), then a 1 x 1 convolution, which mixes the channels of each pixel.

# %% tags=["predict"]
L.predict("depthwise")


# %% tags=["measure"]
def separable(inputs, outputs):
    # <blank> nn.Sequential of two convolutions: 3 x 3 with groups=inputs and padding=1, then 1 x 1; both without bias
    # was: return full(inputs, outputs)
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
    )
    # </blank>


def training_ms(layer):
    """Return the CPU time of a forward and a backward pass, in ms: the fastest of 20."""
    x = torch.ones(SHAPE, requires_grad=True)
    return 1e3 * throughput.fastest_cpu_s(lambda: layer(x).sum().backward(), repeats=20)


def gpu_us(name, layer):
    """Return the kernel time of a forward pass with 128 images on the GPU, in bfloat16 and channels-last, in us."""
    with L.gpu(name):
        options = {"device": "cuda", "dtype": torch.bfloat16, "memory_format": torch.channels_last}
        x, on_gpu = torch.ones(128, *SHAPE[1:]).to(**options), layer.to(**options)
        with torch.no_grad():
            for _ in range(4):
                on_gpu(x)
                torch.cuda.synchronize()
                gpulab.step()
    return throughput.step_throughput(gpulab.runs[name]).kernel_ns / 1000


costs, cpu_ms, kernel_us, lines = {}, {}, {}, []
for make in (full, separable):
    name, layer = make.__name__, make(INPUTS, OUTPUTS)
    costs[name] = network_costs.network_cost(partial(make, INPUTS, OUTPUTS), SHAPE)
    traffic = fusion.operator_traffic(lambda layer=layer: layer(torch.ones(SHAPE))).bytes
    cpu_ms[name], kernel_us[name] = training_ms(layer), gpu_us(name, layer)
    intensity = f"{costs[name].flops / traffic:.0f}"
    lines.append((name, f"{costs[name].flops / 1e6:.0f}", intensity, f"{cpu_ms[name]:.1f}", f"{kernel_us[name]:.0f}"))
tables.table_view(
    ("convolution", "MFLOP", "FLOP per byte", "training step on this CPU, ms", "forward on the GPU, us"),
    lines,
    below=f"Counted and measured here; GPU: {gpulab.runs['full'].source}.",
)

# %% tags=["claim"]
flops_ratio = costs["full"].flops / costs["separable"].flops
cpu_gain = cpu_ms["full"] / cpu_ms["separable"]
display(L.reveal("depthwise", cpu_gain, "times as fast"))
L.claim(
    "a depthwise separable convolution needs 8.4 times fewer FLOPs, but a training step on this CPU becomes less than "
    "7 times as fast",
    8.3 < flops_ratio < 8.5 and 1.5 < cpu_gain < 7,
    before=flops_ratio,
    after=cpu_gain,
    unit="times",
    names=("FLOPs", "time"),
    source=MEASURED,
)

# %% [markdown]
# The arithmetic fell to an eighth, but the bytes rose: two layers read and write more than one. So there is far less arithmetic per byte, and the memory gets a larger share of the time ([13](13_access_patterns.ipynb)). A GPU gains even less. By its data sheet, an H100 can do about 300 FLOPs in bfloat16 while it loads one byte. (A number has two bytes there, so each FLOP per byte of the table counts twice.) Both versions do less than that per byte, so both are limited by memory bandwidth.

# %% tags=["claim"]
gpu_gain = kernel_us["full"] / kernel_us["separable"]
L.claim(
    "on an H100 in bfloat16, the same 8.4 times fewer FLOPs make the forward pass less than twice as fast",
    1 < gpu_gain < 2 and flops_ratio > 8,
    before=kernel_us["full"],
    after=kernel_us["separable"],
    unit="us",
    source=gpulab.runs["separable"],
)

# %% [markdown]
# MobileNet and EfficientNet are efficient in FLOPs and parameters, and fast on the phones for which MobileNet was made. On a data-centre GPU, measure before you switch.
#
# ### 11.2 Pruning: zeros are multiplied, too
#
# *Pruning* sets the smallest weights of a trained network to zero. Train a network, and set nine of ten weights to zero.

# %% tags=["given"]
HIDDEN, KEPT = 512, 128


def make_network(hidden):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def train(network, epochs):
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for rows in large_batches.shuffled_batches(len(data.inputs), 128, epochs):
        optimizer.zero_grad()
        functional.cross_entropy(network(data.inputs[rows]), data.labels[rows]).backward()
        optimizer.step()
    return network


def accuracy(network):
    return large_batches.correct_frac(network, data.test_inputs, data.test_labels)


network = train(make_network(HIDDEN), epochs=4)
with_zeros = copy.deepcopy(network)
for layer in (with_zeros[0], with_zeros[2]):
    prune.l1_unstructured(layer, "weight", amount=0.9)
    prune.remove(layer, "weight")  # keeps the zeros, removes the mask

# %% tags=["predict"]
L.predict("zeros")


# %% [markdown]
# *Structured* pruning removes whole channels, so the matrices become smaller. A channel has a row in the layer that computes it, and a column in the layer that reads it. Keep the quarter of the channels whose rows have the largest norms.

# %% tags=["measure"]
def remove_channels(first, second, keep):
    """Return copies of both layers in which only the channels `keep` (indices) between them are left."""
    smaller, reader = copy.deepcopy(first), copy.deepcopy(second)
    # <blank> rows `keep` of first.weight.data and first.bias.data, columns `keep` of second.weight.data
    # was: pass
    smaller.weight.data, smaller.bias.data = first.weight.data[keep], first.bias.data[keep]
    reader.weight.data = second.weight.data[:, keep]
    # </blank>
    return smaller, reader


removed, zeroed = copy.deepcopy(network), copy.deepcopy(network)
for first in (0, 2):
    keep = zeroed[first].weight.norm(dim=1).topk(KEPT).indices
    dropped = torch.ones(HIDDEN, dtype=torch.bool).index_fill(0, keep, False)
    zeroed[first].weight.data[dropped], zeroed[first].bias.data[dropped] = 0, 0
    removed[first], removed[first + 2] = remove_channels(removed[first], removed[first + 2], keep)


def forward_ms(network):
    """Return the CPU time of a forward pass of 2,048 images, in ms: the fastest of several."""
    with torch.no_grad():
        return 1e3 * throughput.fastest_cpu_s(lambda: network(data.inputs), repeats=12)


tuned, small = train(copy.deepcopy(removed), epochs=2), train(make_network(KEPT), epochs=6)
NETWORKS = {
    "trained": network,
    "90 % zeros": with_zeros,
    "a quarter of the channels": removed,
    "the same, trained for 2 more epochs": tuned,
    "a quarter from the start, 6 epochs": small,
}
forward_times = {name: forward_ms(one) for name, one in NETWORKS.items()}
tables.table_view(
    ("network", "forward pass, ms", "accuracy"),
    [(name, f"{forward_times[name]:.1f}", f"{accuracy(one):.0%}") for name, one in NETWORKS.items()],
    below="Measured here.",
)

# %% tags=["same"]
with torch.no_grad():
    both = zeroed(data.inputs), removed(data.inputs)
L.same(*both)

# %% tags=["claim"]
zeros_gain = forward_times["trained"] / forward_times["90 % zeros"]
channels_gain = forward_times["trained"] / forward_times["a quarter of the channels"]
display(L.reveal("zeros", zeros_gain, "times as fast"))
L.claim(
    "with 90 % zeros, a forward pass takes as long as before (within 25 %); without three quarters of the channels, it "
    "is more than 4 times as fast",
    0.75 < zeros_gain < 1.25 and channels_gain > 4,
    before=forward_times["90 % zeros"],
    after=forward_times["a quarter of the channels"],
    unit="ms",
    names=("zeros", "removed"),
    source=MEASURED,
)

# %% [markdown]
# Zeros save time only with a kernel that skips them. GPUs since Ampere have one for *2:4 sparsity*: at most two of four neighbours are not zero, and products run twice as fast at best (`torch.sparse.to_sparse_semi_structured`). Zeros at random places do compress, so files become smaller.
#
# The accuracy is the price. Removed channels hurt more than zeros, and further training repairs most of it. But look at the last row: here a small network that is trained for the same six epochs from the start is better than the pruned one. Always compare with it.
#
# ### 11.3 Distillation: half the layers
#
# A teacher with 12 residual layers is to become a student with 6. DistilBERT did that with two ideas: the student learns from the teacher's outputs, which say how similar two classes are, and it starts with every second layer of the teacher. Which of them helps?

# %% tags=["predict"]
L.predict("distil")

# %% [markdown]
# Write both. The loss is the Kullback-Leibler divergence of both distributions, softened by a temperature: `functional.kl_div(student's log_softmax, teacher's log_softmax, reduction="batchmean", log_target=True)`.

# %% tags=["measure"]
TEMPERATURE = 2.0


def teacher_loss(student_logits, teacher_logits):
    """Return the divergence from the teacher's distribution, times TEMPERATURE**2."""
    # <blank> kl_div of log_softmax(logits / TEMPERATURE, dim=1) of both, times TEMPERATURE**2
    # was: return 0.0 * student_logits.sum()
    student = functional.log_softmax(student_logits / TEMPERATURE, dim=1)
    target = functional.log_softmax(teacher_logits / TEMPERATURE, dim=1)
    return TEMPERATURE**2 * functional.kl_div(student, target, reduction="batchmean", log_target=True)
    # </blank>


def copy_layers(student, teacher):
    """Copy the first part, the last part, and every second layer between them from the teacher."""
    student.stem.load_state_dict(teacher.stem.state_dict())
    student.head.load_state_dict(teacher.head.state_dict())
    # <blank> for each index of student.layers: load_state_dict of the teacher's layer with twice the index
    # was: pass
    for index, layer in enumerate(student.layers):
        layer.load_state_dict(teacher.layers[2 * index].state_dict())
    # </blank>
    return student


def label_loss(model, rows):
    return functional.cross_entropy(model(lesson_images.inputs[rows]), lesson_images.labels[rows])


lesson_images = large_batches.pattern_images(rows=4096, test_rows=4096)
ROWS = len(lesson_images.inputs)
teacher = residual_nets.fit(residual_nets.residual_classifier(12, seed=0), label_loss, ROWS, epochs=4)
with torch.no_grad():
    teacher_logits = teacher(lesson_images.inputs)


def mixed_loss(model, rows):
    logits = model(lesson_images.inputs[rows])
    labels = functional.cross_entropy(logits, lesson_images.labels[rows])
    return 0.1 * labels + 0.9 * teacher_loss(logits, teacher_logits[rows])


def student_accuracy(loss, from_teacher):
    """Train students of 6 layers for one epoch, and return their mean accuracy."""
    accuracies = []
    for seed in L.pick(tiny=(1,), lab=(1, 2, 3)):
        student = residual_nets.residual_classifier(6, seed)
        student = copy_layers(student, teacher) if from_teacher else student
        residual_nets.fit(student, loss, ROWS, epochs=1, seed=seed)
        accuracies.append(large_batches.correct_frac(student, lesson_images.test_inputs, lesson_images.test_labels))
    return sum(accuracies) / len(accuracies)


copied = copy_layers(residual_nets.residual_classifier(6, seed=1), teacher)
students = {
    "teacher, 12 layers, 4 epochs": accuracy(teacher),
    "teacher's layers, not trained": accuracy(copied),
    "random weights, labels": student_accuracy(label_loss, from_teacher=False),
    "random weights, teacher's outputs": student_accuracy(mixed_loss, from_teacher=False),
    "teacher's layers, labels": student_accuracy(label_loss, from_teacher=True),
    "teacher's layers and outputs": student_accuracy(mixed_loss, from_teacher=True),
}
with_layers, without = students["teacher's layers, labels"], students["random weights, labels"]
plots.bar_plot(
    f"A student reaches {100 * with_layers:.0f} % with its teacher's layers, {100 * without:.0f} % without",
    {name: 100 * value for name, value in students.items()},
    x="accuracy, %; students have 6 layers and train for one epoch",
    source=MEASURED,
)

# %% tags=["claim"]
taught = students["teacher, 12 layers, 4 epochs"]
layers_gain, outputs_gain = with_layers - without, students["random weights, teacher's outputs"] - without
gradient_error = residual_nets.divergence_gradient_error(teacher_loss, TEMPERATURE)
display(L.reveal("distil", outputs_gain / layers_gain if layers_gain > 0.03 else 1.0, "of that gain"))
L.claim(
    "after one epoch, a student with half of its teacher's layers is within 3 points of it if it starts from those "
    "layers; from random weights it is more than 5 points below, with the teacher's outputs, too",
    gradient_error < 0.01  # of teacher_loss: the gradient of the divergence is known
    and torch.equal(copied.layers[1].wide.weight, teacher.layers[2].wide.weight)
    and accuracy(teacher) == taught  # the students did not change their teacher
    and taught - students["teacher's layers and outputs"] < 0.03
    and taught - without > 0.05
    and taught - students["random weights, teacher's outputs"] > 0.05,
    before=without,
    after=students["teacher's layers and outputs"],
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# With every second layer of its teacher, the student is right most of the time before it has trained at all. The teacher's outputs matter most where labels are missing: for images without labels, they are the only target. Here every image has a label. And the advantage of the start shrinks with time: after four epochs, students from random weights reached 93 % in our runs (three seeds), those from the teacher's layers 94 %. Half of the layers are half of the parameters and of the arithmetic in either case.

# %% [markdown]
# ## Search
#
# ### 11.4 Accurate, fast and small: a Pareto front
#
# Here is a network that someone designed by hand: four blocks with 3 x 3 convolutions of 32 channels, trained with learning rate 0.001. Is there a better one? There are three objectives: the error, the time for 65,536 images on the GPU, and the peak of its memory. One result *dominates* another if it is at least as good in all objectives and better in one. The results that none dominates are the *Pareto front*.
#
# Optuna proposes a *trial*, you return its objectives, and the next proposal uses all results so far. If it is missing, the cell that loads it says how to install it.

# %% tags=["predict"]
L.predict("front")

# %% [markdown]
# The learning rate belongs to the search, because each design has another best rate. Let the trial suggest all four: `trial.suggest_categorical(name, [...])`, `trial.suggest_int(name, low, high, step=...)`, and `trial.suggest_float(name, low, high, log=True)`.

# %% tags=["measure"]
optuna = candidates.load_optuna()
BY_HAND = {"kind": "full", "channels": 32, "blocks": 4, "lr": 1e-3}


def suggest(trial):
    """Return kind ("full" or "depthwise"), channels (8 to 48), blocks (1 to 4) and lr (0.0003 to 0.03)."""
    # <blank> four calls of trial.suggest_...; channels in steps of 8, lr on a logarithmic scale
    # was: return dict(BY_HAND)
    return {
        "kind": trial.suggest_categorical("kind", ["full", "depthwise"]),
        "channels": trial.suggest_int("channels", 8, 48, step=8),
        "blocks": trial.suggest_int("blocks", 1, 4),
        "lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True),
    }
    # </blank>


@cache
def measure_candidate(kind, channels, blocks, lr):
    """Return the error on validation images, the time in us and the memory in MiB."""
    network = candidates.candidate_network(kind, channels, blocks)
    time_us, memory_mib = candidates.inference_cost(L, "candidate", network)
    return candidates.trained_error(network, data, lr), time_us, memory_mib


study = optuna.create_study(directions=["minimize"] * 3, sampler=optuna.samplers.TPESampler(seed=2))
study.enqueue_trial(BY_HAND)  # the first trial is the design by hand
study.optimize(lambda trial: measure_candidate(**suggest(trial)), n_trials=L.pick(tiny=20, lab=40))
by_hand, *others = [tuple(trial.values) for trial in study.trials]
front = sorted({tuple(trial.values) for trial in study.best_trials}, key=lambda values: values[1])
better = [values for values in front if pareto.dominates(values, by_hand)]
pareto.front_plot(
    f"{len(better)} networks of the front dominate the design by hand",
    {
        "all trials": [(time_us, 100 * error) for error, time_us, _ in others],
        "front": [(time_us, 100 * error) for error, time_us in pareto.pareto_front([one[:2] for one in front])],
        "by hand": [(by_hand[1], 100 * by_hand[0])],
    },
    x="time on the GPU, us",
    y="error, %",
    source=gpulab.runs["candidate"],
)

# %% tags=["claim"]
faster = [values for values in better if values[1] < 0.7 * by_hand[1]]
display(L.reveal("front", len(faster)))
L.claim(
    "the search finds a network that needs less than 70 % of the time of the design by hand, with no more errors on "
    "the validation images and no more memory",
    len(faster) > 0,
    before=by_hand[1],
    after=min((values[1] for values in faster), default=None),
    unit="us",
    source=gpulab.runs["candidate"],
)

# %% [markdown]
# The front is a list of offers; which one you take depends on your limits. You have 600 us and 160 MiB. Take the network with the fewest errors within both. Then test it on images that the search has not used: the best of many results is partly luck, so it looks better than it is.

# %% tags=["exercise"]
LIMIT_US, LIMIT_MIB = 600, 160
# <blank> min(...) of trials in study.best_trials with trial.values (error, us, MiB) within both limits, by error
# was: chosen = None
allowed = [trial for trial in study.best_trials if trial.values[1] <= LIMIT_US and trial.values[2] <= LIMIT_MIB]
chosen = min(allowed, key=lambda trial: trial.values[0])
# </blank>
L.score("limits", pareto.conditions_met(chosen.values, front, LIMIT_US, LIMIT_MIB) if chosen else None)

# %% tags=["measure"]
lines = []
for name, parameters in {"by hand": BY_HAND, "chosen": chosen.params if chosen else BY_HAND}.items():
    for order in (0, 1):  # of the training images
        finalist = candidates.candidate_network(parameters["kind"], parameters["channels"], parameters["blocks"])
        validation = candidates.trained_error(finalist, data, parameters["lr"], seed=order)
        lines.append((name, order, f"{validation:.1%}", f"{candidates.fresh_error(finalist, data):.1%}"))
settings = dict(chosen.params, lr=round(chosen.params["lr"], 4)) if chosen else "nothing yet"
tables.table_view(
    ("network", "order of the images", "error, validation", "error, fresh images"),
    lines,
    below=f"Measured here. Chosen: {settings}.",
)

# %% [markdown]
# In our run, the chosen network has 11.2 % errors on the validation images, against 12.0 % of the design by hand, and 14.1 % against 13.7 % on fresh images. So the better error was luck: with 2,048 images and 12 % errors, the standard error of a difference is one point. The gain of this search is the time and the memory, at an error that is the same within noise.
#
# On an H100, a depthwise network is slower than a full one of the same width, by the model of the virtual one: its layers are narrow, so arithmetic costs almost nothing, and an additional layer costs additional bytes (11.1). The learning rate is part of the gain: compare designs only at a good rate of each. And a search of 20 trials depends on chance: with six seeds, five searches found a better network than the one by hand. If yours found none, change the seed of the sampler and run the search again.
#
# Optuna proposes trials by the *tree-structured Parzen estimator*; `NSGAIISampler` is an evolutionary search instead. Pass `storage="sqlite:///search.db"` to continue a study later or to use several processes.
#
# ### 11.5 Stop bad trainings early: ASHA
#
# A grid of 4 learning rates, 3 batch sizes and 2 weight decays has 24 combinations; with 9 epochs each, that is 216 epochs. Most combinations are visibly bad after one epoch. *Successive halving* trains all of them for 1 epoch, the best third for 3, and the best third of these for 9. *ASHA* does the same without waiting for all others: whenever a worker is free, it continues a combination of the best third so far, or starts a new one.

# %% tags=["given"]
GRID = halving.grid_of(rates=(3e-4, 1e-3, 3e-3, 1e-2), batches=(16, 64, 256), decays=(0.0, 0.1))
tuning_images = large_batches.pattern_images(rows=1024, test_rows=4096)
grid = halving.Trainings(data=tuning_images)
grid_accuracy = {configuration: grid.train(configuration, epochs=9) for configuration in GRID}
print(f"{len(GRID)} combinations, {grid.epochs} epochs; for example {GRID[0]}")

# %% tags=["predict"]
L.predict("halving")


# %% tags=["exercise"]
def promotable(standings):
    """Return the standings (accuracy, combination), best first, of the combinations that may continue."""
    # <blank> the best third, rounded down
    # was: return standings
    return standings[: len(standings) // 3]
    # </blank>


tuning = halving.Trainings(data=tuning_images)
asha = halving.run_asha(GRID, promotable, tuning.train, rung_epochs=(1, 3, 9))
best_accuracy, _ = asha.best or (0.0, None)  # None: no combination reached the last rung
is_close = max(grid_accuracy.values()) - best_accuracy < 0.02
share = tuning.epochs / grid.epochs
L.score("epochs", 10 * round(10 * share) if is_close else None)


# %% tags=["measure"]
def gpu_load(batch):
    """Record training steps with this batch size on the GPU."""
    with L.gpu(f"batch {batch}"):
        model = halving.grid_classifier().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        rows, labels = torch.ones(batch, 64, device="cuda"), torch.zeros(batch, dtype=torch.long, device="cuda")
        for _ in range(6):
            optimizer.zero_grad()
            functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
    return throughput.step_throughput(gpulab.runs[f"batch {batch}"], batch)


loads = {batch: gpu_load(batch) for batch in (16, 64, 256)}
tables.table_view(
    ("batch", "best accuracy in the grid", "samples/s on this CPU", "samples/s on the GPU", "GPU busy"),
    [
        (
            batch,
            f"{max(value for one, value in grid_accuracy.items() if one.batch == batch):.1%}",
            f"{grid.samples_per_s(batch):,.0f}",
            f"{load.per_s:,.0f}",
            f"{load.busy_frac:.0%}",
        )
        for batch, load in loads.items()
    ],
    below=f"Measured here; GPU: {gpulab.runs['batch 16'].source}.",
)

# %% tags=["claim"]
display(L.reveal("halving", share, "%"))
L.claim(
    "ASHA needs less than 40 % of the epochs of the grid, and ends within 2 points of its best accuracy",
    is_close and share < 0.4,
    before=grid.epochs,
    after=tuning.epochs,
    unit="epochs",
    source=MEASURED,
)

# %% [markdown]
# ASHA need not find the best of the grid: in our run, that one continued after its first epoch, was not among the best after three, and stopped there. What learns slowly at first, such as a small learning rate or a long warm-up, can lose its place too early; a longer first rung prevents that. In Optuna, `pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)` does the same: call `trial.report(accuracy, epoch)` after each epoch, and raise `optuna.TrialPruned` if `trial.should_prune()`.
#
# Should the search maximise utilisation as well? Look at the table. With larger batches, samples per second rise, and the accuracy after nine epochs falls, while the GPU is nearly as idle as before, because this network is launch-bound ([12](12_launch_fusion_graphs.ipynb)). Log utilisation to detect a waste of time, but optimise accuracy and time, or accuracy per cost.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 11.6 Inverted residual blocks: cheap to compute, expensive to store
#
# A residual block of ResNet has two 3 x 3 convolutions. MobileNetV2 inverts the order of wide and narrow in ResNet's bottleneck: a 1 x 1 convolution to 6 times the channels, a depthwise 3 x 3 there, and a 1 x 1 back. The sum with the input is left out below: it adds neither products nor saved bytes.

# %% tags=["predict"]
L.predict("inverted")

# %% tags=["measure"]
CHANNELS, EXPANSION = 64, 6


def layer_of(inputs, outputs, size, groups=1, activation=nn.ReLU6):
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), activation())


def residual_block():
    return nn.Sequential(layer_of(CHANNELS, CHANNELS, 3), layer_of(CHANNELS, CHANNELS, 3))


def inverted_block():
    wide = EXPANSION * CHANNELS
    # <blank> layer_of CHANNELS to wide (size 1), depthwise (size 3, groups=wide), to CHANNELS (activation=nn.Identity)
    # was: return residual_block()
    return nn.Sequential(
        layer_of(CHANNELS, wide, 1),
        layer_of(wide, wide, 3, groups=wide),
        layer_of(wide, CHANNELS, 1, activation=nn.Identity),
    )
    # </blank>


blocks = {
    make.__name__: network_costs.network_cost(make, (8, CHANNELS, 56, 56)) for make in (residual_block, inverted_block)
}
tables.table_view(
    ("block", "weights", "GFLOP", "saved for the backward pass, MiB"),
    [
        (name, f"{cost.parameters:,}", f"{cost.flops / 1e9:.2f}", f"{cost.saved_bytes / MIB:.0f}")
        for name, cost in blocks.items()
    ],
    below="Counted here, for 8 images of 56 x 56 pixels, float32.",
)

# %% tags=["claim"]
plain, inverted = blocks.values()
display(L.reveal("inverted", inverted.saved_bytes / plain.saved_bytes, "times the bytes"))
L.claim(
    "an inverted residual block computes less than a residual block of the same width, but saves more than 3 times as "
    "many bytes for the backward pass",
    inverted.flops < 0.8 * plain.flops and inverted.saved_bytes > 3 * plain.saved_bytes,
    before=plain.saved_bytes / MIB,
    after=inverted.saved_bytes / MIB,
    unit="MiB",
    source=COUNTED,
)

# %% [markdown]
# ### 11.7 Depth, width, resolution: three ways to double the arithmetic
#
# A network can grow in three directions. EfficientNet scales all three at once: with an exponent `phi`, depth by 1.2 ** phi, width by 1.1 ** phi and resolution by 1.15 ** phi, so that phi = 1 costs about twice the FLOPs. Write the three factors.

# %% tags=["predict"]
L.predict("scaling")


# %% tags=["measure"]
def compound(phi):
    """Return the factors of depth, width and resolution."""
    # <blank> a dict of depth, width and resolution
    # was: return {"depth": 1.0, "width": 1.0, "resolution": 1.0}
    return {"depth": 1.2**phi, "width": 1.1**phi, "resolution": 1.15**phi}
    # </blank>


base = network_costs.scaled_cost()
GROWN = {
    "depth x 2": {"depth": 2},
    "width x 1.41": {"width": 2**0.5},
    "resolution x 1.41": {"resolution": 2**0.5},
    "compound, phi = 1": compound(1),
}
grown = {name: network_costs.scaled_cost(**factors) for name, factors in GROWN.items()}
doublings = {phi: network_costs.scaled_cost(**compound(phi)).flops / base.flops for phi in (1, 2, 3)}
display(
    tables.table_view(
        ("larger by", "FLOPs", "weights", "saved bytes"),
        [
            (
                name,
                f"x {cost.flops / base.flops:.2f}",
                f"x {cost.parameters / base.parameters:.2f}",
                f"x {cost.saved_bytes / base.saved_bytes:.2f}",
            )
            for name, cost in grown.items()
        ],
        below="Counted here, relative to 15 convolutions of 64 to 256 channels and images of 64 x 64 pixels.",
    )
)
plots.line_plot(
    "Each step of phi costs about twice the arithmetic",
    {"counted": {0: 1.0, **doublings}, "2 ** phi": {phi: 2.0**phi for phi in range(4)}},
    x="phi",
    y="FLOPs, relative",
    source=COUNTED,
)

# %% tags=["claim"]
wider, sharper = grown["width x 1.41"], grown["resolution x 1.41"]
flops = [cost.flops / base.flops for cost in grown.values()]
display(L.reveal("scaling", sharper.parameters / base.parameters))
L.claim(
    "each of the four about doubles the FLOPs; resolution adds no weight, width adds the fewest saved bytes, and three "
    "steps of compound scaling cost 6 to 10 times as much",
    compound(1) == {"depth": 1.2, "width": 1.1, "resolution": 1.15}
    and 1.7 < min(flops) < max(flops) < 2.3
    and sharper.parameters == base.parameters
    and wider.saved_bytes == min(cost.saved_bytes for cost in grown.values())
    and 6 < doublings[3] < 10,
    before=1,
    after=doublings[3],
    unit="times the FLOPs",
    source=COUNTED,
)

# %% [markdown]
# ### 11.8 Channel counts for tensor cores
#
# Tensor cores multiply small tiles, and the fastest kernels load 16 bytes at once: 8 numbers in bfloat16. GPT-2's vocabulary of 50,257 tokens fits neither. Write the next multiple; no token uses the added rows.

# %% tags=["predict"]
L.predict("padding")


# %% tags=["measure"]
def padded(count, multiple):
    """Return the smallest multiple of `multiple` that is not below `count`."""
    # <blank> round count / multiple up, times multiple
    # was: return count
    return -(-count // multiple) * multiple
    # </blank>


def product_us(columns):
    """Return the kernel time of a Linear layer of 768 inputs for 4,096 rows in bfloat16, in us."""
    with L.gpu(f"{columns} columns"):
        rows = torch.ones(4096, 768, dtype=torch.bfloat16, device="cuda")
        weight = torch.ones(columns, 768, dtype=torch.bfloat16, device="cuda")
        for _ in range(4):
            functional.linear(rows, weight)
            torch.cuda.synchronize()
            gpulab.step()
    return throughput.step_throughput(gpulab.runs[f"{columns} columns"]).kernel_ns / 1000


SIZES = {"vocabulary": 50_257, "channels, odd": 1023, "channels, even": 1022}
product_times = {name: (product_us(size), product_us(padded(size, 64))) for name, size in SIZES.items()}
tables.table_view(
    ("", "columns", "us", "padded to 64", "us"),
    [
        (name, f"{SIZES[name]:,}", f"{before:,.0f}", f"{padded(SIZES[name], 64):,}", f"{after:,.0f}")
        for name, (before, after) in product_times.items()
    ],
    below=f"{gpulab.runs['50257 columns'].source}.",
)

# %% tags=["same"]
rows, weight = torch.randn(64, 768), torch.randn(1023, 768)
padded_weight = functional.pad(weight, (0, 0, 0, padded(1023, 64) - 1023))
L.same(functional.linear(rows, weight), functional.linear(rows, padded_weight)[:, :1023])

# %% tags=["claim"]
display(L.reveal("padding", product_times["vocabulary"][0] / product_times["vocabulary"][1], "times as fast"))
L.claim(
    "padding a vocabulary of 50,257 to 50,304 adds 0.1 % of columns and makes the product more than twice as fast",
    padded(50_257, 64) == 50_304
    and padded(64, 64) == 64
    and product_times["vocabulary"][0] > 2 * product_times["vocabulary"][1],
    before=product_times["vocabulary"][0],
    after=product_times["vocabulary"][1],
    unit="us",
    source=gpulab.runs["50257 columns"],
)

# %% [markdown]
# The virtual GPU takes its factors for odd sizes from published traces of an H100. cuBLAS chooses other kernels for other sizes and versions, so measure on your GPU. Multiples of 8 give the alignment; multiples of 64 fill tiles better. The logits of the added tokens must not become large; training lowers them, because no target asks for them.
#
# ### 11.9 Optimizers at their best
#
# Many comparisons of optimizers use one learning rate for all. Here are five optimizers, the same network and the same 64 updates. Choose the rates to try.

# %% tags=["predict"]
L.predict("optimizers")

# %% tags=["measure"]
# <blank> powers of ten from 0.0001 to 1
# was: RATES = (0.001,)
RATES = (0.0001, 0.001, 0.01, 0.1, 1.0)
# </blank>
by_rate = {name: optimizers.accuracy_by_rate(make, RATES, data) for name, make in optimizers.OPTIMIZERS.items()}
at_one_rate = {
    name: value
    for name, rates in by_rate.items()
    for rate, value in rates.items()
    if math.isclose(rate, 0.001, rel_tol=1e-6)
}
at_best_rate = {name: max(rates.values()) for name, rates in by_rate.items()}
optimizer_costs = {name: optimizers.optimizer_cost(make) for name, make in optimizers.OPTIMIZERS.items()}
display(
    tables.table_view(
        ("optimizer", "accuracy at 0.001", "at its best rate", "bytes of state per weight", "operators per tensor"),
        [
            (
                name,
                f"{at_one_rate[name]:.0%}" if name in at_one_rate else "-",
                f"{at_best_rate[name]:.0%}",
                f"{cost.state_bytes:.2f}",
                cost.operators,
            )
            for name, cost in optimizer_costs.items()
        ],
        below="Accuracy measured here; bytes and operators counted for one matrix of 1,024 x 1,024.",
    )
)
plots.line_plot(
    "Each optimizer has its own range of learning rates",
    {name: {rate: 100 * value for rate, value in rates.items()} for name, rates in by_rate.items()},
    x="learning rate",
    y="accuracy, %",
    source=MEASURED,
    log_x=True,
)

# %% tags=["claim"]
spread_one = max(at_one_rate.values(), default=0.0) - min(at_one_rate.values(), default=0.0)
spread_best = max(at_best_rate.values()) - min(at_best_rate.values())
display(L.reveal("optimizers", spread_best, "%"))
L.claim(
    "with the same learning rate, five optimizers differ by more than 40 points of accuracy; with the best rate of "
    "each, by less than 8",
    spread_one > 0.4 and spread_best < 0.08,
    before=spread_one,
    after=spread_best,
    unit="%",
    source=MEASURED,
)

# %% [markdown]
# So tune the rate before you compare, and then compare the costs: AdamW stores 8 bytes per weight, SGD with momentum and LARS 4, Adafactor almost none for a matrix, but it runs twice as many operators as AdamW. With `fused=True`, the operators of AdamW become one kernel ([12](12_launch_fusion_graphs.ipynb)). On transformers, AdamW is usually better than SGD at any rate; this small network does not show that.
#
# ### 11.10 The same network in NumPy, PyTorch and JAX
#
# Which framework is fastest? First make sure that they compute the same. Here are a small CNN and an LSTM as array code, which NumPy and JAX can run, and as PyTorch modules. Write the convolution: `patches` has a row of nine neighbours for each pixel and channel, so it is a matrix product.

# %% tags=["predict"]
L.predict("frameworks")


# %% tags=["measure"]
def convolve(patches, weight, bias):
    """Return patches (rows, pixels, inputs * 9) times weight (outputs, inputs * 9), plus the bias."""
    # <blank> a matrix product with the transposed weight, plus bias
    # was: return 0 * patches[:, :, :1] + bias
    return patches @ weight.T + bias
    # </blank>


images, targets = candidates.as_images(data.inputs[:512]), data.labels[:512]
array_code = {"CNN": partial(frameworks.cnn_logits, convolve=convolve), "LSTM": frameworks.lstm_logits}
# Generating code takes half a minute on a CPU: at size tiny, only the compiler's front end runs.
backend = L.pick(tiny="aot_eager", lab="inductor")
results = {}
with torch.no_grad():
    for name, module in frameworks.modules().items():
        weights, logits = frameworks.weight_arrays(module), array_code[name]
        compiled = torch.compile(module, backend=backend)
        calls = {
            "PyTorch": partial(module, images),
            f"torch.compile, {backend}": partial(compiled, images),
            "JAX": frameworks.jax_runner(logits, images, weights),
            "NumPy": partial(logits, np, images.numpy(), weights),  # last: its threads stay busy for a moment
        }
        for framework, call in calls.items():
            if call is not None:
                results[name, framework] = frameworks.measure_framework(call, targets)
tables.table_view(
    ("network", "framework", "loss", "samples/s", "first call, s"),
    [
        (*names, f"{result.loss:.5f}", f"{result.samples_per_s:,.0f}", f"{result.first_call_s:.2f}")
        for names, result in results.items()
    ],
    left=2,
    below="Measured here, on one thread of PyTorch; NumPy may use more. JAX is in the table if it is installed.",
)

# %% tags=["claim"]
losses = {names: result.loss for names, result in results.items()}
largest_difference = max(abs(loss / losses[name, "PyTorch"] - 1) for (name, _), loss in losses.items())
display(L.reveal("frameworks"))
L.claim(
    "a CNN and an LSTM have the same loss in NumPy, eager PyTorch and torch.compile, within 0.01 %",
    largest_difference < 1e-4,
    before=losses["CNN", "NumPy"],
    after=losses["CNN", "PyTorch"],
    unit="(loss)",
    names=("NumPy", "PyTorch"),
    source=MEASURED,
)

# %% [markdown]
# The order of the frameworks depends on network, size, device and version, so a chart from another machine does not decide for you. Two things are general. NumPy and eager PyTorch run one operator after the other; a compiler can fuse several, but its first call is slow. And `torch.compile` leaves `nn.LSTM` as it is: PyTorch has a special kernel for it, and Dynamo does not trace it by default.

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
# Judge an architecture by its time and memory on the device where it will run, not by FLOPs or parameters. Depthwise layers compute less and move as many bytes; zeros save no time, smaller matrices do; a student that starts from its teacher's layers needs little training. When you search, include the learning rate, keep several objectives and look at the front, stop bad trainings early, and test the winner on fresh data. See [04](04_large_batches.ipynb) for learning rates and batch sizes, [08](08_mixed_precision.ipynb) for tensor cores, and [13](13_access_patterns.ipynb) for bytes.

# %% tags=["card"]
L.card()
