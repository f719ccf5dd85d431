"""Five-fold cross validation of a small network without a DataLoader; the AUC is computed in Python after every epoch."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A matrix of features and binary targets, as of a Kaggle playground competition."""
    count = scaled(6000, scale, 100)
    features = np.random.randn(count, 40).astype(np.float32)
    logits = features[:, :5].sum(1) + features[:, 5] * features[:, 6]
    targets = (logits + np.random.randn(count) > 0).astype(np.float32)
    return {"X": features, "y": targets}


CELL = """
import copy
import numpy as np
import torch
import torch.nn as nn

N_FOLDS, EPOCHS, BATCH = 5, 6, 64

def auc(y_true, y_score):
    pos = [s for s, t in zip(y_score, y_true) if t == 1]
    neg = sorted(s for s, t in zip(y_score, y_true) if t == 0)
    wins = 0
    for p in pos:
        lo, hi = 0, len(neg)
        while lo < hi:
            mid = (lo + hi) // 2
            if neg[mid] < p:
                lo = mid + 1
            else:
                hi = mid
        wins += lo
    return wins / (len(pos) * len(neg))

def make_model():
    return nn.Sequential(nn.Linear(40, 128), nn.BatchNorm1d(128), nn.SiLU(), nn.Dropout(0.2),
                         nn.Linear(128, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Dropout(0.2), nn.Linear(64, 1))

rng = np.random.RandomState(42)
folds = np.array_split(rng.permutation(len(X)), N_FOLDS)
oof = np.zeros(len(X))
seen = 0
for fold in range(N_FOLDS):
    val_idx = folds[fold]
    trn_idx = np.concatenate([folds[j] for j in range(N_FOLDS) if j != fold])
    X_trn, y_trn = torch.tensor(X[trn_idx]), torch.tensor(y[trn_idx])
    X_val, y_val = torch.tensor(X[val_idx]), torch.tensor(y[val_idx])

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, epochs=EPOCHS,
                                                    steps_per_epoch=len(X_trn) // BATCH)
    criterion = nn.BCEWithLogitsLoss()
    best_auc, best_state = -1, None
    for epoch in range(EPOCHS):
        model.train()
        perm = torch.randperm(len(X_trn))
        for b in range(len(X_trn) // BATCH):
            idx = perm[b * BATCH:(b + 1) * BATCH]
            optimizer.zero_grad()
            loss = criterion(model(X_trn[idx]).squeeze(1), y_trn[idx])
            loss.backward()
            optimizer.step()
            scheduler.step()
            seen += len(idx)
        model.eval()
        with torch.no_grad():
            scores_trn = model(X_trn).squeeze(1).sigmoid()
            scores = model(X_val).squeeze(1).sigmoid()
        trn_auc, val_auc = auc(y_trn, scores_trn), auc(y_val, scores)
        print(f'fold {fold} epoch {epoch} train auc {trn_auc:.4f} val auc {val_auc:.4f}')
        if val_auc > best_auc:
            best_auc, best_state = val_auc, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    with torch.no_grad():
        oof[val_idx] = model(X_val).squeeze(1).sigmoid().numpy()
print('OOF AUC', auc(y.tolist(), oof.tolist()))
"""

CHANGES = (
    Change(
        "AUC by ranks in NumPy",
        "remove_python",
        edits={
            CELL[
                CELL.index("    pos = [s") : CELL.index("def make_model")
            ]: """    y_true, y_score = np.asarray(y_true), np.asarray(y_score)
    ranks = np.empty(len(y_score))
    ranks[np.argsort(y_score)] = np.arange(1, len(y_score) + 1)
    n_pos = int((y_true == 1).sum())
    n_neg = len(y_true) - n_pos
    return (ranks[y_true == 1].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg)

"""
        },
    ),
    Change(
        "AUC of lists instead of tensors",
        "remove_syncs",
        edits={
            "auc(y_trn, scores_trn), auc(y_val, scores)": "auc(y_trn.tolist(), scores_trn.tolist()), auc(y_val.tolist(), scores.tolist())"
        },
    ),
    Change(
        "no AUC of the training rows",
        "eval_less_often",
        edits={
            "            scores_trn = model(X_trn).squeeze(1).sigmoid()\n": "",
            "trn_auc, val_auc = auc(y_trn, scores_trn), auc(y_val, scores)": "trn_auc, val_auc = float('nan'), auc(y_val, scores)",
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "one thread",
        "threads",
        edits={"N_FOLDS, EPOCHS, BATCH =": "torch.set_num_threads(1)\nN_FOLDS, EPOCHS, BATCH ="},
    ),
    Change("compile", "compile", edits={"    model = make_model()": "    model = torch.compile(make_model())"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=5)
