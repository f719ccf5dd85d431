"""SASRec with a sampler process and a queue, embeddings of padded histories, and a test user by user, as in SASRec.pytorch."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Histories of 1000 users over 3000 items; the last item of each is the test."""
    rng = np.random.default_rng(0)
    user_train, user_test = {}, {}
    for user in range(1, 1001):
        items = (rng.random(int(np.clip(rng.lognormal(2.8, 0.7), 6, 120))) ** 2 * 3000).astype(int) + 1
        user_train[user], user_test[user] = items[:-1].tolist(), [int(items[-1])]
    return {
        "user_train": user_train,
        "user_test": user_test,
        "usernum": 1000,
        "itemnum": 3000,
        "num_steps": scaled(100, scale, 2),
    }


CELL = """
import random
import time
from multiprocessing import Process, Queue
import numpy as np
import torch

class args:
    batch_size = 64
    lr = 0.001
    maxlen = 60
    hidden_units = 48
    num_blocks = 2
    num_epochs = 2
    num_heads = 1
    dropout_rate = 0.2
    device = 'cpu'

# sampler for batch generation
def random_neq(l, r, s):
    t = np.random.randint(l, r)
    while t in s:
        t = np.random.randint(l, r)
    return t

def sample_function(user_train, usernum, itemnum, batch_size, maxlen, result_queue, SEED):
    def sample():
        user = np.random.randint(1, usernum + 1)
        while len(user_train[user]) <= 1: user = np.random.randint(1, usernum + 1)
        seq = np.zeros([maxlen], dtype=np.int32)
        pos = np.zeros([maxlen], dtype=np.int32)
        neg = np.zeros([maxlen], dtype=np.int32)
        nxt = user_train[user][-1]
        idx = maxlen - 1
        ts = set(user_train[user])
        for i in reversed(user_train[user][:-1]):
            seq[idx] = i
            pos[idx] = nxt
            if nxt != 0: neg[idx] = random_neq(1, itemnum + 1, ts)
            nxt = i
            idx -= 1
            if idx == -1: break
        return (user, seq, pos, neg)

    np.random.seed(SEED)
    while True:
        one_batch = []
        for i in range(batch_size):
            one_batch.append(sample())
        result_queue.put(zip(*one_batch))

class WarpSampler(object):
    def __init__(self, User, usernum, itemnum, batch_size=64, maxlen=10, n_workers=1):
        self.result_queue = Queue(maxsize=n_workers * 10)
        self.processors = []
        for i in range(n_workers):
            self.processors.append(
                Process(target=sample_function, args=(User, usernum, itemnum, batch_size, maxlen, self.result_queue, np.random.randint(2e9))))
            self.processors[-1].daemon = True
            self.processors[-1].start()

    def next_batch(self):
        return self.result_queue.get()

    def close(self):
        for p in self.processors:
            p.terminate()
            p.join()

class PointWiseFeedForward(torch.nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super(PointWiseFeedForward, self).__init__()
        self.conv1 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = torch.nn.Dropout(p=dropout_rate)
        self.relu = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = torch.nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        outputs = self.dropout2(self.conv2(self.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2))))))
        outputs = outputs.transpose(-1, -2) # as Conv1D requires (N, C, Length)
        outputs += inputs
        return outputs

class SASRec(torch.nn.Module):
    def __init__(self, user_num, item_num, args):
        super(SASRec, self).__init__()
        self.dev = args.device
        self.item_emb = torch.nn.Embedding(item_num + 1, args.hidden_units, padding_idx=0)
        self.pos_emb = torch.nn.Embedding(args.maxlen + 1, args.hidden_units, padding_idx=0)
        self.emb_dropout = torch.nn.Dropout(p=args.dropout_rate)
        self.attention_layernorms = torch.nn.ModuleList()
        self.attention_layers = torch.nn.ModuleList()
        self.forward_layernorms = torch.nn.ModuleList()
        self.forward_layers = torch.nn.ModuleList()
        self.last_layernorm = torch.nn.LayerNorm(args.hidden_units, eps=1e-8)
        for _ in range(args.num_blocks):
            self.attention_layernorms.append(torch.nn.LayerNorm(args.hidden_units, eps=1e-8))
            self.attention_layers.append(torch.nn.MultiheadAttention(args.hidden_units, args.num_heads, args.dropout_rate))
            self.forward_layernorms.append(torch.nn.LayerNorm(args.hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(args.hidden_units, args.dropout_rate))

    def log2feats(self, log_seqs):
        seqs = self.item_emb(torch.LongTensor(log_seqs).to(self.dev))
        seqs *= self.item_emb.embedding_dim ** 0.5
        poss = np.tile(np.arange(1, log_seqs.shape[1] + 1), [log_seqs.shape[0], 1])
        poss *= (log_seqs != 0)
        seqs += self.pos_emb(torch.LongTensor(poss).to(self.dev))
        seqs = self.emb_dropout(seqs)
        tl = seqs.shape[1] # time dim len for enforce causality
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=self.dev))
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            seqs = Q + mha_outputs
            seqs = torch.transpose(seqs, 0, 1)
            seqs = self.forward_layernorms[i](seqs)
            seqs = self.forward_layers[i](seqs)
        return self.last_layernorm(seqs)

    def forward(self, user_ids, log_seqs, pos_seqs, neg_seqs): # for training
        log_feats = self.log2feats(log_seqs)
        pos_embs = self.item_emb(torch.LongTensor(pos_seqs).to(self.dev))
        neg_embs = self.item_emb(torch.LongTensor(neg_seqs).to(self.dev))
        return (log_feats * pos_embs).sum(dim=-1), (log_feats * neg_embs).sum(dim=-1)

    def predict(self, user_ids, log_seqs, item_indices): # for inference
        log_feats = self.log2feats(log_seqs)
        final_feat = log_feats[:, -1, :] # only use last QKV classifier
        item_embs = self.item_emb(torch.LongTensor(item_indices).to(self.dev)) # (U, I, C)
        return item_embs.matmul(final_feat.unsqueeze(-1)).squeeze(-1)

def evaluate(model, maxlen):
    NDCG, HT, valid_user = 0.0, 0.0, 0.0
    users = random.sample(range(1, usernum + 1), 200)
    for u in users:
        if len(user_train[u]) < 1 or len(user_test[u]) < 1: continue
        seq = np.zeros([maxlen], dtype=np.int32)
        idx = maxlen - 1
        for i in reversed(user_train[u]):
            seq[idx] = i
            idx -= 1
            if idx == -1: break
        rated = set(user_train[u])
        rated.add(0)
        item_idx = [user_test[u][0]]
        for _ in range(100):
            t = np.random.randint(1, itemnum + 1)
            while t in rated: t = np.random.randint(1, itemnum + 1)
            item_idx.append(t)
        predictions = -model.predict(*[np.array(l) for l in [[u], [seq], item_idx]])
        predictions = predictions[0]
        rank = predictions.argsort().argsort()[0].item()
        valid_user += 1
        if rank < 10:
            NDCG += 1 / np.log2(rank + 2)
            HT += 1
    return NDCG / valid_user, HT / valid_user

sampler = WarpSampler(user_train, usernum, itemnum, batch_size=args.batch_size, maxlen=args.maxlen, n_workers=1)
model = SASRec(usernum, itemnum, args).to(args.device)
for name, param in model.named_parameters():
    try:
        torch.nn.init.xavier_normal_(param.data)
    except:
        pass # just ignore those failed init layers
model.pos_emb.weight.data[0, :] = 0
model.item_emb.weight.data[0, :] = 0
model.train() # enable model training

num_batch = num_steps * 64 // args.batch_size
bce_criterion = torch.nn.BCEWithLogitsLoss()
adam_optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
T, t0, n_users = 0.0, time.time(), 0
for epoch in range(1, args.num_epochs + 1):
    for step in range(num_batch):
        u, seq, pos, neg = sampler.next_batch() # tuples to ndarray
        u, seq, pos, neg = np.array(u), np.array(seq), np.array(pos), np.array(neg)
        pos_logits, neg_logits = model(u, seq, pos, neg)
        pos_labels, neg_labels = torch.ones(pos_logits.shape, device=args.device), torch.zeros(neg_logits.shape, device=args.device)
        adam_optimizer.zero_grad()
        indices = np.where(pos != 0)
        loss = bce_criterion(pos_logits[indices], pos_labels[indices])
        loss += bce_criterion(neg_logits[indices], neg_labels[indices])
        loss.backward()
        adam_optimizer.step()
        n_users += len(u)
        if step % 10 == 0:
            print('loss in epoch {} iteration {}: {}'.format(epoch, step, loss.item()))
    model.eval()
    T += time.time() - t0
    print('Evaluating', end='')
    t_test = evaluate(model, args.maxlen)
    print('epoch:%d, time: %f(s), test (NDCG@10: %.4f, HR@10: %.4f)' % (epoch, T, t_test[0], t_test[1]))
    t0 = time.time()
    model.train()
sampler.close()
print('Done')
"""

