"""Decision trees that can be walked: from facts to one leaf, every question and answer kept.

`UTILISATION` asks for counters (gpulab.lessons.labs.drills.counters) and ends at a cause, by gpulab's name for it.
`OUT_OF_MEMORY` asks for facts, true or false, and ends at what to do. `memory_facts` reads these from a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpulab.analysis.memory.growth import growths
from gpulab.analysis.memory.holders import held
from gpulab.analysis.steps.detection import steps
from gpulab.errors import GpulabError
from gpulab.run import Run

Facts = Mapping[str, float | bool | None]
GROWS_BYTES = 512 * 1024  # a step; less is Python's own memory settling
LARGER = 1.5  # times what any step before it needed
ADAM_COPIES = 4  # parameters, gradients, and Adam's two averages


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Where a walk ends: its name, and what to do there."""

    name: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Node:
    """A question with two answers; `reads` are the facts that it needs."""

    asks: str
    reads: tuple[str, ...]
    says: Callable[..., bool]  # takes the facts it reads, in that order
    yes: Node | Leaf
    no: Node | Leaf

    def answer(self, facts: Facts) -> bool:
        """Yes or no. Raises GpulabError for a fact that is not given; None is given, and means absent."""
        for name in self.reads:
            if name not in facts:
                raise GpulabError(
                    f"The tree cannot answer: {self.asks}",
                    why=f"it needs the fact {name!r}, and there are {', '.join(facts) or 'none'}",
                    fix="measure it, and give it; None where it is absent",
                )
        return bool(self.says(*(facts[name] for name in self.reads)))


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A way through a tree: each question with its answer, and the leaf."""

    path: tuple[tuple[str, bool], ...]
    leaf: Leaf
    reads: frozenset[str]  # the facts that were needed

    def __repr__(self) -> str:
        told = [f"{asked} {'yes' if answer else 'no'}" for asked, answer in self.path]
        return "\n".join([*told, f"-> {self.leaf.name}: {self.leaf.do}"])


def walk(tree: Node, facts: Facts) -> Walk:
    """From the root to one leaf. Raises GpulabError where a fact on the way is not given."""
    path: list[tuple[str, bool]] = []
    reads: set[str] = set()
    at: Node | Leaf = tree
    while isinstance(at, Node):
        answer = at.answer(facts)
        path.append((at.asks, answer))
        reads.update(at.reads)
        at = at.yes if answer else at.no
    return Walk(path=tuple(path), leaf=at, reads=frozenset(reads))


def leaves(tree: Node | Leaf) -> Iterator[Leaf]:
    """Every leaf of a tree, yes before no."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from leaves(tree.yes)
        yield from leaves(tree.no)


def _at_least(least: float) -> Callable[[float | None], bool]:
    """What is absent is not at least anything."""
    return lambda value: value is not None and value >= least


def _asks(asks: str, read: str, least: float, yes: Node | Leaf, no: Node | Leaf) -> Node:
    return Node(asks=asks, reads=(read,), says=_at_least(least), yes=yes, no=no)


def _fact(asks: str, name: str, yes: Node | Leaf, no: Node | Leaf) -> Node:
    return Node(asks=asks, reads=(name,), says=bool, yes=yes, no=no)


