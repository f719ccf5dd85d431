"""News recommendation from titles by multi-head self-attention, as in repositories that train NRMS on MIND."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Titles of 4 to 15 words in 14 categories, and impressions of users with a taste, as tab-separated files."""
    rng = np.random.default_rng(0)
    syllables = np.array(["ma", "ter", "lo", "fi", "san", "ke", "ru", "vel", "hi", "port", "dan", "e", "tic", "go"])
    words = np.array(["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(4000)])
    weights = 1 / np.arange(8, len(words) + 8)
    weights /= weights.sum()
    category_words = rng.choice(words, (14, 60))
    n_news = 1500
    category = rng.integers(0, 14, n_news)
    lines = []
    for news in range(n_news):
        length = int(np.clip(rng.normal(9, 2.5), 4, 15))
        own = rng.random(length) < 0.35
        title = np.where(own, rng.choice(category_words[category[news]], length), rng.choice(words, length, p=weights))
        lines.append(f"N{news}\tcat{category[news]}\t{' '.join(title).capitalize()}")
    popularity = rng.gumbel(0, 1, n_news)

    def impressions(count: int) -> list[str]:
        rows = []
        for index in range(count):
            taste = rng.gumbel(0, 2, 14)[category] + popularity
            order = np.argsort(-(taste + rng.gumbel(0, 1.5, n_news)))
            size = int(np.clip(rng.geometric(0.08), 2, 60))
            history = rng.permutation(order[1 : size + 1])
            others = rng.choice(order[200:], int(rng.integers(5, 20)), replace=False)
            shown = rng.permutation([f"N{order[0]}-1", *(f"N{news}-0" for news in others)])
            rows.append(f"{index + 1}\tU{index}\t{' '.join(f'N{news}' for news in history)}\t{' '.join(shown)}")
        return rows

    for split, count in (("train", scaled(2304, scale, 128)), ("dev", scaled(320, scale, 32))):
        folder = Path(f"data/{split}")
        folder.mkdir(parents=True)
        (folder / "news.tsv").write_text("\n".join(lines) + "\n")
        (folder / "behaviors.tsv").write_text("\n".join(impressions(count)) + "\n")
    return {}


CELL = """
import os
import random
import re
import time
from collections import Counter
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm


class Config:
    num_epochs = 1
    num_batches_show_loss = 20
    batch_size = 32
    learning_rate = 0.0005
    num_words_title = 16
    num_clicked_news_a_user = 20
    word_freq_threshold = 1
    negative_sampling_ratio = 4
    dropout_probability = 0.2
    word_embedding_dim = 100
    num_attention_heads = 10
    query_vector_dim = 100


device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')


# ---- preprocessing

def clean(title):
    return re.sub(r'[^a-z0-9 ]', ' ', title.lower()).split()


def parse_news(source, word2int):
    news = pd.read_table(os.path.join(source, 'news.tsv'), header=None, names=['id', 'category', 'title'])
    parsed = {}
    for row in news.itertuples(index=False):
        ids = [word2int.get(w, 0) for w in clean(row.title)][:Config.num_words_title]
        parsed[row.id] = ids + [0] * (Config.num_words_title - len(ids))
    return parsed


def parse_behaviors(source):
    behaviors = pd.read_table(os.path.join(source, 'behaviors.tsv'), header=None,
                              names=['impression_id', 'user', 'clicked_news', 'impressions'])
    behaviors['clicked_news'] = behaviors['clicked_news'].fillna(' ')
    return behaviors


def balance(behaviors):
    # one row for every click, with sampled negatives of the same impression
    rows = []
    for row in behaviors.itertuples(index=False):
        shown = row.impressions.split()
        positive = [x for x in shown if x.endswith('1')]
        negative = [x for x in shown if x.endswith('0')]
        random.shuffle(negative)
        for p in positive:
            sampled = negative[:Config.negative_sampling_ratio]
            if len(sampled) < Config.negative_sampling_ratio:
                continue
            pair = [x.split('-') for x in [p] + sampled]
            rows.append((row.user, row.clicked_news, ' '.join(n for n, _ in pair), ' '.join(c for _, c in pair)))
    return pd.DataFrame(rows, columns=['user', 'clicked_news', 'candidate_news', 'clicked'])


counter = Counter()
for title in pd.read_table('data/train/news.tsv', header=None)[2]:
    counter.update(clean(title))
word2int = {w: i + 1 for i, w in enumerate(w for w, c in counter.items() if c >= Config.word_freq_threshold)}
num_words = 1 + len(word2int)


class NewsDataset(Dataset):
    def __init__(self, parsed):
        self.items = [{'id': k, 'title': torch.tensor(v)} for k, v in parsed.items()]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        return self.items[idx]


class TrainDataset(Dataset):
    def __init__(self, behaviors, news_parsed):
        super().__init__()
        self.behaviors_parsed = behaviors
        self.news2dict = {k: {'title': torch.tensor(v)} for k, v in news_parsed.items()}
        self.padding = {'title': torch.tensor([0] * Config.num_words_title)}

    def __len__(self):
        return len(self.behaviors_parsed)

    def __getitem__(self, idx):
        item = {}
        row = self.behaviors_parsed.iloc[idx]
        item['clicked'] = list(map(int, row.clicked.split()))
        item['candidate_news'] = [self.news2dict[x] for x in row.candidate_news.split()]
        item['clicked_news'] = [self.news2dict[x] for x in row.clicked_news.split()[:Config.num_clicked_news_a_user]]
        repeated_times = Config.num_clicked_news_a_user - len(item['clicked_news'])
        item['clicked_news'] = [self.padding] * repeated_times + item['clicked_news']
        return item


# ---- model

class ScaledDotProductAttention(nn.Module):
    def __init__(self, d_k):
        super().__init__()
        self.d_k = d_k

    def forward(self, Q, K, V, attn_mask):
        scores = torch.matmul(Q, K.transpose(-1, -2)) / np.sqrt(self.d_k)
        scores = torch.exp(scores)
        scores = scores * attn_mask
        attn = scores / (torch.sum(scores, dim=-1, keepdim=True) + 1e-8)
        return torch.matmul(attn, V)


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, d_model, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.d_k = d_model // num_attention_heads
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.attention = ScaledDotProductAttention(self.d_k)
        for m in (self.W_Q, self.W_K, self.W_V):
            nn.init.xavier_uniform_(m.weight)

    def forward(self, x, mask):
        batch_size = x.size(0)
        q_s = self.W_Q(x).view(batch_size, -1, self.num_attention_heads, self.d_k).transpose(1, 2)
        k_s = self.W_K(x).view(batch_size, -1, self.num_attention_heads, self.d_k).transpose(1, 2)
        v_s = self.W_V(x).view(batch_size, -1, self.num_attention_heads, self.d_k).transpose(1, 2)
        attn_mask = mask[:, None, None, :].float()
        context = self.attention(q_s, k_s, v_s, attn_mask)
        return context.transpose(1, 2).contiguous().view(batch_size, -1, self.num_attention_heads * self.d_k)


class AdditiveAttention(nn.Module):
    def __init__(self, query_vector_dim, candidate_vector_dim):
        super().__init__()
        self.linear = nn.Linear(candidate_vector_dim, query_vector_dim)
        self.attention_query_vector = nn.Parameter(torch.empty(query_vector_dim).uniform_(-0.1, 0.1))

    def forward(self, candidate_vector, mask):
        temp = torch.tanh(self.linear(candidate_vector))
        scores = torch.matmul(temp, self.attention_query_vector).float()
        weights = F.softmax(scores.masked_fill(mask == 0, -1e9), dim=1)
        return torch.bmm(weights.unsqueeze(dim=1), candidate_vector.float()).squeeze(dim=1)


class NewsEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embedding = nn.Embedding(num_words, Config.word_embedding_dim, padding_idx=0)
        self.multihead_self_attention = MultiHeadSelfAttention(Config.word_embedding_dim, Config.num_attention_heads)
        self.additive_attention = AdditiveAttention(Config.query_vector_dim, Config.word_embedding_dim)

    def forward(self, news):
        title = news['title'].to(device)
        mask = title != 0
        news_vector = F.dropout(self.word_embedding(title), p=Config.dropout_probability, training=self.training)
        multihead_news_vector = self.multihead_self_attention(news_vector, mask)
        multihead_news_vector = F.dropout(multihead_news_vector, p=Config.dropout_probability, training=self.training)
        return self.additive_attention(multihead_news_vector, mask)


class UserEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.multihead_self_attention = MultiHeadSelfAttention(Config.word_embedding_dim, Config.num_attention_heads)
        self.additive_attention = AdditiveAttention(Config.query_vector_dim, Config.word_embedding_dim)

    def forward(self, user_vector, mask):
        return self.additive_attention(self.multihead_self_attention(user_vector, mask), mask)


class NRMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.news_encoder = NewsEncoder()
        self.user_encoder = UserEncoder()

    def forward(self, candidate_news, clicked_news):
        candidate_news_vector = torch.stack([self.news_encoder(x) for x in candidate_news], dim=1)
        clicked_news_vector = torch.stack([self.news_encoder(x) for x in clicked_news], dim=1)
        mask = torch.stack([(x['title'] != 0).any(dim=1) for x in clicked_news], dim=1).to(device)
        user_vector = self.user_encoder(clicked_news_vector, mask)
        return torch.bmm(candidate_news_vector, user_vector.unsqueeze(dim=-1)).squeeze(dim=-1)


# ---- evaluation

def dcg_score(y_true, y_score, k=10):
    order = np.argsort(y_score)[::-1]
    y_true = np.take(y_true, order[:k])
    return np.sum((2 ** y_true - 1) / np.log2(np.arange(len(y_true)) + 2))


def ndcg_score(y_true, y_score, k=10):
    return dcg_score(y_true, y_score, k) / dcg_score(y_true, y_true, k)


def mrr_score(y_true, y_score):
    y_true = np.take(y_true, np.argsort(y_score)[::-1])
    return np.sum(y_true / (np.arange(len(y_true)) + 1)) / np.sum(y_true)


@torch.no_grad()
def evaluate(model, directory):
    model.eval()
    news_dataset = NewsDataset(parse_news(directory, word2int))
    news2vector = {}
    for minibatch in DataLoader(news_dataset, batch_size=Config.batch_size * 4):
        for news_id, vector in zip(minibatch['id'], model.news_encoder(minibatch)):
            news2vector[news_id] = vector
    padding = torch.zeros_like(vector)

    aucs, mrrs, ndcg5s, ndcg10s = [], [], [], []
    for row in tqdm(parse_behaviors(directory).itertuples(index=False), desc='Calculating metrics'):
        history = row.clicked_news.split()[:Config.num_clicked_news_a_user]
        pads = Config.num_clicked_news_a_user - len(history)
        clicked = torch.stack([padding] * pads + [news2vector[x] for x in history]).unsqueeze(0)
        mask = torch.tensor([[0] * pads + [1] * len(history)]).to(device)
        user_vector = model.user_encoder(clicked, mask).squeeze(0)
        shown = [x.split('-') for x in row.impressions.split()]
        y_true = [int(c) for _, c in shown]
        y_pred = torch.matmul(torch.stack([news2vector[n] for n, _ in shown]), user_vector).tolist()
        aucs.append(roc_auc_score(y_true, y_pred))
        mrrs.append(mrr_score(y_true, y_pred))
        ndcg5s.append(ndcg_score(y_true, y_pred, 5))
        ndcg10s.append(ndcg_score(y_true, y_pred, 10))
    model.train()
    return np.mean(aucs), np.mean(mrrs), np.mean(ndcg5s), np.mean(ndcg10s)


# ---- training

train_behaviors = balance(parse_behaviors('data/train'))
dataset = TrainDataset(train_behaviors, parse_news('data/train', word2int))
print(f'Load training dataset with size {len(dataset)}, {num_words} words.')
dataloader = DataLoader(dataset, batch_size=Config.batch_size, shuffle=True)

model = NRMS().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=Config.learning_rate)
start_time = time.time()
loss_full = []
step, samples, best_auc = 0, 0, 0

for epoch in range(Config.num_epochs):
    for minibatch in tqdm(dataloader, desc='Training'):
        step += 1
        y_pred = model(minibatch['candidate_news'], minibatch['clicked_news'])
        y = torch.zeros(len(y_pred)).long().to(device)
        loss = criterion(y_pred, y)
        loss_full.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(y)
        if step % Config.num_batches_show_loss == 0:
            tqdm.write(f'Time {time.time() - start_time:.1f} s, batches {step}, current loss {loss.item():.4f}, '
                       f'average loss: {np.mean(loss_full):.4f}, latest average loss: {np.mean(loss_full[-50:]):.4f}')
    val_auc, val_mrr, val_ndcg5, val_ndcg10 = evaluate(model, 'data/dev')
    tqdm.write(f'Epoch {epoch + 1}, validation AUC: {val_auc:.4f}, MRR: {val_mrr:.4f}, nDCG@5: {val_ndcg5:.4f}, '
               f'nDCG@10: {val_ndcg10:.4f}')
    if val_auc > best_auc:
        best_auc = val_auc
        torch.save({'model_state_dict': model.state_dict(), 'optimizer_state_dict': optimizer.state_dict(),
                    'step': step, 'auc': val_auc}, f'ckpt-{step}.pth')
"""

ENCODE = CELL[
    CELL.index("        candidate_news_vector = torch.stack([self") : CELL.index(
        "        user_vector = self.user_encoder(cli"
    )
]
ONE_PASS = """        titles = torch.stack([x['title'] for x in candidate_news + clicked_news], dim=1).to(device)
        real = (titles != 0).any(dim=2)
        words = titles[real]
        encoded = self.news_encoder({'title': words[:, :int((words != 0).sum(1).max())]})
        vectors = encoded.new_zeros(*real.shape, encoded.size(1)).masked_scatter(real.unsqueeze(2), encoded)
        candidate_news_vector, clicked_news_vector = vectors.split([len(candidate_news), len(clicked_news)], dim=1)
        mask = real[:, len(candidate_news):]
"""
ATTENTION = CELL[CELL.index("        attn_mask = mask[:, None") : CELL.index("        return context.transpose(1, 2)")]
FUSED_ATTENTION = """        # rows that are padding only attend to all, as their result is masked later
        attn_mask = (mask != 0) | ~(mask != 0).any(dim=1, keepdim=True)
        context = F.scaled_dot_product_attention(q_s, k_s, v_s, attn_mask=attn_mask[:, None, None, :])
"""
LOADER = "dataloader = DataLoader(dataset, batch_size=Config.batch_size, shuffle=True)\n"
TABLES = f"""{LOADER}
news_ids = {{k: i + 1 for i, k in enumerate(dataset.news2dict)}}
titles = torch.stack([dataset.padding['title']] + [v['title'] for v in dataset.news2dict.values()])
candidates = torch.tensor([[news_ids[x] for x in row.split()] for row in train_behaviors['candidate_news']])
histories = [[news_ids[x] for x in row.split()[:Config.num_clicked_news_a_user]]
             for row in train_behaviors['clicked_news']]
histories = torch.tensor([[0] * (Config.num_clicked_news_a_user - len(row)) + row for row in histories])

def whole_batches():
    for index in torch.randperm(len(dataset)).split(Config.batch_size):
        yield {{'candidate_news': [{{'title': x}} for x in titles[candidates[index]].unbind(1)],
               'clicked_news': [{{'title': x}} for x in titles[histories[index]].unbind(1)]}}

"""
FORWARD = """        y_pred = model(minibatch['candidate_news'], minibatch['clicked_news'])
        y = torch.zeros(len(y_pred)).long().to(device)
        loss = criterion(y_pred, y)
"""

CHANGES = (
    Change("real titles of a batch in one pass", "padding", edits={ENCODE: ONE_PASS}),
    Change(
        "whole batches from a table of titles",
        "batch_whole",
        edits={LOADER: TABLES, "tqdm(dataloader, desc='Training')": "tqdm(whole_batches(), desc='Training')"},
    ),
    Change("fused attention", "sdpa", edits={ATTENTION: FUSED_ATTENTION}),
    Change("two workers", "num_workers", edits={LOADER: LOADER.replace("shuffle=True", "shuffle=True, num_workers=2")}),
    Change("batches of 128", "larger_batch", edits={"    batch_size = 32\n": "    batch_size = 128\n"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            + "".join(f"    {line}\n" for line in FORWARD.splitlines())
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=Config.learning_rate)": "lr=Config.learning_rate, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples", seconds=7)
