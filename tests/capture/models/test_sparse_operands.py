"""Dense matrices of mostly zeros that modules multiply with are recorded, and their products are timed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gpulab
from gpulab.capture.hooks.models.zero_matrices import SparseProduct, sparse_product, zero_matrix
from gpulab.capture.timing import step_timing
from gpulab.capture.timing.product_timing import time_products

NODES, WORDS, STEPS = 700, 500, 8


@pytest.fixture(autouse=True)
def as_much_time_as_a_busy_machine_needs(monkeypatch):
    for limit in ("_LAYERS_NS", "_MAX_LAYERS_NS"):
        monkeypatch.setattr(step_timing, limit, 10**11)


def mostly_zeros(rows, columns, nonzero_frac=0.01):
    matrix = torch.zeros(rows * columns)
    matrix[torch.randperm(rows * columns)[: round(nonzero_frac * rows * columns)]] = 1.0
    return matrix.reshape(rows, columns)


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(inputs, outputs))

    def forward(self, features, adjacency):
        return adjacency @ (features @ self.weight)


class GraphAttention(GraphConvolution):
    """Uses the adjacency matrix as a mask."""

    def forward(self, features, adjacency):
        values = features @ self.weight
        scores = (values @ values.t()).masked_fill(adjacency == 0, -9e15)
        return scores.softmax(1) @ values


class Network(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.second = layer(WORDS, 32), layer(32, 8)

    def forward(self, features, adjacency):
        return self.second(self.first(features, adjacency).relu(), adjacency)


def recorded(loss, parameters, level="trace"):
    optimizer = torch.optim.SGD(parameters, lr=1e-6)
    with gpulab.profile("zeros", level=level) as session:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    assert not [gap for gap in session.run.recording.left_out if "sparse" in gap.what or "something" in gap.what]
    return session.run.sparse_operands


def test_an_adjacency_matrix_and_a_bag_of_words():
    net, adjacency, words = Network(GraphConvolution), mostly_zeros(NODES, NODES), mostly_zeros(NODES, WORDS)
    operands = recorded(lambda: net(words, adjacency).square().mean(), net.parameters())
    described = {(operand.name, operand.matrix, operand.rows, operand.columns) for operand in operands}
    assert described == {
        ("net.first", "words", NODES, WORDS), ("net.first", "adjacency", NODES, NODES),
        ("net.second", "adjacency", NODES, NODES),
    }  # fmt: skip
    for operand in operands:
        assert operand.kind == "GraphConvolution"
        assert operand.constant
        assert operand.zero_frac == pytest.approx(0.99, abs=1e-6)
        assert operand.calls == 1
        assert 0 < operand.step_frac < 1
        assert operand.dense_ns > 0
        assert operand.sparse_ns > 0
        assert operand.location.startswith("forward (")


def test_a_linear_layer_over_a_bag_of_words():
    net, words = nn.Sequential(nn.Linear(WORDS, 64), nn.ReLU(), nn.Linear(64, 2)), mostly_zeros(NODES, WORDS)
    (operand,) = recorded(lambda: net(words).square().mean(), net.parameters())
    assert (operand.name, operand.matrix, operand.kind) == ("net[0]", "words", "Linear")


def test_another_matrix_in_each_step():
    net = nn.Linear(WORDS, 64)
    (operand,) = recorded(lambda: net(mostly_zeros(NODES, WORDS)).square().mean(), net.parameters())
    assert not operand.constant


@pytest.mark.parametrize("matrix", [
    mostly_zeros(NODES, NODES, 0.2), mostly_zeros(100, 100), mostly_zeros(NODES, NODES).to_sparse(),
    mostly_zeros(NODES, NODES).double(), mostly_zeros(NODES, NODES).requires_grad_(),
    mostly_zeros(NODES, NODES).reshape(7, 100, NODES), mostly_zeros(NODES, NODES)[:, ::2],
], ids=["dense", "small", "sparse", "float64", "with a gradient", "three dimensions", "a part"])  # fmt: skip
def test_other_tensors(matrix):
    assert zero_matrix(matrix) is None


def test_zeros_are_counted_exactly():
    for nonzero in (0, 1, 1234):
        matrix = torch.zeros(NODES, NODES)
        matrix.view(-1)[:nonzero] = 1
        assert zero_matrix(matrix).zero_frac == pytest.approx(1 - nonzero / NODES**2, abs=1e-12)


@pytest.mark.parametrize("columns", [512, 700, 1024])
def test_diagonals_and_full_columns_do_not_hide_zeros_or_numbers(columns):
    assert zero_matrix(torch.eye(700, columns)) is not None
    half = torch.zeros(700, columns)
    half[:, ::2] = 1
    assert zero_matrix(half) is None


def test_a_mask_is_not_a_factor():
    net, adjacency, words = Network(GraphAttention), mostly_zeros(NODES, NODES), torch.rand(NODES, WORDS)
    assert recorded(lambda: net(words, adjacency).square().mean(), net.parameters()) == ()


def test_normalisation_does_not_multiply():
    net, words = nn.Sequential(nn.BatchNorm1d(WORDS), nn.Linear(WORDS, 2)), mostly_zeros(NODES, WORDS)
    assert recorded(lambda: net(words).square().mean(), net.parameters()) == ()


def test_outputs_of_other_sizes_are_no_products():
    matrix = zero_matrix(mostly_zeros(NODES, WORDS))
    assert sparse_product(matrix, torch.rand(NODES, 7)) == SparseProduct(NODES, WORDS, 7, 3500, False)
    assert sparse_product(matrix, torch.rand(NODES)) is None
    assert sparse_product(matrix, torch.rand(NODES + 1, 7)) is None
    assert sparse_product(matrix, (torch.rand(NODES, 7),)) is None


def test_sensors_alone_time_nothing():
    net, words = nn.Linear(WORDS, 64), mostly_zeros(NODES, WORDS)
    assert recorded(lambda: net(words).square().mean(), net.parameters(), "sensors") == ()


def test_timing_leaves_random_numbers_modes_and_types_as_they_are():
    product = SparseProduct(NODES, NODES, 16, 4900, with_gradient=True)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.device("meta"):
            times = time_products([product], 10**11)
    finally:
        torch.set_default_dtype(torch.float32)
    assert set(times) == {product}
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == numpy_state


def test_without_time_nothing_is_timed():
    assert time_products([SparseProduct(NODES, NODES, 16, 4900, with_gradient=True)], 0) == {}


def test_the_operands_are_saved_with_the_run(tmp_path):
    net, words = nn.Linear(WORDS, 64), mostly_zeros(NODES, WORDS)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    with gpulab.profile("zeros") as session:
        for _ in range(STEPS):
            optimizer.zero_grad()
            net(words).square().mean().backward()
            optimizer.step()
    gpulab.save(session.run, tmp_path / "run.gpulab")
    assert gpulab.load(tmp_path / "run.gpulab").sparse_operands == session.run.sparse_operands != ()