_FORWARD = "        pos_logits, neg_logits = model(u, seq, pos, neg)\n"

CHANGES = (
    Change(
        "batches cut to their longest history",
        "padding",
        edits={
            _FORWARD: "        used = (seq != 0).any(0).argmax()\n"
            "        seq, pos, neg = seq[:, used:], pos[:, used:], neg[:, used:]\n" + _FORWARD
        },
    ),
    Change(
        "attention without its weights",
        "sdpa",
        edits={
            "attn_mask=attention_mask)\n": "attn_mask=attention_mask, need_weights=False)\n",
        },
    ),
    Change(
        "linear layers instead of convolutions of width one",
        "other",
        edits={
            "self.conv1 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)": "self.conv1 = torch.nn.Linear(hidden_units, hidden_units)",
            "self.conv2 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)": "self.conv2 = torch.nn.Linear(hidden_units, hidden_units)",
            "self.conv1(inputs.transpose(-1, -2))": "self.conv1(inputs)",
            "        outputs = outputs.transpose(-1, -2) # as Conv1D requires (N, C, Length)\n": "",
        },
    ),
    Change("no graph in the test", "no_grad", edits={"def evaluate(": "@torch.no_grad()\ndef evaluate("}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            _FORWARD: "        with torch.autocast('cpu', dtype=torch.bfloat16):\n    " + _FORWARD,
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"betas=(0.9, 0.98))": "betas=(0.9, 0.98), fused=True)"}),
    Change("batches of 128", "larger_batch", edits={"    batch_size = 64\n": "    batch_size = 128\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_users", seconds=10)
