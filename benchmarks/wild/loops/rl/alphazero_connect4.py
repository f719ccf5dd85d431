"""AlphaZero for Connect Four: tree search in dictionaries, one position per call of the network, then training."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """How many games to play and how many batches to train per iteration."""
    return {"numEps": scaled(9, scale), "train_steps": scaled(64, scale, 4)}


CELL = """
import math
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

EPS = 1e-8


class dotdict(dict):
    def __getattr__(self, name):
        return self[name]


args = dotdict({
    'numIters': 2,
    'tempThreshold': 12,
    'numMCTSSims': 25,
    'cpuct': 1,
    'maxlenOfQueue': 20000,
    'lr': 0.001,
    'batch_size': 64,
    'num_channels': 64,
    'dropout': 0.3,
})


class Connect4Game:
    height, width, win_length = 6, 7, 4

    def getInitBoard(self):
        return np.zeros((self.height, self.width), dtype=np.int64)

    def getBoardSize(self):
        return self.height, self.width

    def getActionSize(self):
        return self.width

    def getNextState(self, board, player, action):
        b = np.copy(board)
        row = np.where(b[:, action] == 0)[0][-1]
        b[row, action] = player
        return b, -player

    def getValidMoves(self, board, player):
        return (board[0] == 0).astype(np.int64)

    def getGameEnded(self, board, player):
        for p in (player, -player):
            if self._wins(board == p):
                return 1 if p == player else -1
        if np.all(board[0] != 0):
            return 1e-4  # draw has a very little value
        return 0

    def _wins(self, pieces):
        n = self.win_length
        # horizontal, vertical
        for r in range(self.height):
            for c in range(self.width - n + 1):
                if pieces[r, c:c + n].all():
                    return True
        for c in range(self.width):
            for r in range(self.height - n + 1):
                if pieces[r:r + n, c].all():
                    return True
        # diagonals
        for r in range(self.height - n + 1):
            for c in range(self.width - n + 1):
                square = pieces[r:r + n, c:c + n]
                if square.diagonal().all() or square[::-1].diagonal().all():
                    return True
        return False

    def getCanonicalForm(self, board, player):
        return player * board

    def getSymmetries(self, board, pi):
        return [(board, pi), (board[:, ::-1], pi[::-1])]

    def stringRepresentation(self, board):
        return board.tobytes()


class Connect4NNet(nn.Module):
    def __init__(self, game, args):
        super().__init__()
        self.board_x, self.board_y = game.getBoardSize()
        self.action_size = game.getActionSize()
        self.args = args
        ch = args.num_channels
        self.conv1 = nn.Conv2d(1, ch, 3, stride=1, padding=1)
        self.conv2 = nn.Conv2d(ch, ch, 3, stride=1, padding=1)
        self.conv3 = nn.Conv2d(ch, ch, 3, stride=1)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(ch), nn.BatchNorm2d(ch), nn.BatchNorm2d(ch)
        self.fc1 = nn.Linear(ch * (self.board_x - 2) * (self.board_y - 2), 256)
        self.fc_bn1 = nn.BatchNorm1d(256)
        self.fc2 = nn.Linear(256, 128)
        self.fc_bn2 = nn.BatchNorm1d(128)
        self.fc3 = nn.Linear(128, self.action_size)
        self.fc4 = nn.Linear(128, 1)

    def forward(self, s):
        s = s.view(-1, 1, self.board_x, self.board_y)
        s = F.relu(self.bn1(self.conv1(s)))
        s = F.relu(self.bn2(self.conv2(s)))
        s = F.relu(self.bn3(self.conv3(s)))
        s = s.view(s.size(0), -1)
        s = F.dropout(F.relu(self.fc_bn1(self.fc1(s))), p=self.args.dropout, training=self.training)
        s = F.dropout(F.relu(self.fc_bn2(self.fc2(s))), p=self.args.dropout, training=self.training)
        return F.log_softmax(self.fc3(s), dim=1), torch.tanh(self.fc4(s))


