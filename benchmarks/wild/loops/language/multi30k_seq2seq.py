"""Translation by nn.Transformer with tokenization in the collate function, and greedy decoding of single sentences for a BLEU score, as in the PyTorch tutorial."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, mask_dropout, scaled

SYLLABLES = [
    "ba",
    "ke",
    "di",
    "fo",
    "gu",
    "la",
    "mi",
    "ne",
    "po",
    "ru",
    "sa",
    "to",
    "ve",
    "wi",
    "zu",
    "schen",
    "er",
    "ung",
    "lich",
    "ein",
]


def prepare(scale: float) -> Namespace:
    """Captions of 5 to 35 words, and translations word by word with neighbours swapped now and then."""
    rng = np.random.default_rng(0)
    source = sorted({"".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(5000)})
    rng.shuffle(source)
    target = np.array([word[::-1] for word in source])
    rows = []
    for _ in range(scaled(1024, scale, 64) + scaled(24, scale)):
        length = int(np.clip(rng.lognormal(2.5, 0.35), 5, 35))
        ids = np.minimum(rng.zipf(1.25, length) - 1, len(source) - 1)
        swapped = ids.copy()
        place = int(rng.integers(0, length - 1))
        swapped[[place, place + 1]] = swapped[[place + 1, place]]
        rows.append((" ".join(source[i] for i in ids).capitalize() + " .", " ".join(target[swapped]) + " ."))
    count = scaled(1024, scale, 64)
    return {"train_data": rows[:count], "valid_data": rows[count:]}


CELL = """
import math
import re
from collections import Counter
from timeit import default_timer as timer
import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import Transformer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

SRC_LANGUAGE, TGT_LANGUAGE = 'de', 'en'
UNK_IDX, PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2, 3
special_symbols = ['<unk>', '<pad>', '<bos>', '<eos>']
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

def tokenize(text):
    return re.findall(r"\\w+|[^\\w\\s]", text.lower())

class Vocab:
    def __init__(self, sentences, min_freq=1):
        counter = Counter(token for sentence in sentences for token in tokenize(sentence))
        self.itos = special_symbols + [token for token, n in counter.most_common() if n >= min_freq]
        self.stoi = {token: i for i, token in enumerate(self.itos)}

    def __len__(self):
        return len(self.itos)

    def __call__(self, tokens):
        return [self.stoi.get(token, UNK_IDX) for token in tokens]

    def lookup_tokens(self, ids):
        return [self.itos[i] for i in ids]

vocab_transform = {SRC_LANGUAGE: Vocab([src for src, _ in train_data]),
                   TGT_LANGUAGE: Vocab([tgt for _, tgt in train_data])}

# helper Module that adds positional encoding to the token embedding to introduce a notion of word order.
class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 5000):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer('pos_embedding', pos_embedding.unsqueeze(-2))

    def forward(self, token_embedding: Tensor):
        return self.dropout(token_embedding + self.pos_embedding[:token_embedding.size(0), :])

class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)

class Seq2SeqTransformer(nn.Module):
    def __init__(self, num_encoder_layers, num_decoder_layers, emb_size, nhead, src_vocab_size, tgt_vocab_size,
                 dim_feedforward=512, dropout=0.1):
        super().__init__()
        self.transformer = Transformer(d_model=emb_size, nhead=nhead, num_encoder_layers=num_encoder_layers,
                                       num_decoder_layers=num_decoder_layers, dim_feedforward=dim_feedforward,
                                       dropout=dropout)
        self.generator = nn.Linear(emb_size, tgt_vocab_size)
        self.src_tok_emb = TokenEmbedding(src_vocab_size, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab_size, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout=dropout)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(src_emb, tgt_emb, src_mask, tgt_mask, None,
                                src_padding_mask, tgt_padding_mask, memory_key_padding_mask)
        return self.generator(outs)

    def encode(self, src, src_mask):
        return self.transformer.encoder(self.positional_encoding(self.src_tok_emb(src)), src_mask)

    def decode(self, tgt, memory, tgt_mask):
        return self.transformer.decoder(self.positional_encoding(self.tgt_tok_emb(tgt)), memory, tgt_mask)

def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones((sz, sz), device=DEVICE)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float('-inf')).masked_fill(mask == 1, float(0.0))

def create_mask(src, tgt):
    src_seq_len, tgt_seq_len = src.shape[0], tgt.shape[0]
    tgt_mask = generate_square_subsequent_mask(tgt_seq_len)
    src_mask = torch.zeros((src_seq_len, src_seq_len), device=DEVICE)
    src_padding_mask = (src == PAD_IDX).transpose(0, 1).float().masked_fill((src == PAD_IDX).T, float('-inf'))
    tgt_padding_mask = (tgt == PAD_IDX).transpose(0, 1).float().masked_fill((tgt == PAD_IDX).T, float('-inf'))
    return src_mask, tgt_mask, src_padding_mask, tgt_padding_mask

