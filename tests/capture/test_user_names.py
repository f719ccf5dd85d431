"""Names and settings of the loader, model and optimizer of a recorded loop."""

import gc
import weakref

import pytest

import gpulab
from gpulab.capture.hooks import user_variables as names_module
from gpulab.rules.engine.pasted_names import user_names

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def data(count=8):
    return TensorDataset(torch.zeros(count, 4), torch.zeros(count, 1))


def fit(batches, network, optimizer):
    for inputs, targets in batches:
        optimizer.zero_grad()
        (network(inputs) - targets).square().mean().backward()
        optimizer.step()


class Trainer:
    def __init__(self, network):
        self.network = network
        self.stepper = torch.optim.AdamW(network.parameters(), fused=True)

    def fit(self, batches):
        for inputs, targets in batches:
            (self.network(inputs) - targets).square().mean().backward()
            self.stepper.step()


def recorded(loop, *arguments):
    with gpulab.profile("names", level="sensors") as session:
        loop(*arguments)
    return session.run


def test_names_are_those_of_the_loops_variables():
    loader = DataLoader(data(), batch_size=2)
    net = nn.Linear(4, 1)
    run = recorded(fit, loader, net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert run.loaders[0].name == "batches"
    assert run.models[0].name == "network"
    assert run.optimizers[0].name == "optimizer"


def test_a_variable_that_the_running_cell_passes_on_comes_before_the_parameter_that_receives_it():
    notebook = {"fit": fit, "torch": torch, "net": nn.Linear(4, 1), "batches_of_two": DataLoader(data(), batch_size=2)}
    notebook["unused"] = notebook["net"]
    cell = "fit(batches_of_two, net, torch.optim.SGD(net.parameters(), lr=0.1))"
    with gpulab.profile("names", level="sensors") as session:
        exec(compile(cell, "<ipython-input-1-cell>", "exec"), {**notebook, "__name__": "__main__"})
    run = session.run
    assert (run.loaders[0].name, run.loaders[0].function) == ("batches_of_two", "")
    assert (run.models[0].name, run.models[0].function) == ("net", "")
    assert (run.optimizers[0].name, run.optimizers[0].function) == ("optimizer", "fit")


def test_the_variables_of_an_inner_function_belong_to_the_function_around_it():
    def outer():
        network, batches = nn.Linear(4, 1), DataLoader(data(), batch_size=2)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        def inner():
            for inputs, _ in batches:
                network(inputs).sum().backward()
                optimizer.step()

        inner()

    run = recorded(outer)
    described = (run.loaders[0], run.models[0], run.optimizers[0])
    assert [(each.name, each.function) for each in described] == [
        ("batches", "outer"),
        ("network", "outer"),
        ("optimizer", "outer"),
    ]


def test_attributes_of_self_are_named_self_dot_attribute():
    run = recorded(Trainer(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))).fit, DataLoader(data(), batch_size=2))
    model, optimizer = run.models[0], run.optimizers[0]
    assert (model.name, model.kind, model.tensors, model.bytes) == ("self.network", "Sequential", 4, 4 * 19)
    assert (model.dtypes, model.device, model.compiled) == (("float32",), "cpu", False)
    assert (optimizer.name, optimizer.kind, optimizer.tensors, optimizer.elements) == ("self.stepper", "AdamW", 4, 19)
    assert (optimizer.fused, optimizer.foreach, optimizer.device) == (True, None, "cpu")


def test_the_largest_module_that_holds_the_parameters_is_the_model():
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    layer = network[0]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=4)

    def loop():
        for inputs, _ in loader:
            assert layer is network[0]
            network(inputs).sum().backward()
            optimizer.step()

    run = recorded(loop)
    assert run.models[0].name == "network"


def test_a_compiled_model_has_the_name_of_its_original_class():
    network = torch.compile(nn.Linear(4, 1), backend="eager")
    run = recorded(fit, DataLoader(data(), batch_size=4), network, torch.optim.SGD(network.parameters(), lr=0.1))
    assert (run.models[0].kind, run.models[0].compiled) == ("Linear", True)


