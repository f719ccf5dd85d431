"""A chess evaluator with `gc.collect()` after every batch, as notebooks have it that once ran out of memory."""

import json

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A JSON file of positions: the piece on each square, the castling rights and an engine's score."""
    rng = np.random.default_rng(0)
    count = scaled(3840, scale, 128)
    boards = np.where(rng.random((count, 64)) < 0.6, 0, rng.integers(1, 13, (count, 64)))
    scores = (np.isin(boards, range(1, 7)).sum(1) - np.isin(boards, range(7, 13)).sum(1)) * 40
    positions = [
        {"board": board.tolist(), "castling": [True, False, True, True], "cp": int(score)}
        for board, score in zip(boards, scores, strict=True)
    ]
    with open("positions.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(positions, file)
    return {}


CELL = """
import gc
import json
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
with open('positions.json') as f:
    positions = json.load(f)

class ChessDataset(Dataset):
    def __init__(self, positions):
        self.positions = positions

    def __len__(self):
        return len(self.positions)

    def __getitem__(self, idx):
        pos = self.positions[idx]
        board = F.one_hot(torch.tensor(pos['board']), 13)[:, 1:].float().t().view(12, 8, 8)
        target = torch.tensor(pos['cp'] / 400).tanh()
        return board, torch.tensor(pos['castling']).float(), target

class EvalNet(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.stem = nn.Conv2d(12, ch, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(ch, ch, 3, padding=1) for _ in range(3)])
        self.fc1 = nn.Linear(ch * 64 + 4, 64)
        self.fc2 = nn.Linear(64, 1)

    def forward(self, board, castling):
        x = F.relu(self.stem(board))
        for conv in self.convs:
            x = x + F.relu(conv(x))
        x = F.relu(self.fc1(torch.cat([x.flatten(1), castling], 1)))
        return torch.tanh(self.fc2(x)).squeeze(1)

model = EvalNet().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(ChessDataset(positions), batch_size=128, shuffle=True)

seen = 0
for epoch in range(1):
    epoch_loss = 0
    for board, castling, target in loader:
        board, castling, target = board.to(DEVICE), castling.to(DEVICE), target.to(DEVICE)
        optimizer.zero_grad()
        pred = model(board, castling)
        loss = F.mse_loss(pred, target)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(target)
        seen += len(target)
        # CUDA out of memory otherwise
        del board, castling, target, pred
        gc.collect()
        torch.cuda.empty_cache()
    print(f'Epoch {epoch + 1} loss {epoch_loss / seen:.5f}')
"""

CHANGES = (
    Change("no collection per batch", "gc", edits={"        gc.collect()\n        torch.cuda.empty_cache()\n": ""}),
    Change(
        "boards encoded once, whole batches",
        "batch_whole",
        edits={
            "        self.positions = positions\n": """        self.positions = positions
        self.board = torch.tensor([p['board'] for p in positions], dtype=torch.uint8)
        self.castling = torch.tensor([p['castling'] for p in positions]).float()
        self.target = (torch.tensor([p['cp'] for p in positions]) / 400).tanh()
""",
            """        pos = self.positions[idx]
        board = F.one_hot(torch.tensor(pos['board']), 13)[:, 1:].float().t().view(12, 8, 8)
        target = torch.tensor(pos['cp'] / 400).tanh()
        return board, torch.tensor(pos['castling']).float(), target
""": """        board = F.one_hot(self.board[idx].long(), 13)[..., 1:].float().transpose(1, 2).reshape(-1, 12, 8, 8)
        return board, self.castling[idx], self.target[idx]
""",
            "loader = DataLoader(ChessDataset(positions), batch_size=128, shuffle=True)": ""
            "train_set = ChessDataset(positions)\n"
            "sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(train_set), 128, False)\n"
            "loader = DataLoader(train_set, sampler=sampler, batch_size=None)",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "channels last",
        "channels_last",
        edits={"EvalNet().to(DEVICE)": "EvalNet().to(DEVICE, memory_format=torch.channels_last)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=8)
