"""Tensors changed in place and views of them, under inference_mode and no_grad: as real tensors have it."""

import itertools

import pytest

from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.session import VirtualGpu

torch = pytest.importorskip("torch")


def rows(x):
    return torch.tensor([0, 2], device=x.device)


def two(x):
    return torch.ones(2, x.shape[1], device=x.device)


def first(x):
    return torch.zeros(2, x.shape[1], dtype=torch.int64, device=x.device)


CHANGES = {
    "nothing": lambda x: x,
    "index_copy_": lambda x: x.index_copy_(0, rows(x), two(x)),
    "index_add_": lambda x: x.index_add_(0, rows(x), two(x)),
    "index_fill_": lambda x: x.index_fill_(0, rows(x), 1.0),
    "index_put_": lambda x: x.index_put_((rows(x),), two(x)),
    "x[rows] = 1": lambda x: x.__setitem__(rows(x), 1.0),
    "x[:2] = 1": lambda x: x.__setitem__(slice(0, 2), 1.0),
    "x[x > 0] = 1": lambda x: x.__setitem__(x > 0, 1.0),
    "scatter_": lambda x: x.scatter_(0, first(x), 1.0),
    "scatter_add_": lambda x: x.scatter_add_(0, first(x), two(x)),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 1.0),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, torch.ones_like(x)),
    "copy_ from the CPU": lambda x: x.copy_(torch.ones(x.shape)),
    "mul_": lambda x: x.mul_(2.0),
    "out=": lambda x: torch.add(x, 1, out=x),
    "x[1:3].copy_": lambda x: x[1:3].copy_(two(x)),
    "x[:4].index_copy_": lambda x: x[:4].index_copy_(0, rows(x), two(x)),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
}
VIEWS = {
    "x[:2]": lambda x: x[:2],
    "x[0]": lambda x: x[0],
    "narrow": lambda x: x.narrow(0, 0, 1),
    "select": lambda x: x.select(-1, 0),
    "unfold": lambda x: x.unfold(-1, 2, 1),
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.transpose(0, 1),
    "expand": lambda x: x.expand(2, *x.shape),
    "unbind": lambda x: x.unbind(0)[0],
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "detach": lambda x: x.detach(),
    "x[:1].add_": lambda x: x[:1].add_(1),
    "x + 1": lambda x: x + 1,
}
MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "enable_grad": torch.enable_grad}


def view_properties(device, mode, created_inside, changed, view_name):
    """Shape and stride of the view, and whether it is an inference tensor; or the error."""
    with mode() if created_inside else torch.enable_grad():
        x = torch.zeros(6, 4, device=device)
    try:
        with mode():
            CHANGES[changed](x)
            view = VIEWS[view_name](x)
    except RuntimeError as error:
        return type(error), str(error)
    return tuple(view.shape), view.stride(), view.is_inference()


@pytest.mark.full
@pytest.mark.parametrize(
    "created_inside", [False, pytest.param(True, marks=pytest.mark.night)], ids=["created before", "created inside"]
)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_view_of_a_tensor_changed_in_place_equals_that_of_a_real_tensor(mode, created_inside):
    """Runs twice: the second time, results come from the cache of operators."""
    combinations = list(itertools.product(CHANGES, VIEWS))
    real = {each: view_properties("cpu", mode, created_inside, *each) for each in combinations}
    with VirtualGpu("t4", host=HostCosts.reference()):
        for _ in range(2):
            played = {each: view_properties("cuda", mode, created_inside, *each) for each in combinations}
            assert {each: (played[each], real[each]) for each in combinations if played[each] != real[each]} == {}


def test_a_tensor_created_in_inference_mode_can_be_viewed_outside():
    with VirtualGpu("t4", host=HostCosts.reference()):
        with torch.inference_mode():
            x = torch.zeros(6, 4, device="cuda")
        views = [x[:2] for _ in range(3)]
        assert [each.is_inference() for each in views] == [True] * 3
        assert not (x + 1).is_inference()


@pytest.mark.full
@pytest.mark.parametrize("method", ["t_", "swapaxes_", "transpose_", "unsqueeze_", "squeeze_", "as_strided_"])
def test_in_place_reshapes_change_the_shape_on_every_call(method):
    arguments = {
        "swapaxes_": (0, 1),
        "transpose_": (0, 1),
        "unsqueeze_": (0,),
        "squeeze_": (0,),
        "as_strided_": ((2, 2), (1, 1)),
    }
    reshaped = lambda device: getattr(torch.zeros(1, 8, device=device), method)(*arguments.get(method, ()))  # noqa: E731
    with VirtualGpu("t4", host=HostCosts.reference()):
        for _ in range(2):
            played, real = reshaped("cuda"), reshaped("cpu")
            assert (played.shape, played.stride()) == (real.shape, real.stride())