def sequential_transforms(*transforms):
    def func(txt_input):
        for transform in transforms:
            txt_input = transform(txt_input)
        return txt_input
    return func

def tensor_transform(token_ids):
    return torch.cat((torch.tensor([BOS_IDX]), torch.tensor(token_ids), torch.tensor([EOS_IDX])))

text_transform = {ln: sequential_transforms(tokenize, vocab_transform[ln], tensor_transform)
                  for ln in [SRC_LANGUAGE, TGT_LANGUAGE]}

def collate_fn(batch):
    src_batch, tgt_batch = [], []
    for src_sample, tgt_sample in batch:
        src_batch.append(text_transform[SRC_LANGUAGE](src_sample.rstrip('\\n')))
        tgt_batch.append(text_transform[TGT_LANGUAGE](tgt_sample.rstrip('\\n')))
    return pad_sequence(src_batch, padding_value=PAD_IDX), pad_sequence(tgt_batch, padding_value=PAD_IDX)

torch.manual_seed(0)
EMB_SIZE, NHEAD, FFN_HID_DIM, BATCH_SIZE = 128, 4, 256, 32
NUM_ENCODER_LAYERS, NUM_DECODER_LAYERS, NUM_EPOCHS = 2, 2, 2
transformer = Seq2SeqTransformer(NUM_ENCODER_LAYERS, NUM_DECODER_LAYERS, EMB_SIZE, NHEAD,
                                 len(vocab_transform[SRC_LANGUAGE]), len(vocab_transform[TGT_LANGUAGE]), FFN_HID_DIM)
for p in transformer.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
transformer = transformer.to(DEVICE)
loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD_IDX)
optimizer = torch.optim.Adam(transformer.parameters(), lr=0.0005, betas=(0.9, 0.98), eps=1e-9)
seen = 0

def compute_loss(model, src, tgt):
    tgt_input = tgt[:-1, :]
    src_mask, tgt_mask, src_padding_mask, tgt_padding_mask = create_mask(src, tgt_input)
    logits = model(src, tgt_input, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, src_padding_mask)
    tgt_out = tgt[1:, :]
    return loss_fn(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))

def train_epoch(model, optimizer):
    global seen
    model.train()
    losses = 0
    train_dataloader = DataLoader(train_data, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate_fn)
    for src, tgt in train_dataloader:
        src, tgt = src.to(DEVICE), tgt.to(DEVICE)
        optimizer.zero_grad()
        loss = compute_loss(model, src, tgt)
        loss.backward()
        optimizer.step()
        losses += loss.item()
        seen += src.shape[1]
    return losses / len(train_dataloader)

# function to generate output sequence using greedy algorithm
def greedy_decode(model, src, src_mask, max_len, start_symbol):
    src, src_mask = src.to(DEVICE), src_mask.to(DEVICE)
    memory = model.encode(src, src_mask)
    ys = torch.ones(1, 1).fill_(start_symbol).type(torch.long).to(DEVICE)
    for i in range(max_len - 1):
        tgt_mask = (generate_square_subsequent_mask(ys.size(0)).type(torch.bool)).to(DEVICE)
        out = model.decode(ys, memory, tgt_mask).transpose(0, 1)
        prob = model.generator(out[:, -1])
        _, next_word = torch.max(prob, dim=1)
        next_word = next_word.item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(next_word)], dim=0)
        if next_word == EOS_IDX:
            break
    return ys

@torch.no_grad()
def translate(model, src_sentence):
    model.eval()
    src = text_transform[SRC_LANGUAGE](src_sentence).view(-1, 1)
    num_tokens = src.shape[0]
    src_mask = torch.zeros(num_tokens, num_tokens).type(torch.bool)
    tgt_tokens = greedy_decode(model, src, src_mask, max_len=num_tokens + 5, start_symbol=BOS_IDX).flatten()
    tokens = vocab_transform[TGT_LANGUAGE].lookup_tokens(tgt_tokens.cpu().tolist())
    return ' '.join(tokens).replace('<bos>', '').replace('<eos>', '').strip()

