"""Federated averaging over clients with few images each, as in Federated-Learning-PyTorch, which tests all clients every round."""

import numpy as np
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def mnist_cnn() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, 10),
    )


def prepare(scale: float) -> Namespace:
    """Grey images of 28 by 28 pixels; each of the clients has images of few classes."""
    rng = np.random.default_rng(0)
    num_users, per_user = 30, scaled(200, scale, 40)
    labels = rng.integers(0, 10, num_users * per_user)
    groups = np.argsort(labels, kind="stable").reshape(num_users, per_user)
    images = rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    return {
        "images": images,
        "labels": labels,
        "user_groups": {k: set(group.tolist()) for k, group in enumerate(groups)},
        "rounds": scaled(9, scale),
        "mnist_cnn": mnist_cnn,
    }


CELL = """
import copy
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = 'cuda' if torch.cuda.is_available() else 'cpu'
num_users, frac, local_ep, local_bs, lr = len(user_groups), 0.2, 3, 10, 0.01

class DatasetSplit(Dataset):
    def __init__(self, idxs):
        self.idxs = [int(i) for i in idxs]

    def __len__(self):
        return len(self.idxs)

    def __getitem__(self, item):
        image = (images[self.idxs[item]].astype(np.float32) / 255. - 0.1307) / 0.3081
        return torch.tensor(image).unsqueeze(0), torch.tensor(labels[self.idxs[item]])

class LocalUpdate:
    def __init__(self, idxs):
        idxs = list(idxs)
        split = int(0.8 * len(idxs))
        self.trainloader = DataLoader(DatasetSplit(idxs[:split]), batch_size=local_bs, shuffle=True)
        self.testloader = DataLoader(DatasetSplit(idxs[split:]), batch_size=max(1, (len(idxs) - split) // 4))
        self.criterion = nn.CrossEntropyLoss()

    def update_weights(self, model):
        global loss, n_images
        model.train()
        epoch_loss = []
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
        for ep in range(local_ep):
            batch_loss = []
            for x, y in self.trainloader:
                x, y = x.to(device), y.to(device)
                model.zero_grad()
                loss = self.criterion(model(x), y)
                loss.backward()
                optimizer.step()
                batch_loss.append(loss.item())
                n_images += len(y)
            epoch_loss.append(sum(batch_loss) / len(batch_loss))
        return model.state_dict(), sum(epoch_loss) / len(epoch_loss)

    def inference(self, model):
        model.eval()
        total, correct = 0.0, 0.0
        for x, y in self.testloader:
            x, y = x.to(device), y.to(device)
            pred = model(x).argmax(1)
            correct += torch.sum(torch.eq(pred, y)).item()
            total += len(y)
        return correct / total

def average_weights(w):
    w_avg = copy.deepcopy(w[0])
    for key in w_avg.keys():
        for i in range(1, len(w)):
            w_avg[key] += w[i][key]
        w_avg[key] = torch.div(w_avg[key], len(w))
    return w_avg

global_model = mnist_cnn().to(device)
n_images = 0
for epoch in range(rounds):
    local_weights, local_losses = [], []
    idxs_users = np.random.choice(range(num_users), max(int(frac * num_users), 1), replace=False)
    for idx in idxs_users:
        local_model = LocalUpdate(user_groups[idx])
        w, local_loss = local_model.update_weights(copy.deepcopy(global_model))
        local_weights.append(copy.deepcopy(w))
        local_losses.append(local_loss)
    global_model.load_state_dict(average_weights(local_weights))
    list_acc = []
    for c in range(num_users):
        list_acc.append(LocalUpdate(user_groups[c]).inference(global_model))
    print(f'Round {epoch + 1} | loss {np.mean(local_losses):.4f} | accuracy {100 * np.mean(list_acc):.2f}%')
"""

CHANGES = (
    Change(
        "test after the last round",
        "eval_less_often",
        edits={"    for c in range(num_users):\n": "    for c in range(num_users if epoch == rounds - 1 else 1):\n"},
    ),
    Change(
        "tensors of a client at once",
        "cache_items",
        edits={
            "        self.idxs = [int(i) for i in idxs]\n": """        self.idxs = [int(i) for i in idxs]
        self.x = (torch.from_numpy(images[self.idxs]).float().unsqueeze(1) / 255. - 0.1307) / 0.3081
        self.y = torch.from_numpy(labels[self.idxs])
""",
            """        image = (images[self.idxs[item]].astype(np.float32) / 255. - 0.1307) / 0.3081
        return torch.tensor(image).unsqueeze(0), torch.tensor(labels[self.idxs[item]])
""": """        return self.x[item], self.y[item]

    def __getitems__(self, items):
        return self.x[items], self.y[items]
""",
            "batch_size=local_bs, shuffle=True)": "batch_size=local_bs, shuffle=True, collate_fn=lambda b: b)",
            "(len(idxs) - split) // 4))": "(len(idxs) - split) // 4), collate_fn=lambda b: b)",
        },
    ),
    Change(
        "no gradients in the test",
        "no_grad",
        edits={"    def inference(self": "    @torch.no_grad()\n    def inference(self"},
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "local batches of 48",
        "larger_batch",
        edits={
            "local_ep, local_bs, lr = len(user_groups), 0.2, 3, 10,": "local_ep, local_bs, lr = len(user_groups), 0.2, 3, 48,"
        },
    ),
    Change("fused SGD", "fused_optimizer", edits={"momentum=0.5)": "momentum=0.5, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", seconds=5)
