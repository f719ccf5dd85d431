"""Speaker verification by an LSTM and the GE2E loss on log-mel features, one npy file per speaker, as in GE2E repositories."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Log-mel features of 20 utterances per speaker, shaped by the speaker's spectrum and slow movements."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 80), ("test", 16)):
        folder = Path(f"{part}_tisv")
        folder.mkdir()
        for speaker in range(count):
            spectrum = np.cumsum(rng.normal(0, 0.5, 40))[None, :, None]
            slow = np.repeat(rng.normal(0, 1, (20, 40, 18)), 10, axis=2)
            features = spectrum + slow + rng.normal(0, 0.5, (20, 40, 180))
            np.save(folder / f"speaker{speaker}.npy", features.astype(np.float32))
    return {"num_epochs": scaled(3, scale)}


CELL = """
import os
import random
import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

class hp:
    train_path, test_path = './train_tisv', './test_tisv'
    nmels, tisv_frame = 40, 160
    hidden, num_layer, proj = 192, 3, 128
    N, M = 8, 5            # number of speakers in batch, number of utterances per speaker
    lr = 0.01
    epochs = num_epochs
    log_interval = 5
    checkpoint_dir = './speech_id_checkpoint'

class SpeakerDatasetTIMITPreprocessed(Dataset):
    def __init__(self, path, utter_num, shuffle=True):
        self.path = path
        self.utter_num = utter_num
        self.file_list = os.listdir(self.path)
        self.shuffle = shuffle

    def __len__(self):
        return len(self.file_list)

    def __getitem__(self, idx):
        np_file_list = os.listdir(self.path)
        if self.shuffle:
            selected_file = random.sample(np_file_list, 1)[0]  # select random speaker
        else:
            selected_file = np_file_list[idx]
        utters = np.load(os.path.join(self.path, selected_file))  # load utterance spectrogram of selected speaker
        utter_index = np.random.randint(0, utters.shape[0], self.utter_num)
        utterance = utters[utter_index]
        utterance = utterance[:, :, :hp.tisv_frame]
        utterance = torch.tensor(np.transpose(utterance, axes=(0, 2, 1)))  # transpose [batch, frames, n_mels]
        return utterance

class SpeechEmbedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.LSTM_stack = nn.LSTM(hp.nmels, hp.hidden, num_layers=hp.num_layer, batch_first=True)
        for name, param in self.LSTM_stack.named_parameters():
            if 'bias' in name:
                nn.init.constant_(param, 0.0)
            elif 'weight' in name:
                nn.init.xavier_normal_(param)
        self.projection = nn.Linear(hp.hidden, hp.proj)

    def forward(self, x):
        x, _ = self.LSTM_stack(x.float())  # (batch, frames, n_mels)
        # only use last frame
        x = x[:, x.size(1) - 1]
        x = self.projection(x.float())
        return x / torch.norm(x, dim=1).unsqueeze(1)

def get_centroids(embeddings):
    centroids = []
    for speaker in embeddings:
        centroid = 0
        for utterance in speaker:
            centroid = centroid + utterance
        centroid = centroid / len(speaker)
        centroids.append(centroid)
    return torch.stack(centroids)

def get_centroid(embeddings, speaker_num, utterance_num):
    centroid = 0
    for utterance_id, utterance in enumerate(embeddings[speaker_num]):
        if utterance_id == utterance_num:
            continue
        centroid = centroid + utterance
    return centroid / (len(embeddings[speaker_num]) - 1)

def get_cossim(embeddings, centroids):
    # calculates cosine similarity matrix; requires (N, M, feature) input
    cossim = torch.zeros(embeddings.size(0), embeddings.size(1), centroids.size(0))
    for speaker_num, speaker in enumerate(embeddings):
        for utterance_num, utterance in enumerate(speaker):
            for centroid_num, centroid in enumerate(centroids):
                if speaker_num == centroid_num:
                    centroid = get_centroid(embeddings, speaker_num, utterance_num)
                output = F.cosine_similarity(utterance, centroid, dim=0) + 1e-6
                cossim[speaker_num][utterance_num][centroid_num] = output
    return cossim

def calc_loss(sim_matrix):
    # calculates loss from (N, M, K) similarity matrix
    per_embedding_loss = torch.zeros(sim_matrix.size(0), sim_matrix.size(1))
    for j in range(len(sim_matrix)):
        for i in range(sim_matrix.size(1)):
            per_embedding_loss[j][i] = -(sim_matrix[j][i][j] - ((torch.exp(sim_matrix[j][i]).sum() + 1e-6).log_()))
    return per_embedding_loss.sum(), per_embedding_loss

class GE2ELoss(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(10.0).to(device), requires_grad=True)
        self.b = nn.Parameter(torch.tensor(-5.0).to(device), requires_grad=True)
        self.device = device

    def forward(self, embeddings):
        torch.clamp(self.w, 1e-6)
        centroids = get_centroids(embeddings)
        cossim = get_cossim(embeddings, centroids)
        sim_matrix = self.w * cossim.to(self.device) + self.b
        loss, _ = calc_loss(sim_matrix)
        return loss

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_dataset = SpeakerDatasetTIMITPreprocessed(hp.train_path, hp.M)
train_loader = DataLoader(train_dataset, batch_size=hp.N, shuffle=True, num_workers=0, drop_last=True)

embedder_net = SpeechEmbedder().to(device)
ge2e_loss = GE2ELoss(device)
# both net and loss have trainable parameters
optimizer = torch.optim.SGD([
    {'params': embedder_net.parameters()},
    {'params': ge2e_loss.parameters()}
], lr=hp.lr)
os.makedirs(hp.checkpoint_dir, exist_ok=True)

