"""Neural matrix factorization on implicit feedback: four sampled negatives per click, HR@10 against 99 items per user, as in NCF repositories."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Clicks of users on popular items of their taste in a file u.train.rating, and a file u.test.negative."""
    rng = np.random.default_rng(0)
    users, items, clicks = scaled(600, scale, 60), 1600, 24
    user_taste, item_taste = rng.normal(0, 1, (users, 6)), rng.normal(0, 1, (items, 6))
    popularity = rng.gumbel(0, 1, items)
    train, test = [], []
    for user in range(users):
        order = np.argsort(-(item_taste @ user_taste[user] + popularity + rng.gumbel(0, 1, items)))
        train += [f"{user}\t{item}\t{rng.integers(1, 6)}\t0" for item in order[1:clicks]]
        negatives = rng.choice(order[clicks:], 99, replace=False)
        test.append("\t".join([f"({user},{order[0]})", *map(str, negatives)]))
    Path("u.train.rating").write_text("\n".join(train) + "\n")
    Path("u.test.negative").write_text("\n".join(test) + "\n")
    return {}


CELL = """
import time
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
import torch.nn as nn
import torch.utils.data as data

class args:
    lr = 0.001
    dropout = 0.0
    batch_size = 256
    epochs = 2
    top_k = 10
    factor_num = 32
    num_layers = 3
    num_ng = 4
    test_num_ng = 99

def load_all():
    train_data = pd.read_csv('u.train.rating', sep='\\t', header=None, names=['user', 'item'], usecols=[0, 1],
                             dtype={0: np.int32, 1: np.int32})
    test_data = []
    with open('u.test.negative', 'r') as fd:
        line = fd.readline()
        while line is not None and line != '':
            arr = line.split('\\t')
            u = eval(arr[0])[0]
            test_data.append([u, eval(arr[0])[1]])
            for i in arr[1:]:
                test_data.append([u, int(i)])
            line = fd.readline()
    user_num = train_data['user'].max() + 1
    item_num = max(train_data['item'].max(), max(i for _, i in test_data)) + 1
    train_data = train_data.values.tolist()
    # load ratings as a dok matrix
    train_mat = sp.dok_matrix((user_num, item_num), dtype=np.float32)
    for x in train_data:
        train_mat[x[0], x[1]] = 1.0
    return train_data, test_data, user_num, item_num, train_mat

class NCFData(data.Dataset):
    def __init__(self, features, num_item, train_mat=None, num_ng=0, is_training=None):
        super().__init__()
        self.features_ps = features
        self.num_item = num_item
        self.train_mat = train_mat
        self.num_ng = num_ng
        self.is_training = is_training
        self.labels = [0 for _ in range(len(features))]

    def ng_sample(self):
        assert self.is_training, 'no need to sampling when testing'
        self.features_ng = []
        for x in self.features_ps:
            u = x[0]
            for t in range(self.num_ng):
                j = np.random.randint(self.num_item)
                while (u, j) in self.train_mat:
                    j = np.random.randint(self.num_item)
                self.features_ng.append([u, j])
        labels_ps = [1 for _ in range(len(self.features_ps))]
        labels_ng = [0 for _ in range(len(self.features_ng))]
        self.features_fill = self.features_ps + self.features_ng
        self.labels_fill = labels_ps + labels_ng

    def __len__(self):
        return (self.num_ng + 1) * len(self.labels)

    def __getitem__(self, idx):
        features = self.features_fill if self.is_training else self.features_ps
        labels = self.labels_fill if self.is_training else self.labels
        return features[idx][0], features[idx][1], labels[idx]

class NCF(nn.Module):
    def __init__(self, user_num, item_num, factor_num, num_layers, dropout):
        super().__init__()
        self.embed_user_GMF = nn.Embedding(user_num, factor_num)
        self.embed_item_GMF = nn.Embedding(item_num, factor_num)
        self.embed_user_MLP = nn.Embedding(user_num, factor_num * (2 ** (num_layers - 1)))
        self.embed_item_MLP = nn.Embedding(item_num, factor_num * (2 ** (num_layers - 1)))
        MLP_modules = []
        for i in range(num_layers):
            input_size = factor_num * (2 ** (num_layers - i))
            MLP_modules.append(nn.Dropout(p=dropout))
            MLP_modules.append(nn.Linear(input_size, input_size // 2))
            MLP_modules.append(nn.ReLU())
        self.MLP_layers = nn.Sequential(*MLP_modules)
        self.predict_layer = nn.Linear(factor_num * 2, 1)
        for m in self.modules():
            if isinstance(m, nn.Embedding):
                nn.init.normal_(m.weight, std=0.01)
            elif isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, user, item):
        output_GMF = self.embed_user_GMF(user) * self.embed_item_GMF(item)
        interaction = torch.cat((self.embed_user_MLP(user), self.embed_item_MLP(item)), -1)
        output_MLP = self.MLP_layers(interaction)
        prediction = self.predict_layer(torch.cat((output_GMF, output_MLP), -1))
        return prediction.view(-1)

def hit(gt_item, pred_items):
    return 1 if gt_item in pred_items else 0

def ndcg(gt_item, pred_items):
    if gt_item in pred_items:
        return np.reciprocal(np.log2(pred_items.index(gt_item) + 2))
    return 0

def metrics(model, test_loader, top_k):
    HR, NDCG = [], []
    for user, item, label in test_loader:
        user, item = user.to(device), item.to(device)
        predictions = model(user, item)
        _, indices = torch.topk(predictions, top_k)
        recommends = torch.take(item, indices).cpu().numpy().tolist()
        gt_item = item[0].item()
        HR.append(hit(gt_item, recommends))
        NDCG.append(ndcg(gt_item, recommends))
    return np.mean(HR), np.mean(NDCG)

train_data, test_data, user_num, item_num, train_mat = load_all()
train_dataset = NCFData(train_data, item_num, train_mat, args.num_ng, True)
test_dataset = NCFData(test_data, item_num, train_mat, 0, False)
train_loader = data.DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=4)
test_loader = data.DataLoader(test_dataset, batch_size=args.test_num_ng + 1, shuffle=False, num_workers=0)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
model = NCF(user_num, item_num, args.factor_num, args.num_layers, args.dropout).to(device)
loss_function = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

count, best_hr = 0, 0
for epoch in range(args.epochs):
    model.train()
    start_time = time.time()
    train_loader.dataset.ng_sample()
    for user, item, label in train_loader:
        user, item = user.to(device), item.to(device)
        label = label.float().to(device)
        model.zero_grad()
        prediction = model(user, item)
        loss = loss_function(prediction, label)
        loss.backward()
        optimizer.step()
        count += len(label)

    model.eval()
    HR, NDCG = metrics(model, test_loader, args.top_k)
    elapsed_time = time.time() - start_time
    print('The time elapse of epoch {:03d}'.format(epoch) + ' is: ' +
          time.strftime('%H: %M: %S', time.gmtime(elapsed_time)))
    print('HR: {:.3f}\\tNDCG: {:.3f}'.format(HR, NDCG))
    if HR > best_hr:
        best_hr, best_ndcg, best_epoch = HR, NDCG, epoch
        torch.save(model.state_dict(), 'NeuMF.pth')
print('End. Best epoch {:03d}: HR = {:.3f}, NDCG = {:.3f}'.format(best_epoch, best_hr, best_ndcg))
"""