class NNetWrapper:
    def __init__(self, game):
        self.nnet = Connect4NNet(game, args)
        self.board_x, self.board_y = game.getBoardSize()
        self.trained = 0

    def train(self, examples, steps):
        optimizer = optim.Adam(self.nnet.parameters(), lr=args.lr)
        self.nnet.train()
        pi_losses, v_losses = [], []
        for _ in range(steps * 64 // args.batch_size):
            sample_ids = np.random.randint(len(examples), size=args.batch_size)
            boards, pis, vs = list(zip(*[examples[i] for i in sample_ids]))
            boards = torch.FloatTensor(np.array(boards).astype(np.float64))
            target_pis = torch.FloatTensor(np.array(pis))
            target_vs = torch.FloatTensor(np.array(vs).astype(np.float64))

            # compute output
            out_pi, out_v = self.nnet(boards)
            l_pi = self.loss_pi(target_pis, out_pi)
            l_v = self.loss_v(target_vs, out_v)
            total_loss = l_pi + l_v

            # record loss
            pi_losses.append(l_pi.item())
            v_losses.append(l_v.item())

            # compute gradient and do SGD step
            optimizer.zero_grad()
            total_loss.backward()
            optimizer.step()
            self.trained += len(boards)
        print(f'Loss_pi {np.mean(pi_losses):.3f} Loss_v {np.mean(v_losses):.3f}')
        return total_loss.item()

    def predict(self, board):
        board = torch.FloatTensor(board.astype(np.float64))
        board = board.view(1, self.board_x, self.board_y)
        self.nnet.eval()
        with torch.no_grad():
            pi, v = self.nnet(board)
        return torch.exp(pi).data.cpu().numpy()[0], v.data.cpu().numpy()[0]

    def loss_pi(self, targets, outputs):
        return -torch.sum(targets * outputs) / targets.size()[0]

    def loss_v(self, targets, outputs):
        return torch.sum((targets - outputs.view(-1)) ** 2) / targets.size()[0]


class MCTS:
    def __init__(self, game, nnet, args):
        self.game = game
        self.nnet = nnet
        self.args = args
        self.Qsa = {}  # stores Q values for s,a
        self.Nsa = {}  # stores #times edge s,a was visited
        self.Ns = {}  # stores #times board s was visited
        self.Ps = {}  # stores initial policy (returned by neural net)
        self.Es = {}  # stores game.getGameEnded ended for board s
        self.Vs = {}  # stores game.getValidMoves for board s

    def getActionProb(self, canonicalBoard, temp=1):
        for i in range(self.args.numMCTSSims):
            self.search(canonicalBoard)
        s = self.game.stringRepresentation(canonicalBoard)
        counts = [self.Nsa[(s, a)] if (s, a) in self.Nsa else 0 for a in range(self.game.getActionSize())]
        if temp == 0:
            bestAs = np.array(np.argwhere(counts == np.max(counts))).flatten()
            probs = [0] * len(counts)
            probs[np.random.choice(bestAs)] = 1
            return probs
        counts = [x ** (1. / temp) for x in counts]
        counts_sum = float(sum(counts))
        return [x / counts_sum for x in counts]

    def search(self, canonicalBoard):
        s = self.game.stringRepresentation(canonicalBoard)
        if s not in self.Es:
            self.Es[s] = self.game.getGameEnded(canonicalBoard, 1)
        if self.Es[s] != 0:
            return -self.Es[s]
        if s not in self.Ps:
            # leaf node
            self.Ps[s], v = self.nnet.predict(canonicalBoard)
            valids = self.game.getValidMoves(canonicalBoard, 1)
            self.Ps[s] = self.Ps[s] * valids
            sum_Ps_s = np.sum(self.Ps[s])
            if sum_Ps_s > 0:
                self.Ps[s] /= sum_Ps_s
            else:
                self.Ps[s] = self.Ps[s] + valids
                self.Ps[s] /= np.sum(self.Ps[s])
            self.Vs[s] = valids
            self.Ns[s] = 0
            return -v
        valids = self.Vs[s]
        cur_best, best_act = -float('inf'), -1
        # pick the action with the highest upper confidence bound
        for a in range(self.game.getActionSize()):
            if valids[a]:
                if (s, a) in self.Qsa:
                    u = self.Qsa[(s, a)] + self.args.cpuct * self.Ps[s][a] * math.sqrt(self.Ns[s]) / (1 + self.Nsa[(s, a)])
                else:
                    u = self.args.cpuct * self.Ps[s][a] * math.sqrt(self.Ns[s] + EPS)
                if u > cur_best:
                    cur_best, best_act = u, a
        a = best_act
        next_s, next_player = self.game.getNextState(canonicalBoard, 1, a)
        next_s = self.game.getCanonicalForm(next_s, next_player)
        v = self.search(next_s)
        if (s, a) in self.Qsa:
            self.Qsa[(s, a)] = (self.Nsa[(s, a)] * self.Qsa[(s, a)] + v) / (self.Nsa[(s, a)] + 1)
            self.Nsa[(s, a)] += 1
        else:
            self.Qsa[(s, a)] = v
            self.Nsa[(s, a)] = 1
        self.Ns[s] += 1
        return -v


class Coach:
    def __init__(self, game, nnet, args):
        self.game, self.nnet, self.args = game, nnet, args
        self.trainExamplesHistory = deque([], maxlen=args.maxlenOfQueue)

    def executeEpisode(self):
        trainExamples = []
        board = self.game.getInitBoard()
        curPlayer, episodeStep = 1, 0
        mcts = MCTS(self.game, self.nnet, self.args)  # reset search tree
        while True:
            episodeStep += 1
            canonicalBoard = self.game.getCanonicalForm(board, curPlayer)
            temp = int(episodeStep < self.args.tempThreshold)
            pi = mcts.getActionProb(canonicalBoard, temp=temp)
            for b, p in self.game.getSymmetries(canonicalBoard, pi):
                trainExamples.append([b, curPlayer, p])
            action = np.random.choice(len(pi), p=pi)
            board, curPlayer = self.game.getNextState(board, curPlayer, action)
            r = self.game.getGameEnded(board, curPlayer)
            if r != 0:
                return [(x[0], x[2], r * ((-1) ** (x[1] != curPlayer))) for x in trainExamples]

    def selfPlay(self, episodes):
        for _ in range(episodes):
            self.trainExamplesHistory.extend(self.executeEpisode())

    def learn(self):
        for i in range(1, self.args.numIters + 1):
            start = time.time()
            self.selfPlay(numEps)
            self.last_loss = self.nnet.train(list(self.trainExamplesHistory), train_steps)
            print(f'Iter #{i}: {len(self.trainExamplesHistory)} examples, {time.time() - start:.1f} s')


game = Connect4Game()
nnet = NNetWrapper(game)
coach = Coach(game, nnet, args)
coach.learn()
"""

_PREDICT = CELL[CELL.index("    def predict(self, board):\n") : CELL.index("    def loss_pi(self")]
_PREDICT_MANY = """    def predict(self, boards):
        boards = torch.from_numpy(np.stack(boards)).float()
        self.nnet.eval()
        with torch.no_grad():
            pi, v = self.nnet(boards)
        return list(zip(torch.exp(pi).numpy(), v.numpy()))

"""
_SELF_PLAY = CELL[CELL.index("    def selfPlay(self, episodes):\n") : CELL.index("    def learn(self):\n")]
_SIDE_BY_SIDE = """    def selfPlay(self, episodes):
        # all games at once; each yields the board that it wants evaluated
        games = [self.executeEpisode() for _ in range(episodes)]
        boards = [next(g) for g in games]
        while games:
            playing, waiting = [], []
            for game, answer in zip(games, self.nnet.predict(boards)):
                try:
                    waiting.append(game.send(answer))
                    playing.append(game)
                except StopIteration as end:
                    self.trainExamplesHistory.extend(end.value)
            games, boards = playing, waiting

"""
_WINS = CELL[CELL.index("        n = self.win_length\n") : CELL.index("    def getCanonicalForm")]
_BITS = """        bits = int.from_bytes(np.packbits(np.pad(pieces, ((0, 0), (0, 1)))).tobytes(), 'big')
        for shift in (1, 7, 8, 9):
            pairs = bits & (bits >> shift)
            if pairs & (pairs >> 2 * shift):
                return True
        return False

"""

CHANGES = (
    Change(
        "all games side by side, their leaves in one batch",
        "other",
        edits={
            _PREDICT: _PREDICT_MANY,
            _SELF_PLAY: _SIDE_BY_SIDE,
            "            self.search(canonicalBoard)\n": "            yield from self.search(canonicalBoard)\n",
            "self.nnet.predict(canonicalBoard)": "yield canonicalBoard",
            "        v = self.search(next_s)\n": "        v = yield from self.search(next_s)\n",
            "pi = mcts.getActionProb(canonicalBoard, temp=temp)": "pi = yield from mcts.getActionProb(canonicalBoard, temp=temp)",
        },
    ),
    Change("four in a row by shifted bits", "remove_python", edits={_WINS: _BITS}),
    Change("one thread", "threads", edits={"EPS = 1e-8\n": "EPS = 1e-8\ntorch.set_num_threads(1)\n"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=args.lr)": "lr=args.lr, fused=True)"}),
    Change("training batches of 256", "larger_batch", edits={"'batch_size': 64,": "'batch_size': 256,"}),
    Change(
        "bfloat16 autocast for the network",
        "precision",
        edits={
            "            out_pi, out_v = self.nnet(boards)\n": "            with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "                out_pi, out_v = self.nnet(boards)\n",
            "            pi, v = self.nnet(board)\n": "            with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "                pi, v = self.nnet(board)\n",
            "torch.exp(pi).data.cpu().numpy()[0], v.data.cpu().numpy()[0]": ""
            "torch.exp(pi).float().data.cpu().numpy()[0], v.float().data.cpu().numpy()[0]",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="nnet.trained", loss="coach.last_loss", seconds=10)