embedder_net.train()
iteration, utterances_seen = 0, 0
for e in range(hp.epochs):
    total_loss = 0
    for batch_id, mel_db_batch in enumerate(train_loader):
        mel_db_batch = mel_db_batch.to(device)
        n_speakers = mel_db_batch.size(0)
        mel_db_batch = torch.reshape(mel_db_batch, (n_speakers * hp.M, mel_db_batch.size(2), mel_db_batch.size(3)))
        perm = random.sample(range(0, n_speakers * hp.M), n_speakers * hp.M)
        unperm = list(perm)
        for i, j in enumerate(perm):
            unperm[j] = i
        mel_db_batch = mel_db_batch[perm]
        # gradient accumulates
        optimizer.zero_grad()

        embeddings = embedder_net(mel_db_batch)
        embeddings = embeddings[unperm]
        embeddings = torch.reshape(embeddings, (n_speakers, hp.M, embeddings.size(1)))

        # get loss, call backward, step optimizer
        loss = ge2e_loss(embeddings)  # wants (Speaker, Utterances, embedding)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(embedder_net.parameters(), 3.0)
        torch.nn.utils.clip_grad_norm_(ge2e_loss.parameters(), 1.0)
        optimizer.step()

        total_loss = total_loss + loss.item()
        iteration += 1
        utterances_seen += n_speakers * hp.M
        if (batch_id + 1) % hp.log_interval == 0:
            print("{0}\\tEpoch:{1}[{2}/{3}],Iteration:{4}\\tLoss:{5:.4f}\\tTLoss:{6:.4f}\\t".format(
                time.ctime(), e + 1, batch_id + 1, len(train_dataset) // hp.N, iteration, loss.item(),
                total_loss / (batch_id + 1)))
    ckpt_model_filename = 'ckpt_epoch_' + str(e + 1) + '_batch_id_' + str(batch_id + 1) + '.pth'
    torch.save(embedder_net.state_dict(), os.path.join(hp.checkpoint_dir, ckpt_model_filename))

# equal error rate on other speakers
embedder_net.eval()
test_loader = DataLoader(SpeakerDatasetTIMITPreprocessed(hp.test_path, 6), batch_size=4, shuffle=True, drop_last=True)
avg_EER = 0
for batch_id, mel_db_batch in enumerate(test_loader):
    enrollment_batch, verification_batch = torch.split(mel_db_batch.to(device), 3, dim=1)
    with torch.no_grad():
        enrollment = embedder_net(enrollment_batch.reshape(12, hp.tisv_frame, hp.nmels)).view(4, 3, -1)
        verification = embedder_net(verification_batch.reshape(12, hp.tisv_frame, hp.nmels)).view(4, 3, -1)
        sim_matrix = get_cossim(verification, get_centroids(enrollment))
    diff, EER = 1, 0
    for thres in [0.01 * i + 0.5 for i in range(50)]:
        sim_matrix_thresh = sim_matrix > thres
        FAR = sum([sim_matrix_thresh[i].float().sum() - sim_matrix_thresh[i, :, i].float().sum() for i in range(4)]) / 3.0 / 3 / 4
        FRR = sum([3 - sim_matrix_thresh[i, :, i].float().sum() for i in range(4)]) / 3 / 4
        if diff > abs(FAR - FRR):
            diff, EER = abs(FAR - FRR), (FAR + FRR) / 2
    avg_EER += float(EER)
print('EER across {0} batches: {1:.4f}'.format(batch_id + 1, avg_EER / (batch_id + 1)))
"""

COSSIM = CELL[CELL.index("    cossim = torch.zeros(") : CELL.index("def calc_loss")]
LOSS = CELL[CELL.index("    per_embedding_loss = torch.zeros(") : CELL.index("class GE2ELoss")]

CHANGES = (
    Change(
        "similarities and loss without loops",
        "remove_python",
        edits={
            COSSIM: "    own = (embeddings.sum(1, keepdim=True) - embeddings) / (embeddings.size(1) - 1)\n"
            "    others = F.cosine_similarity(embeddings.unsqueeze(2), centroids, dim=-1)\n"
            "    same = F.cosine_similarity(embeddings, own, dim=-1).unsqueeze(2)\n"
            "    diagonal = torch.eye(len(centroids), dtype=torch.bool, device=centroids.device).unsqueeze(1)\n"
            "    return torch.where(diagonal, same, others) + 1e-6\n\n",
            LOSS: "    own = sim_matrix.diagonal(dim1=0, dim2=2).T\n"
            "    per_embedding_loss = (torch.exp(sim_matrix).sum(-1) + 1e-6).log() - own\n"
            "    return per_embedding_loss.sum(), per_embedding_loss\n\n",
        },
    ),
    Change(
        "files read once",
        "cache_items",
        edits={
            "        self.shuffle = shuffle\n": ""
            "        self.shuffle = shuffle\n"
            "        self.arrays = {name: np.load(os.path.join(path, name)) for name in self.file_list}\n",
            "        np_file_list = os.listdir(self.path)\n": "        np_file_list = self.file_list\n",
            "utters = np.load(os.path.join(self.path, selected_file))": "utters = self.arrays[selected_file]",
        },
    ),
    Change("16 speakers per batch", "larger_batch", edits={"    N, M = 8, 5 ": "    N, M = 16, 5 "}),
    Change("two workers", "num_workers", edits={"shuffle=True, num_workers=0,": "shuffle=True, num_workers=2,"}),
    Change(
        "one thread", "threads", edits={"device = torch.device(": "torch.set_num_threads(1)\ndevice = torch.device("}
    ),
    Change(
        "no garbage collection",
        "gc",
        edits={"import os\nimport random\n": "import gc\nimport os\nimport random\ngc.disable()\n"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="utterances_seen", seconds=8)