SAMPLING = CELL[CELL.index("        self.features_ng = []\n") : CELL.index("        labels_ps = [1 for")]
VECTORIZED = """        users = np.repeat([x[0] for x in self.features_ps], self.num_ng)
        if not hasattr(self, 'seen'):
            self.seen = self.train_mat.toarray() > 0
        items = np.random.randint(self.num_item, size=len(users))
        while (bad := self.seen[users, items]).any():
            items[bad] = np.random.randint(self.num_item, size=bad.sum())
        self.features_ng = np.stack([users, items], 1).tolist()
"""
METRICS = CELL[CELL.index("    for user, item, label in test_loader:") : CELL.index("    return np.mean(HR)")]
ONE_PASS = """    pairs = torch.tensor(test_loader.dataset.features_ps, device=device).view(-1, args.test_num_ng + 1, 2)
    with torch.no_grad():
        predictions = model(pairs[..., 0].flatten(), pairs[..., 1].flatten()).view(pairs.shape[:2])
    _, indices = torch.topk(predictions, top_k)
    for row in indices.tolist():
        HR.append(hit(0, row))
        NDCG.append(ndcg(0, row))
"""
LOADER = "train_loader = data.DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=4)"

CHANGES = (
    Change(
        "whole batches of tensors",
        "batch_whole",
        edits={
            "    for user, item, label in train_loader:": ""
            "    filled = torch.tensor(train_dataset.features_fill)\n"
            "    targets = torch.tensor(train_dataset.labels_fill)\n"
            "    for index in torch.randperm(len(filled)).split(args.batch_size):\n"
            "        (user, item), label = filled[index].unbind(1), targets[index]"
        },
    ),
    Change(
        "negatives sampled by NumPy",
        "remove_python",
        edits={SAMPLING: VECTORIZED},
    ),
    Change("no workers", "num_workers", edits={LOADER: LOADER.replace("num_workers=4", "num_workers=0")}),
    Change("all users tested in one pass", "other", edits={METRICS: ONE_PASS}),
    Change("batches of 1024", "larger_batch", edits={"batch_size = 256": "batch_size = 1024"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=args.lr)": "lr=args.lr, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="count", seconds=8)
