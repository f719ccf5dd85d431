"""Correct programs that read, replace or wait for what a recording touches behave as without it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset

import gpulab
from tests.support.python_program import run_python

pytestmark = pytest.mark.usefixtures("nothing_left")
ROWS = torch.linspace(-1, 1, 32 * 3).reshape(32, 3)


def plain_and_recorded(function):
    """What the function returns without a recording, and within one."""
    plain = function()
    with gpulab.profile("unusual", level="sensors"):
        recorded = function()
    return plain, recorded


def trained(model, optimizer, steps=6):
    for _ in range(steps):
        optimizer.zero_grad()
        model(ROWS).square().mean().backward()
        optimizer.step()
    return model


class Weighted(torch.optim.SGD):
    """Reads and counts on the closure itself."""

    def step(self, closure=None):
        loss = closure()
        closure.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-group["lr"] * closure.weight)
        return loss


def test_an_optimizer_may_read_and_set_attributes_of_its_closure():
    def weights_and_calls():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = Weighted(model.parameters(), lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = model(ROWS).square().mean()
            loss.backward()
            return loss

        closure.weight, closure.calls = 0.5, 0
        for _ in range(6):
            optimizer.step(closure)
        return model.weight.tolist(), closure.calls

    plain, recorded = plain_and_recorded(weights_and_calls)
    assert recorded == plain
    assert plain[1] == 6


@pytest.fixture
def swapped_tensors():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapped_tensors")
def test_a_module_may_swap_its_tensors():
    def dtype():
        frozen = nn.Linear(3, 3).requires_grad_(False)
        model = nn.Sequential(frozen, nn.Linear(3, 1))
        trained(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
        return model.double()[1].weight.dtype

    assert plain_and_recorded(dtype) == (torch.float64, torch.float64)


def test_tensors_may_be_swapped_while_a_session_is_kept():
    model = nn.Linear(3, 1)
    with gpulab.profile("kept", level="sensors") as session:
        trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.zeros(1, 3)))
    assert session.run is not None
    assert not model.weight.any()


class Shuffled:
    """A batch sampler that draws a whole pass to count its batches."""

    def __iter__(self):
        return iter(torch.randperm(32).split(8))

    def __len__(self):
        return len(list(iter(self)))


class Rows(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index]


class ShuffledRows(Shuffled):
    """The same as a sampler, which a batch sampler of PyTorch asks for its length."""

    def __iter__(self):
        return iter(torch.randperm(32).tolist())


@pytest.mark.parametrize("settings", [{"batch_sampler": Shuffled()}, {"sampler": ShuffledRows(), "batch_size": 8}])
def test_a_sampler_may_draw_random_numbers_for_its_length(settings):
    def weights():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in DataLoader(Rows(), **settings):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
        return model.weight.tolist(), torch.rand(1).item()

    plain, recorded = plain_and_recorded(weights)
    assert recorded == plain


class Counted(nn.Linear):
    listed = 0

    def named_parameters(self, *arguments, **options):
        type(self).listed += 1
        return super().named_parameters(*arguments, **options)

    def named_modules(self, *arguments, **options):
        type(self).listed += 1
        return super().named_modules(*arguments, **options)


def test_methods_that_list_parameters_and_modules_are_not_called():
    def calls():
        Counted.listed = 0
        model = Counted(3, 1)
        trained(model, torch.optim.SGD([model.weight, model.bias], lr=0.1))
        return Counted.listed

    assert plain_and_recorded(calls) == (0, 0)


class Lazy:
    """A proxy whose class is that of the object that it would load."""

    loads = 0

    @property
    def __class__(self):
        type(self).loads += 1
        return str


def test_a_lazy_attribute_of_a_dataset_stays_unloaded():
    def loads():
        Lazy.loads = 0
        dataset = Rows()
        dataset.root, dataset.files, dataset.data = Lazy(), [Lazy()], Lazy()
        list(DataLoader(dataset, batch_size=8))
        return Lazy.loads

    assert plain_and_recorded(loads) == (0, 0)


class CountedCalls(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, arguments=(), options=None):
        self.calls += 1
        return function(*arguments, **(options or {}))


def test_a_function_mode_does_not_see_how_frozen_weights_are_compared():
    def calls():
        frozen = nn.Linear(3, 3).requires_grad_(False)
        model = nn.Sequential(frozen, nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        with CountedCalls() as mode:
            trained(model, optimizer, steps=20)
        return mode.calls

    plain, recorded = plain_and_recorded(calls)
    assert recorded == plain


def test_marks_for_an_external_profiler_can_be_emitted():
    """emit_nvtx() and emit_itt() switch a profiler on, as Nsight Systems and VTune need it."""
    with warnings.catch_warnings(), gpulab.profile("emitted"):
        warnings.simplefilter("ignore")
        torch.ones(4).sum()
        with torch.autograd.profiler.emit_itt():
            total = torch.ones(4).sum()
    assert total == 4


def test_a_function_that_the_program_took_from_torch_works_after_the_block():
    with gpulab.profile("taken", level="sensors"):
        from torch.multiprocessing import start_processes
    context = start_processes(print, nprocs=0, join=False)
    assert context.pids() == []


def ended(tmp_path, body):
    """The output of a program with this body within a recording."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    program = f"import os, signal, threading, time\nimport torch, gpulab\nwith gpulab.profile('program'):\n{lines}\n"
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # others exist before the recording
    result = run_python(tmp_path, program, GPULAB_SPOOL="", **one_thread)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_program_may_join_all_threads(tmp_path):
    body = """
torch.ones(4).sum()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print("joined")
"""
    assert ended(tmp_path, body) == "joined"


def test_a_signal_that_the_program_blocks_stays_pending(tmp_path):
    body = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
torch.ones(4).sum()
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigtimedwait({signal.SIGUSR1}, 5).si_signo == signal.SIGUSR1)
"""
    assert ended(tmp_path, body) == "True"


def test_a_program_that_closes_all_files_keeps_its_own_intact(tmp_path):
    """The copy of the recording is written once a second, to a descriptor that the program may use by then."""
    body = """
torch.ones(4).sum()
time.sleep(0.6)
os.closerange(3, 64)
names = [f"own{number}.txt" for number in range(24)]
files = [open(name, "w") for name in names]
for _ in range(14):
    for file in files:
        print("mine", file=file, flush=True)
    time.sleep(0.1)
[file.close() for file in files]
print({open(name).read() for name in names} == {"mine\\n" * 14})
"""
    assert ended(tmp_path, body) == "True"


COMPILED = """
import torch, gpulab

model = torch.nn.Linear(3, 1)

def step():
    model(torch.ones(4, 3)).sum().backward()

compiled = torch.compile(step, backend="eager")
for _ in range(3):
    compiled()
with gpulab.profile("compiled"), torch.compiler.set_stance("fail_on_recompile"):
    compiled()
print("once")
"""


def test_a_compiled_step_is_not_compiled_again(tmp_path):
    result = run_python(tmp_path, COMPILED)
    assert result.stdout == "once\n", result.stderr
