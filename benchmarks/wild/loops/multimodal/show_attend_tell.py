"""Image captions by an LSTM with attention over a grid of features, word by word as in the well-known tutorial."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Features of a frozen CNN (7 x 7 x 256) and captions of word numbers between <start> and <end>."""
    rng = np.random.default_rng(0)
    count, vocabulary = scaled(960, scale, 32), 3000
    np.save("features.npy", np.maximum(rng.normal(size=(count, 49, 256)), 0).astype(np.float32))
    captions = [
        [1, *(3 + (rng.random(rng.integers(7, 19)) ** 2 * (vocabulary - 3)).astype(int)).tolist(), 2]
        for _ in range(count)
    ]
    return {"captions": captions, "vocab_size": vocabulary}


CELL = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
from torch.nn.utils.rnn import pack_padded_sequence

max_len, batch_size, grad_clip, alpha_c, print_freq = 20, 32, 5., 1., 10
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

class CaptionDataset(Dataset):
    def __init__(self):
        self.features = np.load('features.npy')
        self.captions = [c + [0] * (max_len - len(c)) for c in captions]
        self.caplens = [len(c) for c in captions]

    def __getitem__(self, i):
        img = torch.FloatTensor(self.features[i])
        caption = torch.LongTensor(self.captions[i])
        caplen = torch.LongTensor([self.caplens[i]])
        return img, caption, caplen

    def __len__(self):
        return len(self.captions)

class Attention(nn.Module):
    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.full_att = nn.Linear(attention_dim, 1)
        self.relu = nn.ReLU()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, encoder_out, decoder_hidden):
        att1 = self.encoder_att(encoder_out)  # (batch_size, num_pixels, attention_dim)
        att2 = self.decoder_att(decoder_hidden)  # (batch_size, attention_dim)
        att = self.full_att(self.relu(att1 + att2.unsqueeze(1))).squeeze(2)
        alpha = self.softmax(att)
        attention_weighted_encoding = (encoder_out * alpha.unsqueeze(2)).sum(dim=1)
        return attention_weighted_encoding, alpha

class DecoderWithAttention(nn.Module):
    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=256, dropout=0.5):
        super().__init__()
        self.vocab_size = vocab_size
        self.attention = Attention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.dropout = nn.Dropout(p=dropout)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim, bias=True)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.sigmoid = nn.Sigmoid()
        self.fc = nn.Linear(decoder_dim, vocab_size)

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        batch_size, num_pixels = encoder_out.size(0), encoder_out.size(1)
        # Sort input data by decreasing lengths
        caption_lengths, sort_ind = caption_lengths.squeeze(1).sort(dim=0, descending=True)
        encoder_out = encoder_out[sort_ind]
        encoded_captions = encoded_captions[sort_ind]
        embeddings = self.embedding(encoded_captions)
        mean_encoder_out = encoder_out.mean(dim=1)
        h, c = self.init_h(mean_encoder_out), self.init_c(mean_encoder_out)
        decode_lengths = (caption_lengths - 1).tolist()

        predictions = torch.zeros(batch_size, max(decode_lengths), self.vocab_size).to(device)
        alphas = torch.zeros(batch_size, max(decode_lengths), num_pixels).to(device)
        for t in range(max(decode_lengths)):
            batch_size_t = sum([l > t for l in decode_lengths])
            awe, alpha = self.attention(encoder_out[:batch_size_t], h[:batch_size_t])
            gate = self.sigmoid(self.f_beta(h[:batch_size_t]))
            awe = gate * awe
            h, c = self.decode_step(torch.cat([embeddings[:batch_size_t, t, :], awe], dim=1),
                                    (h[:batch_size_t], c[:batch_size_t]))
            preds = self.fc(self.dropout(h))  # (batch_size_t, vocab_size)
            predictions[:batch_size_t, t, :] = preds
            alphas[:batch_size_t, t, :] = alpha
        return predictions, encoded_captions, decode_lengths, alphas, sort_ind

def accuracy(scores, targets, k):
    _, ind = scores.topk(k, 1, True, True)
    correct = ind.eq(targets.view(-1, 1).expand_as(ind))
    return correct.view(-1).float().sum().item() * (100.0 / targets.size(0))

