"""Trains a network of equal blocks on random data; the number of blocks sets the length of a step."""

import argparse

import torch


class Residual(torch.nn.Module):
    """A layer and its activation, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of the same shape, (batch, width)."""
        return features + torch.relu(self.linear(features))


def train(blocks: int, steps: int, width: int = 256, batch: int = 128) -> None:
    """Train this number of blocks for this number of steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Residual(width) for _ in range(blocks)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(batch * steps, width))
    loader = torch.utils.data.DataLoader(data, batch_size=batch)
    for (features,) in loader:
        optimizer.zero_grad()
        model(features).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    train(options.blocks, options.steps)
