"""The memory of a virtual GPU: to the byte what is in use, and whoever was there at a maximum, by role and phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.virtual.memory_fit.memory_peaks import OutOfGpuMemory, SimulatedMemory
from gpulab.virtual.op_log.ops import Phase, Role
from tests.support.tiers import examples

KIB, MIB, GIB = 2**10, 2**20, 2**30
FORWARD, BACKWARD, OPTIMIZER, SETUP = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.SETUP


def trained(steps: int = 1) -> SimulatedMemory:
    """A model of 10 MiB that is trained: two activations of 30 MiB, 7 MiB between them, Adam's 20 MiB."""
    memory = SimulatedMemory(GIB)
    memory.allocate(1, 10 * MIB, SETUP)
    memory.set_role(1, Role.PARAMETER)
    for step in range(steps):
        if step:
            memory.enter_phase(FORWARD)
            memory.free(4)  # zero_grad
        memory.allocate(2, 30 * MIB, FORWARD)
        memory.allocate(9, 7 * MIB, FORWARD)
        memory.allocate(3, 30 * MIB, FORWARD)
        memory.free(9)
        memory.allocate(5, 8 * MIB, BACKWARD)
        memory.free(3)
        memory.allocate(4, 10 * MIB, BACKWARD)
        memory.set_role(4, Role.GRADIENT)
        memory.free(2)
        memory.free(5)
        memory.enter_phase(OPTIMIZER)
        if not step:
            memory.allocate(6, 20 * MIB, OPTIMIZER)
            memory.set_role(6, Role.OPTIMIZER)
        memory.allocate(7, 10 * MIB, OPTIMIZER)
        memory.free(7)
    return memory


def in_mib(by_role) -> dict[Role, float]:
    return {role: held / MIB for role, held in by_role.items()}


# What is in use.


def test_every_allocation_takes_a_multiple_of_512_bytes_and_an_empty_one_takes_none():
    memory = SimulatedMemory(GIB)
    memory.allocate(1, 1, FORWARD)
    memory.allocate(2, 513, FORWARD)
    memory.allocate(3, 0, FORWARD)
    assert memory.allocated_bytes == 512 + 1024
    assert memory.address(3) == -1
    assert memory.address(2) - memory.address(1) == 512
    for key in (1, 2, 3):
        memory.free(key)
    assert memory.allocated_bytes == 0


def test_memory_in_use_counts_requests_while_pytorch_counts_whole_blocks():
    memory = SimulatedMemory(GIB)
    memory.allocate(1, 11 * MIB, FORWARD)
    assert memory.allocated_bytes == memory.max_allocated_bytes == 11 * MIB
    assert memory.stats()["allocated_bytes.all.current"] == 12 * MIB
    assert memory.reserved_bytes == memory.max_reserved_bytes == 12 * MIB


def test_free_memory_is_neither_reserved_nor_outside_pytorch():
    memory = SimulatedMemory(GIB, non_torch_bytes=100 * MIB)
    memory.allocate(1, 3 * MIB, FORWARD)
    assert memory.free_bytes == GIB - 100 * MIB - 20 * MIB
    assert (memory.capacity_bytes, memory.non_torch_bytes) == (GIB, 100 * MIB)


def test_a_failed_allocation_allocates_nothing():
    memory = SimulatedMemory(64 * MIB)
    memory.allocate(1, 40 * MIB, FORWARD)
    with pytest.raises(OutOfGpuMemory):
        memory.allocate(2, 30 * MIB, FORWARD)
    with pytest.raises(KeyError):
        memory.free(2)
    assert memory.allocated_bytes == memory.max_allocated_bytes == 40 * MIB
    memory.free(1)
    memory.allocate(2, 50 * MIB, FORWARD)
    assert memory.retries == 2


