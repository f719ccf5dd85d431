"""Train small networks on the CPU with nn.Dropout and with a faster mask: `python -m benchmarks.dropout [THREADS]`.

The figures behind the rule `dropout_on_cpu`. Steps of both variants alternate in one process. With one thread, which is
the default, their CPU time is compared, so that other programs matter little; with more, their time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from gpulab.rules.kernels.dropout_on_cpu import mask_dropout_code

ROUNDS, WARM_UP_ROUNDS, STEPS = 15, 2, 2
CLASSES = 10


class LastState(nn.Module):
    """A bidirectional LSTM; returns its output at the last time step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return a row for each sequence."""
        output: Tensor = self.lstm(sequences)[0]
        return output[:, -1]


def encoder(width: int, rate: float) -> nn.Module:
    """Two layers of a Transformer, and a linear layer for the mean over the positions."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, rate, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Mean(), nn.Linear(width, CLASSES))


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, sequences: Tensor) -> Tensor:
        """Return a row for each sequence."""
        return sequences.mean(1)


# By name: the network, and the shape of its batch.
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Transformer, 0.1": (lambda: encoder(128, 0.1), (16, 64, 128)),
    "Transformer, 0.3": (lambda: encoder(64, 0.3), (32, 32, 64)),
    "bags of words, 0.6": (
        lambda: nn.Sequential(nn.Dropout(0.6), nn.Linear(1433, 64), nn.ELU(), nn.Dropout(0.6), nn.Linear(64, CLASSES)),
        (2708, 1433),
    ),
    "MLP, 0.5": (
        lambda: nn.Sequential(
            *(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, CLASSES)),
        ),
        (256, 784),
    ),
    "MLP, 0.1": (
        lambda: nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, CLASSES)),
        (1024, 40),
    ),
    "LSTM, 0.5": (
        lambda: nn.Sequential(nn.Dropout(0.5), LastState(64, 64), nn.Dropout(0.5), nn.Linear(128, CLASSES)),
        (32, 40, 64),
    ),
    "convolutions, 0.25": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
            *(nn.Flatten(), nn.Linear(4608, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES)),
        ),
        (64, 1, 28, 28),
    ),
}


def main() -> None:
    """Print a table."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    print(f"{'network':22}{'nn.Dropout, ms':>16}{'mask':>8}{'dropout':>10}{'factor':>8}")
    for name, (network, shape) in NETWORKS.items():
        usual, masked = step(network(), shape), step(with_masks(network()), shape)
        times_s: dict[Callable[[], None], list[float]] = {usual: [], masked: []}
        for _ in range(ROUNDS):
            for run, spent_s in times_s.items():
                spent_s.append(seconds(run, clock))
        usual_s, masked_s = (statistics.median(times_s[run][WARM_UP_ROUNDS:]) for run in (usual, masked))
        share = dropout_share(usual)
        factor = 1 / (1 - (1 - masked_s / usual_s) / share)
        print(f"{name:22}{1e3 * usual_s:>16.1f}{usual_s / masked_s:>7.2f}x{share:>10.0%}{factor:>7.2f}x", flush=True)


def with_masks(network: nn.Module) -> nn.Module:
    """Run the printed code on a network."""
    exec(mask_dropout_code("network"), {"network": network})
    return network


def step(model: nn.Module, shape: tuple[int, ...]) -> Callable[[], None]:
    """Return a function that trains one step."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(shape), torch.randint(0, CLASSES, (shape[0],))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train() -> None:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train


def seconds(run: Callable[[], None], clock: Callable[[], float]) -> float:
    """Return the time of a step."""
    began_s = clock()
    for _ in range(STEPS):
        run()
    return (clock() - began_s) / STEPS


def dropout_share(run: Callable[[], None]) -> float:
    """Return the share of dropout in the time of a step's operators."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    averages = profiler.key_averages()
    dropout = sum(each.cpu_time_total for each in averages if each.key == "aten::dropout")
    return float(dropout / sum(each.self_cpu_time_total for each in averages))


if __name__ == "__main__":
    main()