train_loader = DataLoader(CaptionDataset(), batch_size=batch_size, shuffle=True)
decoder = DecoderWithAttention(attention_dim=128, embed_dim=128, decoder_dim=256, vocab_size=vocab_size).to(device)
decoder_optimizer = torch.optim.Adam(params=decoder.parameters(), lr=4e-4)
criterion = nn.CrossEntropyLoss().to(device)

n_captions, losses, top5accs = 0, [], []
for epoch in range(1):
    decoder.train()
    for i, (imgs, caps, caplens) in enumerate(train_loader):
        imgs, caps, caplens = imgs.to(device), caps.to(device), caplens.to(device)
        scores, caps_sorted, decode_lengths, alphas, sort_ind = decoder(imgs, caps, caplens)
        targets = caps_sorted[:, 1:]
        scores = pack_padded_sequence(scores, decode_lengths, batch_first=True).data
        targets = pack_padded_sequence(targets, decode_lengths, batch_first=True).data
        loss = criterion(scores, targets)
        loss += alpha_c * ((1. - alphas.sum(dim=1)) ** 2).mean()  # doubly stochastic attention

        decoder_optimizer.zero_grad()
        loss.backward()
        for group in decoder_optimizer.param_groups:
            for param in group['params']:
                if param.grad is not None:
                    param.grad.data.clamp_(-grad_clip, grad_clip)
        decoder_optimizer.step()

        losses.append(loss.item())
        top5accs.append(accuracy(scores, targets, 5))
        n_captions += imgs.size(0)
        if i % print_freq == 0:
            print('Epoch: [{0}][{1}/{2}]\\tLoss {3:.4f} ({4:.4f})\\tTop-5 Accuracy {5:.3f}'.format(
                epoch, i, len(train_loader), losses[-1], sum(losses) / len(losses), sum(top5accs) / len(top5accs)))
"""

HOIST = {
    "    def forward(self, encoder_out, decoder_hidden):\n"
    "        att1 = self.encoder_att(encoder_out)  # (batch_size, num_pixels, attention_dim)\n": "    def forward("
    "self, encoder_out, att1, decoder_hidden):\n",
    "        for t in range(max(decode_lengths)):\n": "        att1 = self.attention.encoder_att(encoder_out)\n"
    "        for t in range(max(decode_lengths)):\n",
    "self.attention(encoder_out[:batch_size_t], h[:batch_size_t])": "self.attention("
    "encoder_out[:batch_size_t], att1[:batch_size_t], h[:batch_size_t])",
}
SCORES_AT_ONCE = {
    "        predictions = torch.zeros(batch_size, max(decode_lengths), self.vocab_size).to(device)\n": ""
    "        hiddens = torch.zeros(batch_size, max(decode_lengths), h.size(1)).to(device)\n",
    "            preds = self.fc(self.dropout(h))  # (batch_size_t, vocab_size)\n"
    "            predictions[:batch_size_t, t, :] = preds\n": "            hiddens[:batch_size_t, t, :] = h\n",
    "        return predictions, encoded_captions,": "        packed = pack_padded_sequence("
    "hiddens, decode_lengths, batch_first=True).data\n"
    "        predictions = self.fc(self.dropout(packed))\n        return predictions, encoded_captions,",
    "        scores = pack_padded_sequence(scores, decode_lengths, batch_first=True).data\n": "",
}

CHANGES = (
    Change("attention of the features once", "remove_python", edits=HOIST),
    Change("scores of all words at once", "remove_python", edits=SCORES_AT_ONCE),
    Change("attention once and scores at once", "remove_python", edits=HOIST | SCORES_AT_ONCE),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        scores, caps_sorted, decode_lengths, alphas, sort_ind = decoder(imgs, caps, caplens)\n": "        "
            "with torch.autocast(device.type, dtype=torch.bfloat16):\n            "
            "scores, caps_sorted, decode_lengths, alphas, sort_ind = decoder(imgs, caps, caplens)\n"
        },
    ),
    Change("batches of 96", "larger_batch", edits={"print_freq = 20, 32,": "print_freq = 20, 96,"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=4e-4)": "lr=4e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_captions", seconds=6)