_LATE = Node(
    asks="Are there workers at all?",
    reads=("worker_cpu",),
    says=lambda value: value is not None,
    yes=_asks(
        "Do they compute, at half a core each or more?",
        "worker_cpu",
        0.5,
        yes=Leaf(name="cpu_bound_loading", do="make the items cheaper, or make each once"),
        no=Leaf(name="too_few_workers", do="start more workers: they wait, and can wait together"),
    ),
    no=Leaf(name="no_workers", do="let worker processes build the batches"),
)
_COPIED = Node(
    asks="Does more come back from the GPU than goes there?",
    reads=("to_host", "to_gpu"),
    says=lambda back, there: (back or 0) > (there or 0),
    yes=Leaf(name="host_syncs", do="leave results on the GPU, and fetch them after the loop"),
    no=Leaf(name="pageable_copies", do="pin the host's memory, and copy ahead"),
)
_CALLED = Node(
    asks="Does calling operators take longer than the loop's own Python code?",
    reads=("calls", "python"),
    says=lambda calls, python: (calls or 0) > (python or 0),
    yes=Leaf(name="dispatch_bound", do="call less often: capture the calls, or give each more to do"),
    no=Leaf(name="host_python", do="take that code out of the loop"),
)
_IDLE = _asks(
    "Does the loop wait for batches, a quarter of a step or more?",
    "loader",
    0.25,
    yes=_LATE,
    no=_asks("Do copies take a quarter of a step or more?", "copies", 0.25, yes=_COPIED, no=_CALLED),
)
_KERNELS = Node(
    asks="Is more than half of the kernel time outside matrix kernels?",
    reads=("matrix",),
    says=lambda value: value is not None and value < 0.5,
    yes=Leaf(name="unfused_elementwise", do="let one operator do what many small ones do"),
    no=Node(
        asks="Do most matrix kernels leave the tensor cores unused?",
        reads=("tensor_cores",),
        says=lambda value: value is not None and value < 0.5,
        yes=Leaf(name="no_tf32", do="let products use tensor cores: TF32, or 16 bits"),
        no=Node(
            asks="Are fewer than seven multiprocessors of ten given work?",
            reads=("filled",),
            says=lambda value: value is not None and value < 0.7,
            yes=Leaf(name="small_batch", do="give each kernel more: a larger batch"),
            no=Leaf(name="device_bound", do="leave it: the device does what it can"),
        ),
    ),
)
UTILISATION = _asks(
    "Does the device compute half of a step or more?",
    "busy",
    0.5,
    yes=_asks(
        "Does memory grow by half a MiB a step or more?",
        "growth",
        GROWS_BYTES,
        yes=Leaf(name="memory_growth", do="keep numbers instead of tensors with their graphs"),
        no=_asks(
            "Does the optimizer take a fifth of a step or more?",
            "optimizer",
            0.2,
            yes=Leaf(name="unfused_optimizer", do="update all parameters in one call"),
            no=_KERNELS,
        ),
    ),
    no=_IDLE,
)

_LATER = _fact(
    "Does memory grow from step to step?",
    "grows",
    yes=_fact(
        "Does it grow only while evaluating?",
        "evaluating",
        yes=Leaf(name="evaluation", do="evaluate under torch.no_grad()"),
        no=Leaf(name="leak", do="find the list that keeps tensors: append numbers, or detached tensors"),
    ),
    no=_fact(
        "Did the failing step need half as much again as any before it?",
        "larger",
        yes=Leaf(name="long_sample", do="bound or bucket the length of samples"),
        no=_fact(
            "Is more reserved and unused than was asked for?",
            "fragmented",
            yes=Leaf(name="fragmentation", do="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; steadier sizes"),
            no=Leaf(name="neighbour", do="look who else is on the GPU: its memory shrank meanwhile"),
        ),
    ),
)
_AT_ONCE = _fact(
    "Does another process hold a tenth of the memory or more?",
    "others",
    yes=Leaf(name="neighbour", do="end the other process, or take another GPU"),
    no=_fact(
        "Do parameters, gradients and optimizer states alone exceed the GPU?",
        "states",
        yes=Leaf(name="states", do="smaller optimizer states, then sharding or offloading: no batch is small enough"),
        no=Leaf(
            name="activations",
            do="cheapest first: 16 bits, fused attention, a smaller batch with accumulation, checkpointing, offloading",
        ),
    ),
)
OUT_OF_MEMORY = _fact("Does the first step fail?", "first_step", yes=_AT_ONCE, no=_LATER)


def states_bytes(run: Run, *, copies: int = ADAM_COPIES) -> int:
    """What parameters, gradients and optimizer states take, from the parameters that were held when memory ran out.

    `copies`: how often each parameter is held once training runs: 4 with Adam, 2 with plain SGD.
    """
    return copies * held(run).bytes_of("parameter")


def memory_facts(run: Run, *, copies: int = ADAM_COPIES) -> dict[str, bool]:
    """What `OUT_OF_MEMORY` asks, of a run that ran out of memory or is about to.

    `copies` as in `states_bytes`. `evaluating` no run can tell; it is False unless you set it.
    """
    failure, found = run.failure, steps(run)
    grows = any(each.per_step.slope >= GROWS_BYTES for each in growths(run, found))
    facts = {"first_step": failure is not None and not len(run.mark_rows), "grows": grows, "evaluating": False}
    if failure is None:
        return {**facts, "larger": False, "fragmented": False, "others": False, "states": False}
    needed, given = failure.needed_bytes or 0, failure.allocated_bytes or 0
    peak = max(run.allocator_rows["peak_allocated_bytes"].tolist(), default=0)
    room = failure.capacity_bytes or 0
    return {
        **facts,
        "larger": 0 < LARGER * peak < needed + given,
        "fragmented": (failure.reserved_bytes or given) - given > needed,
        "others": (failure.others_bytes or 0) > 0.1 * room,
        "states": states_bytes(run, copies=copies) > room > 0,
    }
