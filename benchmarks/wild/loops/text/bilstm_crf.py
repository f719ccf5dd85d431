"""A BiLSTM-CRF for named entities, one sentence per step, with the forward algorithm of the well-known tutorial."""

import random
from pathlib import Path

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def _sentence(rng: random.Random) -> str:
    lines: list[str] = []
    while len(lines) < 6 or rng.random() < 0.85:
        kind = rng.choice(["O"] * 8 + ["PER", "LOC", "ORG", "MISC"])
        for part in range(1 if kind == "O" else rng.randint(1, 3)):
            word = f"{kind.lower()}{int(600 * rng.random() ** 2)}" if rng.random() < 0.9 else f"w{rng.randint(0, 400)}"
            lines.append(f"{word} {kind if kind == 'O' else ('I-' if part else 'B-') + kind}")
    return "\n".join(lines[:40]) + "\n\n"


def prepare(scale: float) -> Namespace:
    """Files in the format of CoNLL: a word and its tag per line, and an empty line after each sentence."""
    rng = random.Random(0)
    for name, count in (("train", scaled(128, scale, 8)), ("dev", scaled(32, scale, 4))):
        Path(f"{name}.txt").write_text("".join(_sentence(rng) for _ in range(count)))
    return {}


CELL = """
import torch
import torch.nn as nn
import torch.optim as optim

START_TAG, STOP_TAG = "<START>", "<STOP>"
EMBEDDING_DIM, HIDDEN_DIM, EPOCHS = 100, 128, 2

def read_conll(path):
    data, words, tags = [], [], []
    for line in open(path):
        line = line.strip()
        if not line:
            if words:
                data.append((words, tags))
            words, tags = [], []
            continue
        word, tag = line.split()
        words.append(word)
        tags.append(tag)
    return data

def prepare_sequence(seq, to_ix):
    return torch.tensor([to_ix.get(w, 0) for w in seq], dtype=torch.long)

def argmax(vec):
    _, idx = torch.max(vec, 1)
    return idx.item()

# Compute log sum exp in a numerically stable way for the forward algorithm
def log_sum_exp(vec):
    max_score = vec[0, argmax(vec)]
    max_score_broadcast = max_score.view(1, -1).expand(1, vec.size()[1])
    return max_score + torch.log(torch.sum(torch.exp(vec - max_score_broadcast)))

class BiLSTM_CRF(nn.Module):
    def __init__(self, vocab_size, tag_to_ix, embedding_dim, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.tag_to_ix = tag_to_ix
        self.tagset_size = len(tag_to_ix)
        self.word_embeds = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim // 2, num_layers=1, bidirectional=True)
        self.hidden2tag = nn.Linear(hidden_dim, self.tagset_size)
        # transitions[i, j] is the score of transitioning *to* i *from* j
        self.transitions = nn.Parameter(torch.randn(self.tagset_size, self.tagset_size))
        self.transitions.data[tag_to_ix[START_TAG], :] = -10000
        self.transitions.data[:, tag_to_ix[STOP_TAG]] = -10000
        self.hidden = self.init_hidden()

    def init_hidden(self):
        return (torch.randn(2, 1, self.hidden_dim // 2), torch.randn(2, 1, self.hidden_dim // 2))

    def _forward_alg(self, feats):
        init_alphas = torch.full((1, self.tagset_size), -10000.)
        init_alphas[0][self.tag_to_ix[START_TAG]] = 0.
        forward_var = init_alphas
        for feat in feats:
            alphas_t = []  # The forward tensors at this timestep
            for next_tag in range(self.tagset_size):
                emit_score = feat[next_tag].view(1, -1).expand(1, self.tagset_size)
                trans_score = self.transitions[next_tag].view(1, -1)
                next_tag_var = forward_var + trans_score + emit_score
                alphas_t.append(log_sum_exp(next_tag_var).view(1))
            forward_var = torch.cat(alphas_t).view(1, -1)
        terminal_var = forward_var + self.transitions[self.tag_to_ix[STOP_TAG]]
        return log_sum_exp(terminal_var)

    def _get_lstm_features(self, sentence):
        self.hidden = self.init_hidden()
        embeds = self.word_embeds(sentence).view(len(sentence), 1, -1)
        lstm_out, self.hidden = self.lstm(embeds, self.hidden)
        lstm_out = lstm_out.view(len(sentence), self.hidden_dim)
        return self.hidden2tag(lstm_out)

    def _score_sentence(self, feats, tags):
        score = torch.zeros(1)
        tags = torch.cat([torch.tensor([self.tag_to_ix[START_TAG]], dtype=torch.long), tags])
        for i, feat in enumerate(feats):
            score = score + self.transitions[tags[i + 1], tags[i]] + feat[tags[i + 1]]
        score = score + self.transitions[self.tag_to_ix[STOP_TAG], tags[-1]]
        return score

    def _viterbi_decode(self, feats):
        backpointers = []
        init_vvars = torch.full((1, self.tagset_size), -10000.)
        init_vvars[0][self.tag_to_ix[START_TAG]] = 0
        forward_var = init_vvars
        for feat in feats:
            bptrs_t, viterbivars_t = [], []
            for next_tag in range(self.tagset_size):
                next_tag_var = forward_var + self.transitions[next_tag]
                best_tag_id = argmax(next_tag_var)
                bptrs_t.append(best_tag_id)
                viterbivars_t.append(next_tag_var[0][best_tag_id].view(1))
            forward_var = (torch.cat(viterbivars_t) + feat).view(1, -1)
            backpointers.append(bptrs_t)
        terminal_var = forward_var + self.transitions[self.tag_to_ix[STOP_TAG]]
        best_tag_id = argmax(terminal_var)
        path_score = terminal_var[0][best_tag_id]
        best_path = [best_tag_id]
        for bptrs_t in reversed(backpointers):
            best_tag_id = bptrs_t[best_tag_id]
            best_path.append(best_tag_id)
        start = best_path.pop()
        assert start == self.tag_to_ix[START_TAG]
        best_path.reverse()
        return path_score, best_path

    def neg_log_likelihood(self, sentence, tags):
        feats = self._get_lstm_features(sentence)
        forward_score = self._forward_alg(feats)
        gold_score = self._score_sentence(feats, tags)
        return (forward_score - gold_score).sum()

    def forward(self, sentence):
        lstm_feats = self._get_lstm_features(sentence)
        return self._viterbi_decode(lstm_feats)

training_data, dev_data = read_conll('train.txt'), read_conll('dev.txt')
word_to_ix, tag_to_ix = {"<UNK>": 0}, {}
for sentence, tags in training_data:
    for word in sentence:
        if word not in word_to_ix:
            word_to_ix[word] = len(word_to_ix)
    for tag in tags:
        if tag not in tag_to_ix:
            tag_to_ix[tag] = len(tag_to_ix)
tag_to_ix[START_TAG] = len(tag_to_ix)
tag_to_ix[STOP_TAG] = len(tag_to_ix)

model = BiLSTM_CRF(len(word_to_ix), tag_to_ix, EMBEDDING_DIM, HIDDEN_DIM)
optimizer = optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-4)

n_sentences = 0
for epoch in range(EPOCHS):
    total = 0.
    for sentence, tags in training_data:
        model.zero_grad()
        sentence_in = prepare_sequence(sentence, word_to_ix)
        targets = prepare_sequence(tags, tag_to_ix)
        loss = model.neg_log_likelihood(sentence_in, targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
        n_sentences += 1
    # tag accuracy on the development set
    with torch.no_grad():
        correct, n_words = 0, 0
        for sentence, tags in dev_data:
            score, pred = model(prepare_sequence(sentence, word_to_ix))
            correct += sum(p == tag_to_ix[t] for p, t in zip(pred, tags))
            n_words += len(tags)
    print(f'epoch {epoch} loss {total / len(training_data):.3f} dev acc {correct / n_words:.3f}')
"""

