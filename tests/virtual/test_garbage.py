"""Garbage while a GPU is played: collected between steps, at a price that does not grow with what is imported."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from gpulab.virtual.host.garbage import gc_between_steps, gc_frozen

torch = pytest.importorskip("torch")

# In a process of its own, as the first GPU that is played imports what playing takes.
FIRST = """
import gc, torch, gpulab
with gpulab.virtual_gpu("t4", "first"):
    x = torch.ones(8, device="cuda")
    gpulab.step()
    print(len(gc.get_objects()), gc.get_freeze_count())
print(gc.get_freeze_count(), gc.isenabled())
"""


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self):
        self.me = self


def is_searched(thing):
    """Whether a garbage collection would look at it; the count of frozen objects also falls when one of them dies."""
    return any(each is thing for each in gc.get_objects())


@pytest.mark.night
def test_the_first_gpu_that_is_played_leaves_no_more_to_search_than_a_program_makes():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    searched, frozen, after, enabled = done.stdout.split()
    assert int(searched) < 20_000 < int(frozen)
    assert (after, enabled) == ("0", "True")


def test_nothing_is_collected_inside_until_it_is_asked_for():
    with gc_between_steps() as collect:
        assert gc.isenabled()  # as the program left it
        gone = weakref.ref(Cycle())
        more = [Cycle() for _ in range(20_000)]
        assert gone() is not None
        del more
        collect()
        assert gone() is None
    assert gc.isenabled()


def test_collections_that_were_off_stay_off():
    gc.disable()
    try:
        with gc_between_steps():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("nothing_is_frozen")
def test_what_is_set_aside_comes_back_and_what_another_set_aside_stays():
    assert not gc.get_freeze_count()
    old = Cycle()
    with gc_frozen():
        assert not is_searched(old)
        with gc_frozen():
            assert not is_searched(old)
        assert not is_searched(old), "the inner block gives back nothing of the outer one"
    assert is_searched(old)
    assert not gc.get_freeze_count()


def test_what_dies_inside_is_found_all_the_same():
    with gc_frozen():
        gone = weakref.ref(Cycle())
        gc.collect()
        assert gone() is None
