"""Translation with a GRU and additive attention: the decoder runs word by word in Python, all sentences padded to one length."""

import random

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Pairs of sentences as strings of words; the second is the first in another order."""
    pairs = []
    for _ in range(scaled(4480, scale, 64)):
        words = [f"w{random.randint(0, 800)}" for _ in range(random.randint(3, 14))]
        pairs.append((" ".join(words), " ".join(f"m{word[1:]}" for word in reversed(words))))
    return {"pairs": pairs}


CELL = """
import random, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset, DataLoader, RandomSampler

SOS_token, EOS_token, MAX_LENGTH = 0, 1, 24

class Lang:
    def __init__(self):
        self.word2index, self.n_words = {}, 2

    def addSentence(self, sentence):
        for word in sentence.split(' '):
            if word not in self.word2index:
                self.word2index[word] = self.n_words
                self.n_words += 1

class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        return self.gru(self.dropout(self.embedding(input)))

class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys), weights

class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.full((batch_size, 1), SOS_token, dtype=torch.long)
        decoder_hidden = encoder_hidden
        outputs, attentions = [], []
        for i in range(target_tensor.size(1)):
            output, decoder_hidden, attn = self.forward_step(decoder_input, decoder_hidden, encoder_outputs)
            outputs.append(output)
            attentions.append(attn)
            decoder_input = target_tensor[:, i].unsqueeze(1)
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1), decoder_hidden, torch.cat(attentions, dim=1)

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        context, attn = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, attn

input_lang, output_lang = Lang(), Lang()
for a, b in pairs:
    input_lang.addSentence(a)
    output_lang.addSentence(b)
input_ids = np.zeros((len(pairs), MAX_LENGTH), dtype=np.int64)
target_ids = np.zeros((len(pairs), MAX_LENGTH), dtype=np.int64)
for idx, (a, b) in enumerate(pairs):
    ia = [input_lang.word2index[w] for w in a.split(' ')] + [EOS_token]
    ib = [output_lang.word2index[w] for w in b.split(' ')] + [EOS_token]
    input_ids[idx, :len(ia)], target_ids[idx, :len(ib)] = ia, ib
train_data = TensorDataset(torch.LongTensor(input_ids), torch.LongTensor(target_ids))
train_dataloader = DataLoader(train_data, sampler=RandomSampler(train_data), batch_size=32)

hidden_size = 64
encoder = EncoderRNN(input_lang.n_words, hidden_size)
decoder = AttnDecoderRNN(hidden_size, output_lang.n_words)
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=0.001)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=0.001)
criterion = nn.NLLLoss(ignore_index=0)

start, translated, total_loss = time.time(), 0, 0
for step, (input_tensor, target_tensor) in enumerate(train_dataloader):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    encoder_outputs, encoder_hidden = encoder(input_tensor)
    decoder_outputs, _, _ = decoder(encoder_outputs, encoder_hidden, target_tensor)
    loss = criterion(decoder_outputs.view(-1, decoder_outputs.size(-1)), target_tensor.view(-1))
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    translated += len(input_tensor)
    total_loss += loss.item()
    if step % 20 == 0:
        print(f'{time.time() - start:.1f}s ({step / len(train_dataloader):.0%}) {total_loss / (step + 1):.4f}')
"""

CHANGES = (
    Change(
        "cut the padding of each batch",
        "padding",
        edits={
            "    encoder_optimizer.zero_grad()\n": "    input_tensor = input_tensor[:, :int((input_tensor != 0).sum(1).max())]\n"
            "    target_tensor = target_tensor[:, :int((target_tensor != 0).sum(1).max())].contiguous()\n    encoder_optimizer.zero_grad()\n"
        },
    ),
    Change(
        "project the keys once",
        "remove_python",
        edits={
            "def forward(self, query, keys):": "def forward(self, query, keys, projected):",
            "self.Wa(query) + self.Ua(keys)": "self.Wa(query) + projected",
            "        outputs, attentions = [], []\n": "        outputs, attentions = [], []\n        self.projected = self.attention.Ua(encoder_outputs)\n",
            "self.attention(hidden.permute(1, 0, 2), encoder_outputs)": "self.attention(hidden.permute(1, 0, 2), encoder_outputs, self.projected)",
        },
    ),
    Change(
        "embed and project the words of all steps at once",
        "other",
        edits={
            "            decoder_input = target_tensor[:, i].unsqueeze(1)\n        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)": "        return F.log_softmax(self.out(torch.cat(outputs, dim=1)), dim=-1)",
            "        decoder_hidden = encoder_hidden\n": "        decoder_hidden = encoder_hidden\n"
            "        embedded = self.dropout(self.embedding(torch.cat((decoder_input, target_tensor[:, :-1]), dim=1)))\n",
            "self.forward_step(decoder_input, decoder_hidden, encoder_outputs)": "self.forward_step(embedded[:, i:i + 1], decoder_hidden, encoder_outputs)",
            "    def forward_step(self, input, hidden, encoder_outputs):\n        embedded = self.dropout(self.embedding(input))\n": "    def forward_step(self, embedded, hidden, encoder_outputs):\n",
            "return self.out(output), hidden, attn": "return output, hidden, attn",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={
            "(encoder.parameters(), lr=0.001)": "(encoder.parameters(), lr=0.001, fused=True)",
            "(decoder.parameters(), lr=0.001)": "(decoder.parameters(), lr=0.001, fused=True)",
        },
    ),
    Change("batches of 64", "larger_batch", edits={"batch_size=32)": "batch_size=64)"}),
    Change("two workers", "num_workers", edits={"batch_size=32)": "batch_size=32, num_workers=2)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="translated", seconds=6)
