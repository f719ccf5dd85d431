"""True values on the virtual GPU: they follow from the program, and what depends on data stays assumed."""

from __future__ import annotations

import gc
import signal

import pytest

torch = pytest.importorskip("torch")

from gpulab.virtual.device.tensors import true_values  # noqa: E402
from tests.support.virtual.cuda_programs import device  # noqa: E402


def on_gpu(values):
    return torch.tensor(values, device="cuda")


def growing():
    ids = torch.zeros(1, 2, dtype=torch.long, device="cuda")
    for number in range(3):
        ids = torch.cat([ids, torch.full((1, 1), number, device="cuda")], dim=1)
    return ids


def written_through_views():
    table = torch.zeros(2, 3, dtype=torch.long, device="cuda")
    row = table[1]
    row += 1
    table[:, 2].copy_(on_gpu([7, 8]))
    table.view(-1)[0] = 5
    return table


def overwritten_after_unknown():
    table = torch.randint(0, 9, (3,), device="cuda")
    table.fill_(4)
    return table


def finished():
    """A flag that an unknown condition can set early, and the length of the sequence sets in the end."""
    unfinished = torch.ones(2, dtype=torch.long, device="cuda")
    stop = torch.randint(0, 9, (2,), device="cuda") == 3
    stop = stop | torch.full((2,), True, device="cuda")
    return unfinished.mul(~stop)


TRUE = {
    "arange": lambda: torch.arange(5, device="cuda") * 2 - 1,
    "from the host": lambda: torch.tensor([[3, 1], [2, 0]]).cuda().argmax(1),
    "copied with a dtype": lambda: torch.tensor([1.6, -2.2]).to("cuda", torch.int64),
    "comparison": lambda: torch.arange(4, device="cuda") >= on_gpu([3, 1, 2, 9]),
    "causal mask": lambda: torch.ones(3, 3, dtype=torch.bool, device="cuda").tril(),
    "like a tensor of unknown values": lambda: torch.ones_like(torch.randn(2, 2, device="cuda"), dtype=torch.long),
    "selected": lambda: torch.arange(6, device="cuda")[on_gpu([4, 2])],
    "masked": lambda: torch.arange(6, device="cuda")[on_gpu([True, False, True, True, False, False])],
    "nonzero": lambda: on_gpu([[0, 3], [4, 0]]).nonzero(),
    "unique": lambda: on_gpu([5, 2, 5, 2]).unique(),
    "repeated": lambda: torch.repeat_interleave(on_gpu([2, 0, 3])),
    "counted": lambda: on_gpu([1, 4, 1]).bincount(),
    "one hot": lambda: torch.nn.functional.one_hot(on_gpu([1, 0])),
    "sums": lambda: torch.ones(2, 3, dtype=torch.long, device="cuda").cumsum(1),
    "scattered": lambda: torch.zeros(4, dtype=torch.long, device="cuda").scatter_(0, on_gpu([2, 0]), on_gpu([5, 6])),
    "sorted": lambda: on_gpu([3, 1, 3]).sort().values,
    "bytes of a view": lambda: on_gpu([258]).view(torch.uint8),
    "growing": growing,
    "written through views": written_through_views,
    "overwritten after unknown values": overwritten_after_unknown,
    "decided by one operand": finished,
    "inference": lambda: torch.inference_mode()(lambda: torch.arange(3, device="cuda").add_(1))(),
}


@pytest.mark.parametrize("name", TRUE)
def test_a_value_that_follows_from_the_program_is_the_one_of_the_cpu(name, monkeypatch):
    with device() as gpu:
        on_device = TRUE[name]()
        assert on_device.device.type == "cuda"
        values = on_device.tolist()
    assert gpu.assumptions == ()
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    expected = _on_cpu(TRUE[name])
    assert values == expected.tolist()


def _on_cpu(program):
    class OnCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device")) == "cuda":
                kwargs["device"] = "cpu"
            args = ["cpu" if isinstance(each, str) and each == "cuda" else each for each in args]
            return func(*args, **kwargs)

    with OnCpu():
        return program()


def written_with_unknown():
    table = torch.zeros(4, dtype=torch.long, device="cuda")
    table[1] = torch.randint(0, 9, (), device="cuda")
    return table


