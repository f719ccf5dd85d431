"""Decision trees: from facts to one leaf, with every question and answer on the path.

`UTILISATION` uses counters (gpulab.lessons.labs.drills.run_counters) and ends at a cause, a rule name of gpulab.
`OUT_OF_MEMORY` uses facts, true or false, and ends at an action. `memory_facts` reads these facts from a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpulab.analysis.memory.growth import memory_growths
from gpulab.analysis.memory.holders import memory_holders
from gpulab.analysis.steps.detection import find_steps
from gpulab.errors import GpulabError
from gpulab.run import Run

TreeFacts = Mapping[str, float | bool | None]
GROWTH_BYTES = 512 * 1024  # per step; smaller changes are warm-up of Python's memory
LARGER_FACTOR = 1.5  # times the peak of any earlier step
ADAM_COPIES = 4  # parameters, gradients, and Adam's two averages


@dataclass(frozen=True, kw_only=True)
class DecisionLeaf:
    """A result of the tree: its name, and the action to take."""

    name: str
    action: str


@dataclass(frozen=True, kw_only=True)
class DecisionNode:
    """A yes/no question; `reads` are the names of the facts that it needs."""

    question: str
    fact_names: tuple[str, ...]
    predicate: Callable[..., bool]  # takes the values of `reads`, in that order
    yes: DecisionNode | DecisionLeaf
    no: DecisionNode | DecisionLeaf

    def answer(self, facts: TreeFacts) -> bool:
        """Answer the question. Raises GpulabError for a missing fact; the value None means absent."""
        for name in self.fact_names:
            if name not in facts:
                raise GpulabError(
                    f"The tree cannot answer this question: {self.question}",
                    why=f"it needs the fact {name!r}; the given facts are {', '.join(facts) or 'none'}",
                    fix="measure the fact and pass it; pass None if it is absent",
                )
        return bool(self.predicate(*(facts[name] for name in self.fact_names)))


@dataclass(frozen=True, kw_only=True)
class TreeWalk:
    """A path through a tree: each question with its answer, and the leaf."""

    path: tuple[tuple[str, bool], ...]
    leaf: DecisionLeaf
    fact_names: frozenset[str]  # names of the facts that were used

    def __repr__(self) -> str:
        lines = [f"{question} {'yes' if answer else 'no'}" for question, answer in self.path]
        return "\n".join([*lines, f"-> {self.leaf.name}: {self.leaf.action}"])


def walk(tree: DecisionNode, facts: TreeFacts) -> TreeWalk:
    """Walk from the root to one leaf. Raises GpulabError if a fact on the path is missing."""
    path: list[tuple[str, bool]] = []
    fact_names: set[str] = set()
    node: DecisionNode | DecisionLeaf = tree
    while isinstance(node, DecisionNode):
        answer = node.answer(facts)
        path.append((node.question, answer))
        fact_names.update(node.fact_names)
        node = node.yes if answer else node.no
    return TreeWalk(path=tuple(path), leaf=node, fact_names=frozenset(fact_names))


def walk_recordings(tree: DecisionNode) -> dict[str, tuple[str, str]]:
    """Walk a tree for each recording of a real GPU that ran to its end; return its leaf and the known cause."""
    from gpulab.files.datasets import datasets
    from gpulab.lessons.labs.drills import drills

    causes = {each.name: each.answer for each in datasets() if each.name.startswith("h100_")}
    return {
        name: (walk(tree, drills.counter_values(name)).leaf.name, answer.finding or "device_bound")
        for name, answer in causes.items()
        if answer is not None and answer.finding != "out_of_memory"
    }


def leaves(tree: DecisionNode | DecisionLeaf) -> Iterator[DecisionLeaf]:
    """Yield every leaf of a tree, "yes" before "no"."""
    if isinstance(tree, DecisionLeaf):
        yield tree
    else:
        yield from leaves(tree.yes)
        yield from leaves(tree.no)


def _at_least(least: float) -> Callable[[float | None], bool]:
    """Return a test for a minimum; an absent value fails it."""
    return lambda value: value is not None and value >= least


def _minimum_node(
    question: str, fact: str, least: float, yes: DecisionNode | DecisionLeaf, no: DecisionNode | DecisionLeaf
) -> DecisionNode:
    return DecisionNode(question=question, fact_names=(fact,), predicate=_at_least(least), yes=yes, no=no)


def _fact_node(
    question: str, name: str, yes: DecisionNode | DecisionLeaf, no: DecisionNode | DecisionLeaf
) -> DecisionNode:
    return DecisionNode(question=question, fact_names=(name,), predicate=bool, yes=yes, no=no)


_WAITS_FOR_DATA = DecisionNode(
    question="Are there DataLoader workers?",
    fact_names=("worker_cpu",),
    predicate=lambda value: value is not None,
    yes=_minimum_node(
        "Does each worker use half a core or more?",
        "worker_cpu",
        0.5,
        yes=DecisionLeaf(name="cpu_bound_loading", action="make items cheaper to compute, or cache them"),
        no=DecisionLeaf(
            name="too_few_workers", action="use more workers: they wait for storage, and can wait in parallel"
        ),
    ),
    no=DecisionLeaf(name="no_workers", action="set num_workers: worker processes load the batches"),
)
_COPIES = DecisionNode(
    question="Are more bytes copied from the GPU than to it?",
    fact_names=("to_host", "to_gpu"),
    predicate=lambda to_host, to_gpu: (to_host or 0) > (to_gpu or 0),
    yes=DecisionLeaf(name="host_syncs", action="keep results on the GPU, and copy them to the host after the loop"),
    no=DecisionLeaf(name="pageable_copies", action="use pinned memory, and prefetch batches to the GPU"),
)
_HOST_BOUND = DecisionNode(
    question="Does operator dispatch take longer than Python code >= 0.2 ms?",
    fact_names=("calls", "python"),
    predicate=lambda calls, python: (calls or 0) > (python or 0),
    yes=DecisionLeaf(
        name="dispatch_bound", action="launch less often: CUDA graphs or torch.compile, or more work per call"
    ),
    no=DecisionLeaf(name="host_python", action="move that code out of the loop"),
)
_GPU_IDLE = _minimum_node(
    "Does the loop wait for data for a quarter of a step or more?",
    "loader",
    0.25,
    yes=_WAITS_FOR_DATA,
    no=_minimum_node(
        "Do exposed copies take a quarter of a step or more?", "copies", 0.25, yes=_COPIES, no=_HOST_BOUND
    ),
)
_KERNELS = DecisionNode(
    question="Is more than half of the kernel time outside matrix kernels?",
    fact_names=("matrix",),
    predicate=lambda value: value is not None and value < 0.5,
    yes=DecisionLeaf(
        name="unfused_elementwise", action="fuse the elementwise operators: torch.compile, or one fused operator"
    ),
    no=DecisionNode(
        question="Is more than half of the matrix-kernel time without tensor cores?",
        fact_names=("tensor_cores",),
        predicate=lambda value: value is not None and value < 0.5,
        yes=DecisionLeaf(name="no_tf32", action="use tensor cores: TF32, or 16 bits"),
        no=DecisionNode(
            question="Do fewer than 70 % of the multiprocessors have work?",
            fact_names=("filled",),
            predicate=lambda value: value is not None and value < 0.7,
            yes=DecisionLeaf(name="small_batch", action="use a larger batch: more work per kernel"),
            no=DecisionLeaf(name="device_bound", action="change nothing: the device is the limit"),
        ),
    ),
)
UTILISATION = _minimum_node(
    "Does the device compute half of a step or more?",
    "busy",
    0.5,
    yes=_minimum_node(
        "Does memory grow by half a MiB a step or more?",
        "growth",
        GROWTH_BYTES,
        yes=DecisionLeaf(
            name="memory_growth",
            action="store numbers (.item()) or detached tensors instead of tensors with their graphs",
        ),
        no=_minimum_node(
            "Does the optimizer take a fifth of a step or more?",
            "optimizer",
            0.2,
            yes=DecisionLeaf(name="unfused_optimizer", action="use a fused or foreach optimizer"),
            no=_KERNELS,
        ),
    ),
    no=_GPU_IDLE,
)

_LATER_STEP = _fact_node(
    "Does memory grow from step to step?",
    "grows",
    yes=_fact_node(
        "Does it grow only while evaluating?",
        "evaluating",
        yes=DecisionLeaf(name="evaluation", action="evaluate under torch.no_grad()"),
        no=DecisionLeaf(name="leak", action="find the list that stores tensors: append numbers, or detached tensors"),
    ),
    no=_fact_node(
        "Did the failing step need 1.5 times the memory of any earlier step?",
        "larger",
        yes=DecisionLeaf(name="long_sample", action="limit or bucket the length of samples"),
        no=_fact_node(
            "Is more memory reserved but unallocated than the request needed?",
            "fragmented",
            yes=DecisionLeaf(
                name="fragmentation", action="PYTORCH_ALLOC_CONF=expandable_segments:True; fewer different sizes"
            ),
            no=DecisionLeaf(
                name="neighbour", action="look for other processes on the GPU: the memory available to this one shrank"
            ),
        ),
    ),
)
_FIRST_STEP = _fact_node(
    "Does another process use a tenth of the memory or more?",
    "others",
    yes=DecisionLeaf(name="neighbour", action="stop the other process, or use another GPU"),
    no=_fact_node(
        "Do parameters, gradients and optimizer states alone exceed the GPU?",
        "states",
        yes=DecisionLeaf(
            name="states", action="smaller optimizer states, then sharding or offloading: no batch is small enough"
        ),
        no=DecisionLeaf(
            name="activations",
            action="cheapest first: fused attention, 16 bits, a smaller batch with accumulation, checkpointing, "
            "offloading",
        ),
    ),
)
OUT_OF_MEMORY = _fact_node("Does the first step fail?", "first_step", yes=_FIRST_STEP, no=_LATER_STEP)


def run_state_bytes(run: Run, *, copies: int = ADAM_COPIES) -> int:
    """Estimate the bytes of parameters, gradients and optimizer states from the parameters at the out-of-memory error.

    `copies`: tensors per parameter during training: 4 with Adam, 2 with plain SGD.
    """
    return copies * memory_holders(run).bytes_of("parameter")


def memory_facts(run: Run, *, copies: int = ADAM_COPIES) -> dict[str, bool]:
    """Read the facts for `OUT_OF_MEMORY` from a run that ran out of memory or is about to.

    `copies` as in `states_bytes`. `evaluating` is not recorded; it is False unless you set it.
    """
    failure, run_steps = run.failure, find_steps(run)
    grows = any(each.per_step.slope >= GROWTH_BYTES for each in memory_growths(run, run_steps))
    facts = {"first_step": failure is not None and not len(run.mark_rows), "grows": grows, "evaluating": False}
    if failure is None:
        return {**facts, "larger": False, "fragmented": False, "others": False, "states": False}
    requested, allocated = failure.needed_bytes or 0, failure.allocated_bytes or 0
    peak = max(run.allocator_rows["peak_allocated_bytes"].tolist(), default=0)
    capacity = failure.capacity_bytes or 0
    return {
        **facts,
        "larger": 0 < LARGER_FACTOR * peak < requested + allocated,
        "fragmented": (failure.reserved_bytes or allocated) - allocated > requested,
        "others": (failure.others_bytes or 0) > 0.1 * capacity,
        "states": run_state_bytes(run, copies=copies) > capacity > 0,
    }
