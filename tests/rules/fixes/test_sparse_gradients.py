"""Sparse gradients of embedding tables in real loops: which tables count, and what the printed change does."""

import pytest

import gpulab
from gpulab.analysis.kernels.embedding_gradients import embedding_gradients
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.kernels.embedding_gradients import sparse_code

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

ROWS, WIDTH = 5_000, 8


class Scorer(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)
        self.bag = nn.EmbeddingBag(100, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS, bias=False) if tied else nn.Linear(WIDTH, 1)
        if tied:
            self.out.weight = self.items.weight

    def forward(self, indices):
        return self.out(self.items(indices) + self.bag(indices[:, None] % 100))


def trained(net, optimizer, clip=False, steps=20):
    torch.manual_seed(0)
    batches = torch.randint(0, ROWS, (steps, 16))
    with gpulab.profile("tables") as session:
        for indices in batches:
            optimizer.zero_grad()
            net(indices).square().mean().backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    return session.run


def gradients_of(run):
    steps = find_steps(run)
    return embedding_gradients(run, steps, build_ledger(run, steps))


def test_tables_are_measured():
    net = Scorer()
    run = trained(net, torch.optim.SGD(net.parameters(), lr=0.1))
    gradients = gradients_of(run)
    tables = ROWS * WIDTH + 100 * WIDTH
    assert (gradients.elements, gradients.rows) == (tables, ROWS)
    assert gradients.elements_frac == tables / (tables + WIDTH + 1)
    assert gradients.backward_ns > 0
    assert gradients.update_ns > 0
    assert not gradients.clips_gradients


@pytest.mark.parametrize("foreach", [True, False, None])
def test_clipping_is_noticed(foreach):
    net = Scorer()
    run = trained(net, torch.optim.SGD(net.parameters(), lr=0.1, foreach=foreach), clip=True)
    assert gradients_of(run).clips_gradients


def test_a_table_that_the_output_layer_shares_does_not_count():
    net = Scorer(tied=True)
    run = trained(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert run.models[0].embedding_elements == 100 * WIDTH


def test_frozen_and_sparse_tables_do_not_count():
    net = Scorer()
    net.items.requires_grad_(False)
    net.bag = nn.EmbeddingBag(100, WIDTH, sparse=True)
    run = trained(net, torch.optim.SGD([*net.bag.parameters(), *net.out.parameters()], lr=0.1))
    assert run.models[0].embedding_elements == 0
    assert gradients_of(run) is None


@pytest.mark.parametrize(
    ("make", "accepts"),
    [
        (lambda weights: torch.optim.SGD(weights, lr=0.1), True),
        (lambda weights: torch.optim.Adagrad(weights), True),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9), False),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.1), False),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, fused=True), False),
        (lambda weights: torch.optim.Adam(weights), False),
    ],
)
def test_the_printed_change_is_for_optimizers_that_give_the_same_results(make, accepts):
    net = Scorer()
    run = trained(net, make(net.parameters()))
    assert run.optimizers[0].accepts_sparse is accepts


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # PyTorch's own Adagrad makes sparse tensors
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_after_the_printed_change_the_weights_are_the_same_and_the_gradients_sparse(kind):
    results = []
    for is_changed in (False, True):
        torch.manual_seed(0)
        net = Scorer()
        optimizer = kind(net.parameters(), lr=0.1)
        if is_changed:
            run = results[0][1]
            steps = find_steps(run)
            exec(sparse_code(Evidence(run, steps, build_ledger(run, steps))), {"net": net, "torch": torch})
        run = trained(net, optimizer)
        results.append((net, run))
        assert net.items.weight.grad.is_sparse is is_changed
        assert net.bag.weight.grad.is_sparse is is_changed
    for old, new in zip(results[0][0].parameters(), results[1][0].parameters(), strict=True):
        torch.testing.assert_close(old, new)