def base_of_a_written_view():
    table = torch.zeros(4, dtype=torch.long, device="cuda")
    table.view(2, 2)[0].copy_(torch.randint(0, 9, (2,), device="cuda"))
    return table


def written_as_data():
    table = torch.zeros(4, dtype=torch.long, device="cuda")
    table.data.random_(0, 9)
    return table


def duplicates():
    table = torch.zeros(4, dtype=torch.long, device="cuda")
    table[on_gpu([1, 1])] = on_gpu([5, 6])
    return table


def out_of_range():
    return torch.arange(3, device="cuda").index_select(0, on_gpu([7]))


UNKNOWN = {
    "random": lambda: torch.randint(0, 9, (3,), device="cuda"),
    "permutation": lambda: torch.randperm(4, device="cuda"),
    "uninitialised": lambda: torch.empty(3, dtype=torch.long, device="cuda"),
    "sum with unknown": lambda: torch.arange(3, device="cuda") + torch.randint(0, 9, (3,), device="cuda"),
    "argmax of numbers": lambda: torch.randn(3, 4, device="cuda").argmax(1),
    "comparison of numbers": lambda: torch.randn(3, device="cuda") > 0,
    "not decided by the other operand": lambda: (torch.randn(2, device="cuda") > 0) | on_gpu([True, False]),
    "and with true": lambda: (torch.randn(2, device="cuda") > 0) & on_gpu([True, True]),
    "bits of an integer": lambda: torch.randint(0, 9, (2,), device="cuda") | on_gpu([1, 1]),
    "index of equal elements": lambda: on_gpu([3, 1, 3]).sort().indices,
    "index of topk": lambda: on_gpu([3, 1, 3]).topk(1).indices,
    "too large": lambda: torch.arange(true_values.MAX_TRUE_ELEMENTS + 1, device="cuda"),
    "part of something too large": lambda: torch.arange(true_values.MAX_TRUE_ELEMENTS + 1, device="cuda")[:2],
    "numbers": lambda: torch.arange(3.0, device="cuda"),
    "written with an unknown value": written_with_unknown,
    "base of a view with unknown values": base_of_a_written_view,
    "written as data": written_as_data,
    "written twice at one index": duplicates,
    "index out of range": out_of_range,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_value_that_depends_on_data_stays_assumed(name):
    with device() as gpu:
        out = UNKNOWN[name]()
        assert true_values.true_values(out) is None
        out.tolist()
    assert gpu.assumptions


def test_a_new_storage_at_the_address_of_an_old_one_has_no_values():
    with device():
        for _ in range(50):
            torch.zeros(8, dtype=torch.long, device="cuda")
            gc.collect(0)
            assert true_values.true_values(torch.empty(8, dtype=torch.long, device="cuda")) is None


def test_equal_compares_true_values_and_a_true_flag_is_no_assumption():
    with device() as gpu:
        assert not torch.equal(on_gpu([1, 2]), on_gpu([1, 3]))
        assert bool((torch.arange(3, device="cuda") < 9).all())
        assert gpu.assumptions == ()
        torch.equal(torch.randn(2, device="cuda"), torch.randn(2, device="cuda"))
    assert gpu.assumptions


def test_the_number_of_masked_elements_is_exact():
    with device() as gpu:
        mask = torch.ones(4, 4, dtype=torch.bool, device="cuda").tril()
        numbers = torch.randn(4, 4, device="cuda")
        assert numbers[mask].shape == (10,)
        assert numbers.masked_select(mask[0]).shape == (4,)
        assert torch.randn(4, device="cuda")[torch.randn(4, device="cuda") > 0].shape == (2,)
    assert len(gpu.assumptions) == 1


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, IndexError])
@pytest.mark.parametrize("write", [False, True], ids=["result", "write"])
def test_an_exception_of_a_signal_handler_reaches_the_program(kind, write, monkeypatch):
    """Operators raise the same classes for arguments without values."""

    def handle(number, frame):
        raise kind("time is up")

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with device():
            numbers = torch.arange(4, device="cuda")
            with monkeypatch.context() as patches:
                patches.setattr(true_values, "_run_on_host", interrupted)
                with pytest.raises(kind, match="time is up"):
                    numbers.add_(1) if write else numbers + 1
            assert not write or true_values.true_values(numbers) is None, "half written values are forgotten"
    finally:
        signal.signal(signal.SIGUSR1, before)
