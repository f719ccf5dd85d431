"""The questions of lesson 20: about each case, profiler tables and timelines, and seven that are asked often."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.labs.drills.cases import DrillCase
from gpulab.lessons.lesson import Choice, Question


def drill_question(case: DrillCase) -> Question:
    """The question about a case: cause, first action, and the counter that excludes the rival cause."""
    counter = f'"{case.excluded_by[0]}"'
    return Question(
        key=case.key,
        prompt=f"Case {case.number}: what is the cause, which first action, and which counter excludes {case.rival}?",
        explanation=case.explanation,
        find_problem=lambda answer: _problem(case, answer),
        hints=(
            case.hint,
            f"For each counter, ask: would it read differently if the cause were {case.rival}?",
            f"The counter that excludes {case.rival} is {counter}.",
        ),
    )


def _problem(case: DrillCase, answer: Any) -> str | None:
    from gpulab.lessons.labs.drills.answer_checks import answer_problem  # reads runs: only when an answer is judged

    return answer_problem(case, answer)


def _timeline_problem(answer: Any) -> str | None:
    from gpulab.lessons.labs.drills.timelines import timeline_problem  # reads runs: only when an answer is judged

    return timeline_problem(answer)


PROFILE_QUESTIONS = (
    Question(
        key="table",
        prompt="The model has eight linear layers, and the loop ran three steps. What does the table show?",
        choices=(
            Choice(
                key="a",
                text="the optimizer takes most of the time",
                feedback="Optimizer.step has a small share of the time.",
            ),
            Choice(key="b", text="each layer computes its forward pass twice per step"),
            Choice(
                key="c",
                text="tensors are converted between number formats",
                feedback="aten::to and aten::copy_ are not among the rows with the most time.",
            ),
        ),
        right="b",
        explanation="Eight layers and three steps need 24 calls of aten::addmm; the table shows 48. The loop uses "
        "activation checkpointing: it drops activations, and computes them again in the backward pass. That is right "
        "if memory is short, and wasted time if it is not (see notebook 10).",
        hints=(
            "Read the column # of Calls.",
            "How many calls of aten::addmm do eight layers need in three steps?",
            "Backward does not call aten::gelu: it calls aten::gelu_backward.",
        ),
    ),
    Question(
        key="sorted",
        prompt="One step of a real H100, first sorted by GPU time, then by CPU time. Which change is the first to try?",
        choices=(
            Choice(
                key="a",
                text="a lower precision for the matrix products: aten::mm is at the top",
                feedback="All kernels together take 4 ms of the step.",
            ),
            Choice(key="b", text="a fused optimizer: it makes many short calls on the CPU"),
            Choice(
                key="c",
                text="a larger model: the GPU is not used",
                feedback="That makes the step longer, not shorter.",
            ),
        ),
        right="b",
        explanation="The GPU works for a fifteenth of the step. Optimizer.step takes 41 ms of CPU time, because it "
        "updates 160 tensors one by one, with seven kinds of operators. With fused=True, the step was recorded 2.3 "
        "times as fast.",
        hints=(
            "Compare Self CUDA time total with the step time.",
            "Sort by cpu_time_total, and read the first row.",
            "Which operators have 160 or 320 calls?",
        ),
    ),
    Question(
        key="timelines",
        prompt="Which cause does each timeline show?",
        find_problem=_timeline_problem,
        explanation="In A, launches fill the CPU's time and kernels fill small parts of their slots. In B, a copy to "
        "the host follows the kernels, and the CPU waits in the copy call. In C, operators run on the CPU, then their "
        "result is copied. In D, a copy to the GPU begins when the last kernel has ended.",
        hints=(
            "For each timeline, ask what the GPU does in most slots, and then what the CPU does in these slots.",
            "The arrows show the direction of a copy: > to the GPU, < to the host.",
            "A has no copies; in C, the CPU computes before its copy begins.",
        ),
    ),
    Question(
        key="ranks",
        prompt="Two ranks train together. Which one do you look at first, and for what?",
        choices=(
            Choice(
                key="a",
                text="rank 0: it spends nearly all of its step in the all-reduce",
                feedback="It waits there until the other rank arrives.",
            ),
            Choice(key="b", text="rank 1: what does it do before it arrives at the all-reduce?"),
            Choice(
                key="c",
                text="the network: the all-reduce is too slow",
                feedback="Once rank 1 has arrived, the all-reduce takes two slots.",
            ),
        ),
        right="b",
        explanation="The rank with the shortest all-reduce is the one that arrives last. Rank 1 sleeps before each "
        "step; the recording of rank 0 alone looks like slow communication.",
        hints=(
            "Compare the lengths of the two all-reduces.",
            "When does the short one begin?",
            "The other rank waits for the last one to arrive.",
        ),
    ),
    Question(
        key="unseen",
        prompt="The tree finds the cause of all twelve cases that it was written for. Of how many of 13 recordings of "
        "a real H100 does it find the cause?",
        choices=(
            Choice(key="a", text="six or fewer", below=6.5, feedback="Most of its causes occur on a real GPU, too."),
            Choice(
                key="b",
                text="seven to ten",
                below=10.5,
                feedback="A tree can only name causes that it has a leaf for.",
            ),
            Choice(
                key="c",
                text="eleven or more",
                feedback="It was written with twelve causes at hand; some of these recordings have others.",
            ),
        ),
        expected="b",
        explanation="For four of the recordings, the tree has no leaf with the right cause, so it names another one. "
        "In the fifth, the optimizer is slow on the host, and the tree asks for the optimizer only if the GPU is busy.",
        hints=(
            "Can a tree name a cause that none of its leaves has?",
            "Which causes of cases 13 to 15 are not among the twelve?",
            "Layout conversions, cudaMalloc in each step, slow reads, tensors created on the CPU.",
        ),
    ),
)

COMMON_QUESTIONS = (
    Question(
        key="faq1",
        prompt="A monitor shows 98 % GPU utilisation. What does this number measure?",
        choices=(
            Choice(
                key="a",
                text="the share of arithmetic units that were busy",
                feedback="One small kernel is enough to raise it.",
            ),
            Choice(key="b", text="the share of time in which at least one kernel ran"),
            Choice(key="c", text="the share of the GPU's peak rate", feedback="It does not count operations."),
        ),
        right="b",
        explanation="It says that something ran, but not how much or how efficiently. It is useful, because an idle "
        "GPU "
        "costs as much as a busy one; but a busy GPU may still waste most of its capacity, as in case 4.",
        hints=(
            "Look at case 4 again.",
            "Compare busy with tensor_cores.",
            "In case 4, busy is 100 % and tensor_cores is 0 %.",
        ),
    ),
    Question(
        key="faq2",
        prompt="Two jobs show about 35 % in nvidia-smi. How do you find out why?",
        choices=(
            Choice(
                key="a", text="watch them with a better monitor", feedback="A monitor shows the same single number."
            ),
            Choice(key="b", text="increase the batch size of both", feedback="That is a fix without a diagnosis."),
            Choice(key="c", text="record a few steps of each, and see what device and host do in each part of a step"),
        ),
        right="c",
        explanation="A monitor shows that there is a problem and how long it lasts. To find the cause, you need to "
        "know "
        "what host and device did at the same time. Cases 2 and 3 show almost the same utilisation, but differ in "
        "everything else.",
        hints=("Compare cases 2 and 3.", "busy is similar in both.", "copies and python are not."),
    ),
    Question(
        key="faq3",
        prompt="When does mixed precision make a step several times as fast?",
        choices=(
            Choice(key="a", text="if matrix products take most of it, and do not use tensor cores yet"),
            Choice(
                key="b",
                text="always: 16 bits are half of 32",
                feedback="Halving a small part of the step saves little.",
            ),
            Choice(key="c", text="if the GPU waits for data", feedback="It would wait even longer."),
        ),
        right="a",
        explanation="It speeds up matrix products a lot, memory-bound kernels by a factor of two at best, and waiting "
        "not "
        "at all. If the device computes for a fifth of a step, no number format can save more than that fifth.",
        hints=(
            "Which part of a step does it make shorter?",
            "Look at busy, matrix and tensor_cores.",
            "tensor_cores is 0 % in case 4.",
        ),
    ),
    Question(
        key="faq4",
        prompt="You double the batch size. Which number shows whether the GPU is used better?",
        choices=(
            Choice(key="a", text="utilisation", feedback="It may already be 100 %, or rise without any gain."),
            Choice(key="b", text="used memory", feedback="Full memory does not mean more work."),
            Choice(key="c", text="samples per second"),
        ),
        right="c",
        explanation="The purpose of a larger batch is more samples in the same time; the gain ends when the kernels "
        "fill "
        "the GPU. The effect on the loss is a separate question.",
        hints=(
            "What do you want more of?",
            "Compare the step time with the number of samples per step.",
            "filled shows when the gain ends.",
        ),
    ),
    Question(
        key="faq5",
        prompt="Which cause of low utilisation is so common that you may try its fix without measuring?",
        choices=(
            Choice(
                key="a",
                text="data loading",
                feedback="Of the six idle runs here, only two wait for data, for different reasons.",
            ),
            Choice(key="b", text="none: measure first"),
            Choice(
                key="c", text="a small batch", feedback="In the small-batch case here, the GPU is almost always busy."
            ),
        ),
        right="b",
        explanation="The six idle runs here have six different causes: data loading, CPU time, copies, "
        "synchronisations "
        "and launches look the same on a monitor. A recording of ten steps costs less than the first wrong guess.",
        hints=(
            "Count the causes among the idle cases.",
            "Which counters differ between them?",
            "busy is below 50 % in cases 1, 2, 3, 5, 6 and 7.",
        ),
    ),
    Question(
        key="faq6",
        prompt="Training runs out of memory. What do you ask first?",
        choices=(
            Choice(key="a", text="whether it fails in the first step or later"),
            Choice(
                key="b",
                text="by how much to reduce the batch size",
                feedback="If memory leaks, no batch is small enough.",
            ),
            Choice(key="c", text="whether there is a larger GPU", feedback="A leak fills that one too."),
        ),
        right="a",
        explanation="If the first step fails, the program does not fit. If a later step fails, memory grows, or one "
        "sample is too large. These need different fixes.",
        hints=(
            "When does a leak fail, and when a model that is too large?",
            "Look at the number of complete steps.",
            "The first question of the decision tree below asks for it.",
        ),
    ),
    Question(
        key="faq7",
        prompt="Parameters, gradients and optimizer state exceed the memory of one GPU. Which kind of parallelism "
        "helps?",
        choices=(
            Choice(
                key="a",
                text="plain data parallelism (DDP): each GPU processes a part of the batch",
                feedback="Each GPU would still hold all parameters, gradients and optimizer state.",
            ),
            Choice(key="b", text="splitting the model, or its optimizer state, across GPUs"),
            Choice(key="c", text="either of the two", feedback="Only one of them reduces the memory per GPU."),
        ),
        right="b",
        explanation="Plain data parallelism copies the whole model to every GPU and splits only the batch; it makes "
        "training faster, but does not reduce the memory per GPU. FSDP and ZeRO also split the batch; they help "
        "because they shard parameters, gradients or optimizer state, too.",
        hints=(
            "What does each GPU hold?",
            "Compare the bytes of model and optimizer state per GPU, before and after.",
            "See states in the memory facts.",
        ),
    ),
)
