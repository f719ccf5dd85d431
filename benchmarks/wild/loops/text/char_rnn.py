"""A recurrent network that reads names letter by letter, one name per step, as in the classic char-RNN tutorial."""

import string
import unicodedata
from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

LETTERS = string.ascii_letters + " .,;'"


def to_ascii(text: str) -> str:
    """The text without accents."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn" and c in LETTERS)


def prepare(scale: float) -> Namespace:
    """A text file of names per language."""
    rng = np.random.default_rng(0)
    Path("data/names").mkdir(parents=True)
    for language in ("Czech", "German", "Irish", "Italian", "Polish", "Spanish"):
        names = ["".join(rng.choice(list("abcdefghiklmnorstuvé"), rng.integers(4, 12))).title() for _ in range(200)]
        Path(f"data/names/{language}.txt").write_text("\n".join(names), encoding="utf-8")
    return {"n_iters": scaled(5000, scale, 8), "all_letters": LETTERS, "to_ascii": to_ascii}


CELL = """
import glob, os, random, time, math
import torch
import torch.nn as nn

category_lines = {}
for filename in sorted(glob.glob('data/names/*.txt')):
    category = os.path.splitext(os.path.basename(filename))[0]
    category_lines[category] = [to_ascii(line) for line in open(filename, encoding='utf-8').read().strip().split('\\n')]
all_categories = list(category_lines)
n_categories, n_letters = len(all_categories), len(all_letters)

def line_to_tensor(line):
    tensor = torch.zeros(len(line), 1, n_letters)
    for li, letter in enumerate(line):
        tensor[li][0][all_letters.find(letter)] = 1
    return tensor

class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.i2o = nn.Linear(input_size + hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, input, hidden):
        combined = torch.cat((input, hidden), 1)
        hidden = self.i2h(combined)
        output = self.softmax(self.i2o(combined))
        return output, hidden

    def init_hidden(self):
        return torch.zeros(1, self.hidden_size)

rnn = RNN(n_letters, 128, n_categories)
criterion = nn.NLLLoss()
learning_rate = 0.005

def train(category_tensor, line_tensor):
    hidden = rnn.init_hidden()
    rnn.zero_grad()
    for i in range(line_tensor.size()[0]):
        output, hidden = rnn(line_tensor[i], hidden)
    loss = criterion(output, category_tensor)
    loss.backward()
    for p in rnn.parameters():
        p.data.add_(p.grad.data, alpha=-learning_rate)
    return output, loss

current_loss, all_losses, names = 0, [], 0
start = time.time()
for it in range(1, n_iters + 1):
    category = random.choice(all_categories)
    line = random.choice(category_lines[category])
    category_tensor = torch.tensor([all_categories.index(category)], dtype=torch.long)
    output, loss = train(category_tensor, line_to_tensor(line))
    names += 1
    current_loss += loss.item()
    if it % 500 == 0:
        guess = all_categories[output.topk(1)[1][0].item()]
        print('%d %d%% (%ds) %.4f %s / %s' % (it, it / n_iters * 100, time.time() - start, loss, line, guess))
    if it % 100 == 0:
        all_losses.append(current_loss / 100)
        current_loss = 0
"""

CHANGES = (
    Change(
        "output after the last letter, input projected at once",
        "remove_python",
        edits={
            """    for i in range(line_tensor.size()[0]):
        output, hidden = rnn(line_tensor[i], hidden)
""": """    x = line_tensor[:, 0]
    w_x, w_h = rnn.i2h.weight[:, :n_letters], rnn.i2h.weight[:, n_letters:].t()
    projected = torch.nn.functional.linear(x, w_x, rnn.i2h.bias)
    for step in projected[:-1].split(1):
        hidden = torch.addmm(step, hidden, w_h)
    output = rnn.softmax(rnn.i2o(torch.cat((x[-1:], hidden), 1)))
"""
        },
    ),
    Change(
        "one-hot by scatter",
        "vectorize_items",
        edits={
            """    for li, letter in enumerate(line):
        tensor[li][0][all_letters.find(letter)] = 1
""": "    tensor[range(len(line)), 0, [all_letters.find(letter) for letter in line]] = 1\n"
        },
    ),
    Change("one thread", "threads", edits={"start = time.time()": "torch.set_num_threads(1)\nstart = time.time()"}),
    Change(
        "foreach update",
        "foreach_optimizer",
        edits={
            """    for p in rnn.parameters():
        p.data.add_(p.grad.data, alpha=-learning_rate)
""": """    params = list(rnn.parameters())
    with torch.no_grad():
        torch._foreach_add_(params, [p.grad for p in params], alpha=-learning_rate)
"""
        },
    ),
    Change(
        "eight names per step",
        "larger_batch",
        edits={
            "for it in range(1, n_iters + 1):": "for it in range(8, n_iters + 8, 8):",
            """    category = random.choice(all_categories)
    line = random.choice(category_lines[category])
    category_tensor = torch.tensor([all_categories.index(category)], dtype=torch.long)
    output, loss = train(category_tensor, line_to_tensor(line))
    names += 1
""": """    count = min(8, n_iters - names)
    chosen = [random.choice(all_categories) for _ in range(count)]
    lines = sorted((random.choice(category_lines[c]) for c in chosen), key=len)
    line, category = lines[-1], chosen[-1]
    tensor = torch.zeros(len(line), count, n_letters)
    for k, text in enumerate(lines):
        tensor[len(line) - len(text):, k] = line_to_tensor(text)[:, 0]
    category_tensor = torch.tensor([all_categories.index(c) for c in chosen])
    rnn.init_hidden = lambda: torch.zeros(count, rnn.hidden_size)
    output, loss = train(category_tensor, tensor)
    names += count
""",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="names", seconds=5)