_TAG_LOOP = CELL[CELL.index("            alphas_t = []  #") : CELL.index("        terminal_var = forward_var")]
_LOG_SUM_EXP = CELL[CELL.index("    max_score = vec[0") : CELL.index("class BiLSTM_CRF")]
_GOLD_LOOP = CELL[
    CELL.index("        for i, feat in enumerate(feats):") : CELL.index(
        "        score = score + self.transitions[self."
    )
]
_TRAIN_LOOP = CELL[
    CELL.index("    for sentence, tags in training_data:\n        model.") : CELL.index("    # tag accuracy")
]

CHANGES = (
    Change(
        "all tags at once in the forward algorithm",
        "remove_python",
        edits={
            _TAG_LOOP: "            scores = forward_var + self.transitions + feat.unsqueeze(1)\n"
            "            forward_var = torch.logsumexp(scores, 1).unsqueeze(0)\n"
        },
    ),
    Change("torch.logsumexp", "remove_syncs", edits={_LOG_SUM_EXP: "    return torch.logsumexp(vec, 1)\n\n"}),
    Change(
        "score of the tags by one index",
        "remove_python",
        edits={
            _GOLD_LOOP: "        score = score + self.transitions[tags[1:], tags[:-1]].sum()\n"
            "        score = score + feats[torch.arange(len(feats)), tags[1:]].sum()\n"
        },
    ),
    Change(
        "a step per 8 sentences",
        "larger_batch",
        edits={
            _TRAIN_LOOP: "    for start in range(0, len(training_data), 8):\n"
            "        batch = training_data[start:start + 8]\n"
            "        model.zero_grad()\n"
            "        losses = [model.neg_log_likelihood(prepare_sequence(s, word_to_ix),\n"
            "                                           prepare_sequence(t, tag_to_ix)) for s, t in batch]\n"
            "        loss = torch.stack(losses).mean()\n"
            "        loss.backward()\n"
            "        optimizer.step()\n"
            "        total += loss.item() * len(batch)\n"
            "        n_sentences += len(batch)\n"
        },
    ),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
    Change(
        "accuracy after the last epoch",
        "eval_less_often",
        edits={"in dev_data:": "in dev_data[:None if epoch == EPOCHS - 1 else 1]:"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_sentences", seconds=6)