def test_without_a_limit_the_peak_is_the_memory_needed():
    memory = SimulatedMemory(64 * MIB)
    memory.enforce_limit = False
    memory.allocate(1, 100 * MIB, FORWARD)
    assert (memory.max_reserved_bytes, memory.free_bytes, memory.oom_count) == (100 * MIB, 0, 1)
    memory.enforce_limit = True
    with pytest.raises(OutOfGpuMemory):
        memory.allocate(2, 1, FORWARD)


def test_a_key_has_at_most_one_allocation():
    memory = SimulatedMemory(GIB)
    memory.allocate(1, 1, FORWARD)
    with pytest.raises(ValueError, match="key 1"):
        memory.allocate(1, 1, FORWARD)
    with pytest.raises(KeyError):
        memory.set_role(2, Role.GRADIENT)


def test_after_empty_cache_only_memory_in_use_is_reserved():
    memory = trained()
    for key in (1, 4, 6):
        memory.free(key)
    assert memory.reserved_bytes > 0
    memory.empty_cache()
    assert memory.reserved_bytes == 0


# What was in use when most was.


def test_the_first_step_has_its_peak_before_there_are_gradients():
    peak = trained().peak()
    assert peak.bytes == 78 * MIB
    assert peak.phase is BACKWARD
    assert in_mib(peak.by_role) == {Role.PARAMETER: 10, Role.ACTIVATION: 60, Role.TEMPORARY: 8}


def test_the_second_step_has_the_state_of_the_optimizer_in_it():
    memory = trained(2)
    peak = memory.peak()
    assert peak.bytes == memory.max_allocated_bytes == 98 * MIB
    assert in_mib(peak.by_role) == {
        Role.PARAMETER: 10, Role.OPTIMIZER: 20, Role.ACTIVATION: 60, Role.TEMPORARY: 8,
    }  # fmt: skip


def test_every_phase_has_its_own_peak():
    memory = trained(2)
    assert {phase: memory.peak(phase).bytes / MIB for phase in memory.phases} == {
        SETUP: 10, FORWARD: 97, BACKWARD: 98, OPTIMIZER: 50,
    }  # fmt: skip
    assert in_mib(memory.peak(FORWARD).by_role) == {
        Role.PARAMETER: 10, Role.OPTIMIZER: 20, Role.ACTIVATION: 60, Role.TEMPORARY: 7,
    }  # fmt: skip
    assert in_mib(memory.peak(OPTIMIZER).by_role) == {
        Role.PARAMETER: 10, Role.GRADIENT: 10, Role.OPTIMIZER: 20, Role.TEMPORARY: 10,
    }  # fmt: skip


def test_memory_in_use_now_is_split_by_role():
    use = trained().in_use()
    assert (use.bytes, use.phase) == (40 * MIB, OPTIMIZER)
    assert in_mib(use.by_role) == {Role.PARAMETER: 10, Role.GRADIENT: 10, Role.OPTIMIZER: 20}


def test_a_role_set_later_applies_to_the_peak_before():
    memory = SimulatedMemory(GIB)
    memory.allocate(1, MIB, SETUP)
    before = memory.peak()
    memory.set_role(1, Role.PARAMETER)
    assert in_mib(before.by_role) == {Role.TEMPORARY: 1}
    assert in_mib(memory.peak().by_role) == {Role.PARAMETER: 1}


def test_forward_allocations_that_outlive_forward_are_activations():
    memory = SimulatedMemory(GIB)
    for key in (1, 2):
        memory.allocate(key, MIB, FORWARD)
    memory.free(1)
    memory.enter_phase(BACKWARD)
    memory.free(2)
    assert in_mib(memory.peak(FORWARD).by_role) == {Role.TEMPORARY: 1, Role.ACTIVATION: 1}


def test_two_forwards_with_a_backward_between_are_separate_phases():
    """Accumulated gradients: what the first forward kept is gone before the second."""
    memory = SimulatedMemory(GIB)
    for key in (1, 2):
        memory.allocate(key, MIB, FORWARD)
        memory.enter_phase(FORWARD)
        memory.enter_phase(BACKWARD)
        memory.free(key)
    assert in_mib(memory.peak().by_role) == {Role.ACTIVATION: 1}