def bleu_score(candidates, references, max_n=4):
    matches, totals, cand_len, ref_len = [0] * max_n, [0] * max_n, 0, 0
    for cand, ref in zip(candidates, references):
        cand_len, ref_len = cand_len + len(cand), ref_len + len(ref)
        for n in range(1, max_n + 1):
            cand_ngrams = Counter(tuple(cand[i:i + n]) for i in range(len(cand) - n + 1))
            ref_ngrams = Counter(tuple(ref[i:i + n]) for i in range(len(ref) - n + 1))
            matches[n - 1] += sum((cand_ngrams & ref_ngrams).values())
            totals[n - 1] += max(len(cand) - n + 1, 0)
    if min(matches) == 0:
        return 0.0
    precision = sum(math.log(m / t) for m, t in zip(matches, totals)) / max_n
    return math.exp(precision) * min(1.0, math.exp(1 - ref_len / cand_len))

for epoch in range(1, NUM_EPOCHS + 1):
    start_time = timer()
    train_loss = train_epoch(transformer, optimizer)
    end_time = timer()
    candidates = [translate(transformer, src).split() for src, _ in valid_data]
    bleu = bleu_score(candidates, [tokenize(tgt) for _, tgt in valid_data])
    print(f'Epoch: {epoch}, Train loss: {train_loss:.3f}, Val BLEU: {100 * bleu:.2f}, '
          f'Epoch time = {(end_time - start_time):.3f}s')
"""

DECODING = CELL[CELL.index("    src, src_mask = src.to(DEVICE), src_mask") : CELL.index("def bleu_score(")]
TOGETHER = """    memory = model.encode_padded(src.to(DEVICE))
    padding = (src == PAD_IDX).T.to(DEVICE)
    ys = torch.full((1, src.shape[1]), start_symbol, device=DEVICE)
    done = torch.zeros(src.shape[1], dtype=torch.bool, device=DEVICE)
    for i in range(max_len - 1):
        tgt_mask = generate_square_subsequent_mask(ys.size(0)).bool()
        out = model.transformer.decoder(model.positional_encoding(model.tgt_tok_emb(ys)), memory, tgt_mask,
                                        memory_key_padding_mask=padding)
        next_word = model.generator(out[-1]).argmax(1).masked_fill(done, PAD_IDX)
        ys = torch.cat([ys, next_word.unsqueeze(0)], dim=0)
        done |= next_word == EOS_IDX
        if done.all():
            break
    return ys

@torch.no_grad()
def translate_all(model, sentences):
    model.eval()
    srcs = [text_transform[SRC_LANGUAGE](sentence) for sentence in sentences]
    src = pad_sequence(srcs, padding_value=PAD_IDX)
    rows = greedy_decode(model, src, None, len(src) + 5, BOS_IDX).T.tolist()
    return [[t for t in vocab_transform[TGT_LANGUAGE].lookup_tokens(row[:len(s) + 5]) if t not in special_symbols]
            for row, s in zip(rows, srcs)]

"""
ENCODE_PADDED = """    def encode_padded(self, src):
        return self.transformer.encoder(self.positional_encoding(self.src_tok_emb(src)),
                                        src_key_padding_mask=(src == PAD_IDX).T)

    def decode(self, tgt, memory, tgt_mask):
"""

CHANGES = (
    mask_dropout("transformer = transformer.to(DEVICE)\n", "transformer"),
    Change(
        "greedy decoding of all sentences at once",
        "remove_python",
        edits={
            DECODING: TOGETHER,
            "    def decode(self, tgt, memory, tgt_mask):\n": ENCODE_PADDED,
            "[translate(transformer, src).split() for src, _ in valid_data]": "translate_all(transformer, [src for src, _ in valid_data])",
        },
    ),
    Change(
        "sentences tokenized once",
        "cache_items",
        edits={
            "text_transform = {ln: sequential_transforms(": "import functools\ntext_transform = {ln: functools.lru_cache(maxsize=None)(sequential_transforms(",
            "vocab_transform[ln], tensor_transform)\n": "vocab_transform[ln], tensor_transform))\n",
            "for epoch in range(1, NUM_EPOCHS + 1):\n": "for src, tgt in train_data:\n"
            "    text_transform[SRC_LANGUAGE](src), text_transform[TGT_LANGUAGE](tgt)\n"
            "for epoch in range(1, NUM_EPOCHS + 1):\n",
        },
    ),
    Change("batches of 64", "larger_batch", edits={"= 128, 4, 256, 32\n": "= 128, 4, 256, 64\n"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        loss = compute_loss(model, src, tgt)\n": "        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):\n"
            "            loss = compute_loss(model, src, tgt)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"eps=1e-9)": "eps=1e-9, fused=True)"}),
    Change(
        "two workers",
        "num_workers",
        edits={"shuffle=True, collate_fn=collate_fn)": "shuffle=True, collate_fn=collate_fn, num_workers=2)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="train_loss", seconds=6)
