"""Knowledge tracing on a DataFrame of answers; every item filters the whole frame for its student, as in Riiid notebooks."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Answers of students to questions, sorted by time, in a CSV file."""
    rng = np.random.default_rng(0)
    users = scaled(2304, scale, 128)
    lengths = rng.integers(30, 400, users)
    user_id = np.repeat(rng.permutation(10 * users)[:users], lengths)
    frame = pd.DataFrame(
        {
            "timestamp": rng.integers(0, 10**9, len(user_id)),
            "user_id": user_id,
            "content_id": rng.integers(0, 3000, len(user_id)),
            "answered_correctly": (rng.random(len(user_id)) < 0.65).astype(int),
        }
    )
    frame.sort_values("timestamp").to_csv("train.csv", index=False)
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

MAX_SEQ, N_SKILL, EMBED, BATCH_SIZE, EPOCHS = 60, 3000, 64, 64, 3

def roc_auc_score(y, p):
    y, p = np.asarray(y), np.asarray(p)
    ranks = np.argsort(np.argsort(p)) + 1
    n_pos = y.sum()
    return (ranks[y == 1].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * (len(y) - n_pos))

train_df = pd.read_csv('train.csv', dtype={'timestamp': 'int64', 'user_id': 'int32', 'content_id': 'int16',
                                           'answered_correctly': 'int8'})
train_df = train_df.sort_values(['timestamp'], ascending=True).reset_index(drop=True)

class SAKTDataset(Dataset):
    def __init__(self, df, n_skill, max_seq):
        self.df = df
        self.n_skill, self.max_seq = n_skill, max_seq
        self.user_ids = df['user_id'].unique()

    def __len__(self):
        return len(self.user_ids)

    def __getitem__(self, index):
        user_id = self.user_ids[index]
        user_df = self.df[self.df['user_id'] == user_id].tail(self.max_seq)
        q_ = user_df['content_id'].values
        qa_ = user_df['answered_correctly'].values
        q = np.zeros(self.max_seq, dtype=int)
        qa = np.zeros(self.max_seq, dtype=int)
        q[-len(q_):] = q_
        qa[-len(qa_):] = qa_
        target_id = q[1:]
        label = qa[1:]
        x = q[:-1].copy()
        x += (qa[:-1] == 1) * self.n_skill
        return x, target_id, label

class SAKTModel(nn.Module):
    def __init__(self, n_skill, max_seq, embed_dim):
        super().__init__()
        self.embedding = nn.Embedding(2 * n_skill + 1, embed_dim)
        self.pos_embedding = nn.Embedding(max_seq - 1, embed_dim)
        self.e_embedding = nn.Embedding(n_skill + 1, embed_dim)
        self.multi_att = nn.MultiheadAttention(embed_dim=embed_dim, num_heads=4, dropout=0.2)
        self.layer_normal = nn.LayerNorm(embed_dim)
        self.ffn = nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.ReLU(), nn.Linear(embed_dim, embed_dim), nn.Dropout(0.2))
        self.pred = nn.Linear(embed_dim, 1)

    def forward(self, x, question_ids):
        device = x.device
        pos_id = torch.arange(x.size(1)).unsqueeze(0).to(device)
        x = (self.embedding(x) + self.pos_embedding(pos_id)).permute(1, 0, 2)
        e = self.e_embedding(question_ids).permute(1, 0, 2)
        att_mask = torch.triu(torch.ones(x.size(0), x.size(0), dtype=torch.bool, device=device), diagonal=1)
        att_output, att_weight = self.multi_att(e, x, x, attn_mask=att_mask)
        att_output = self.layer_normal(att_output + e).permute(1, 0, 2)
        x = self.layer_normal(self.ffn(att_output) + att_output)
        return self.pred(x).squeeze(-1)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
dataset = SAKTDataset(train_df, N_SKILL, MAX_SEQ)
dataloader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
model = SAKTModel(N_SKILL, MAX_SEQ, EMBED).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()

n_students = 0
for epoch in range(EPOCHS):
    model.train()
    train_loss, labels, outs = [], [], []
    for x, target_id, label in dataloader:
        x, target_id, label = x.to(device).long(), target_id.to(device).long(), label.to(device).float()
        optimizer.zero_grad()
        output = model(x, target_id)
        loss = criterion(output, label)
        loss.backward()
        optimizer.step()
        train_loss.append(loss.item())
        mask = target_id > 0
        labels.extend(label[mask].view(-1).data.cpu().numpy())
        outs.extend(torch.sigmoid(output)[mask].view(-1).data.cpu().numpy())
        n_students += len(x)
    print(f'epoch - {epoch} train_loss - {np.mean(train_loss):.3f} auc - {roc_auc_score(labels, outs):.3f}')
"""

CHANGES = (
    Change(
        "group by student once",
        "vectorize_items",
        edits={
            "        self.user_ids = df['user_id'].unique()\n": """        self.user_ids = df['user_id'].unique()
        self.group = {u: (g['content_id'].values, g['answered_correctly'].values) for u, g in df.groupby('user_id')}
""",
            """        user_df = self.df[self.df['user_id'] == user_id].tail(self.max_seq)
        q_ = user_df['content_id'].values
        qa_ = user_df['answered_correctly'].values
""": "        q_, qa_ = (column[-self.max_seq:] for column in self.group[user_id])\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("batches of 256", "larger_batch", edits={"EPOCHS = 60, 3000, 64, 64, 3": "EPOCHS = 60, 3000, 64, 256, 3"}),
    Change(
        "scores as arrays",
        "remove_python",
        edits={
            "labels.extend(": "labels.append(",
            "outs.extend(": "outs.append(",
            "roc_auc_score(labels, outs)": "roc_auc_score(np.concatenate(labels), np.concatenate(outs))",
        },
    ),
    Change(
        "no attention weights",
        "sdpa",
        edits={"attn_mask=att_mask)": "attn_mask=att_mask, need_weights=False)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_students", seconds=6)