def test_a_phase_that_allocates_nothing_has_its_peak_at_its_start():
    memory = SimulatedMemory(GIB)
    memory.allocate(1, 5 * MIB, SETUP)
    memory.enter_phase(FORWARD)
    memory.free(1)
    memory.enter_phase(BACKWARD)
    assert memory.peak(FORWARD).bytes == 5 * MIB
    assert memory.phases == (SETUP, FORWARD)
    assert (memory.peak(BACKWARD).bytes, memory.peak(BACKWARD).by_role) == (0, {})


def test_after_a_reset_the_peak_is_the_memory_in_use():
    memory = trained()
    memory.reset_peak()
    assert memory.max_allocated_bytes == memory.allocated_bytes == 40 * MIB
    assert memory.phases == (OPTIMIZER,)
    memory.allocate(9, MIB, FORWARD)
    assert memory.peak().phase is FORWARD


def test_nothing_in_use_has_no_peak():
    memory = SimulatedMemory(GIB)
    assert (memory.peak().bytes, memory.max_allocated_bytes, memory.phases) == (0, 0, ())


# Against a ledger that forgets nothing.

events = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 4 * KIB), st.sampled_from(list(Phase))),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.none()),
        st.tuples(st.just("role"), st.integers(0, 10**6), st.sampled_from(list(Role))),
        st.tuples(st.just("phase"), st.just(0), st.sampled_from(list(Phase))),
        st.tuples(st.just("reset"), st.just(0), st.none()),
    ),
    max_size=60,
)


@examples(200)
@given(events)
def test_peaks_by_phase_and_role_are_those_of_a_full_history(told):
    """The history keeps a copy of who was there at every moment, and looks for the highest at the end."""
    memory, live, roles, ended = SimulatedMemory(GIB), {}, {}, set()
    now, stretch, history = SETUP, 0, []

    def begin(phase):
        nonlocal now, stretch
        if phase is not now:
            now, stretch = phase, stretch + 1

    for key, (what, number, which) in enumerate(told):
        if what == "allocate":
            begin(which)
            memory.allocate(key, number, which)
            live[key] = (-(-number // 512) * 512, which, stretch)
        elif what == "free" and live:
            gone = sorted(live)[number % len(live)]
            memory.free(gone)
            if live.pop(gone)[2] == stretch:
                ended.add(gone)
        elif what == "role" and live:
            which_key = sorted(live)[number % len(live)]
            memory.set_role(which_key, which)
            roles[which_key] = which
        elif what == "phase":
            memory.enter_phase(which)
            begin(which)
        elif what == "reset":
            memory.reset_peak()
            history.clear()
        history.append((now, dict(live)))
        assert memory.allocated_bytes == sum(size for size, _, _ in live.values())

    def role_of(key, phase):
        made = Role.ACTIVATION if phase is FORWARD and key not in ended else Role.TEMPORARY
        return roles.get(key, made)

    for phase in Phase:
        moments = [there for where, there in history if where is phase]
        expected = max((sum(size for size, _, _ in there.values()) for there in moments), default=0)
        peak = memory.peak(phase)
        assert peak.bytes == expected
        assert sum(peak.by_role.values()) == expected
        if expected:
            first = next(there for there in moments if sum(size for size, _, _ in there.values()) == expected)
            by_role = dict.fromkeys(Role, 0)
            for key, (size, came, _) in first.items():
                by_role[role_of(key, came)] += size
            assert peak.by_role == {role: held for role, held in by_role.items() if held}
    assert memory.max_allocated_bytes == max((memory.peak(phase).bytes for phase in Phase), default=0)
    assert memory.max_reserved_bytes >= memory.max_allocated_bytes