class Flow(torch.nn.Module):
    """A model that is used by another method than forward()."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def log_prob(self, inputs):
        return self.layer(inputs)


class SmallFlow(Flow):
    """Inherits from it."""


@pytest.mark.parametrize(
    ("model", "expected"),
    [(torch.nn.Linear(4, 1), True), (torch.nn.Sequential(torch.nn.Linear(4, 1)), True), (SmallFlow(), False)],
    ids=["layer", "container", "other methods"],
)
def test_a_model_without_forward_is_recognised(model, expected):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gpulab.profile("forward"):
        for _ in range(3):
            optimizer.step()
    assert gpulab.runs["forward"].models[0].has_forward is expected


def test_unnamed_objects_get_a_name_that_can_be_pasted():
    def loop(network):
        stepper = [torch.optim.SGD(network.parameters(), lr=0.1)]
        for inputs, _ in DataLoader(data(), batch_size=4):
            network(inputs).sum().backward()
            stepper[0].step()

    run = recorded(loop, nn.Linear(4, 1))
    assert run.loaders[0].name is None
    assert run.optimizers[0].name is None
    assert user_names(run).loader == "loader"
    assert user_names(run).dataset == "loader.dataset"
    assert user_names(run).optimizer_kind == "SGD"


def test_an_unnamed_dataset_is_an_attribute_of_its_loader():
    run = recorded(fit, DataLoader(data(), batch_size=2), net := nn.Linear(4, 1), torch.optim.SGD(net.parameters()))
    assert user_names(run).dataset == "batches.dataset"


def test_inspected_objects_are_not_kept_alive():
    network = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    watched = [weakref.ref(network), weakref.ref(optimizer)]
    run = recorded(fit, DataLoader(data(), batch_size=4), network, optimizer)
    assert run.models
    del network, optimizer
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_the_result_of_the_users_locals_call_is_not_emptied():
    variables = {}

    def loop(network):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        variables["mine"] = locals()
        for inputs, _ in DataLoader(data(), batch_size=4):
            network(inputs).sum().backward()
            optimizer.step()

    recorded(loop, nn.Linear(4, 1))
    assert "network" in variables["mine"]


def test_the_tensors_of_the_first_step_are_not_kept_while_the_loop_goes_on():
    alive = []

    def loop(network):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for number, (inputs, _) in enumerate(DataLoader(data(), batch_size=2)):
            loss = network(inputs).sum()
            loss.backward()
            optimizer.step()
            if number == 0:
                first = weakref.ref(loss)
            alive.append(first() is not None)

    recorded(loop, nn.Linear(4, 1))
    assert alive == [True, False, False, False]


class Prickly:
    """An object of the user's that must not be asked for anything."""

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None


def test_inspection_calls_no_user_code():
    prickly = Prickly()

    def loop(network):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for inputs, _ in DataLoader(data(), batch_size=4):
            network(inputs).sum().backward()
            optimizer.step()
        return prickly

    run = recorded(loop, nn.Linear(4, 1))
    assert run.optimizers[0].name == "optimizer"
    assert not run.recording.left_out or all("set up" not in gap.what for gap in run.recording.left_out)


def test_an_unreadable_object_lacks_a_description_and_the_loop_continues(monkeypatch):
    def broken(*_):
        raise RuntimeError("no groups here")

    monkeypatch.setattr(names_module, "optimizer_parameters", broken)
    run = recorded(fit, DataLoader(data(), batch_size=4), net := nn.Linear(4, 1), torch.optim.SGD(net.parameters()))
    assert run.optimizers == ()
    assert any("no groups here" in gap.why for gap in run.recording.left_out)


def test_the_share_of_depthwise_convolutions_is_recorded():
    depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), depthwise, torch.nn.Conv2d(8, 4, 1, groups=2), torch.nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gpulab.profile("depthwise"):
        for _ in range(3):
            optimizer.step()
    assert gpulab.runs["depthwise"].models[0].depthwise_frac == pytest.approx(1 / 3)
