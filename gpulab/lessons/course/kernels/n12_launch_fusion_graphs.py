"""Lesson 12: a GPU that waits for kernel launches, and four ways to give each launch more work."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_OTHER_KEYWORDS = {  # wrong answers to the question "keyword": what each keyword of Adam does
    "foreach": "foreach is the second implementation: lists of tensors.",
    "capturable": "capturable lets a CUDA graph record the step; it does not fuse it into one kernel.",
    "amsgrad": "amsgrad selects another formula.",
    "maximize": "maximize reverses the direction of the update.",
    "differentiable": "differentiable lets autograd differentiate through the step.",
    "decoupled_weight_decay": "decoupled_weight_decay selects another formula.",
}


def _check_keyword(answer: Any) -> str | None:
    """Return the problem with a keyword of Adam that should select the fused kernel; None if it is right."""
    if not isinstance(answer, dict) or len(answer) != 1:
        return 'write one keyword, for example {"name": True}.'
    (keyword, value) = next(iter(answer.items()))
    if keyword == "fused":
        return None if value is True else "the value must be True."
    return _OTHER_KEYWORDS.get(keyword, "Adam has no such keyword; its signature lists them all.")


_SIGNATURE = (
    Question(
        key="idle",
        prompt="A small model generates text on an H100, one token at a time. What share of the time is the GPU idle?",
        choices=(
            Choice(key="a", text="less than a tenth", below=0.1, feedback="Its kernels take only a few microseconds."),
            Choice(
                key="b",
                text="a tenth to a half",
                below=0.5,
                feedback="A launch takes longer than the kernel it starts.",
            ),
            Choice(key="c", text="more than half", feedback="A kernel finishes before the next one is launched."),
        ),
        expected="c",
        explanation="Each kernel processes a single token and finishes in microseconds. Python and PyTorch need longer "
        "than that to launch the next one.",
        hints=(
            "How much work is a single token?",
            "Compare the duration of a kernel with the time that PyTorch needs to call an operator.",
            "Kernels of 2 to 4 us, and at least 10 us from launch to launch.",
        ),
    ),
    Question(
        key="cause",
        prompt="The report says that the GPU waits for launches of small kernels. Which of its numbers would be "
        "much smaller if the GPU waited for data, or for a value that the host reads from the GPU?",
        choices=(
            Choice(key="a", text="GPU idle", feedback="The GPU is idle in all three cases."),
            Choice(
                key="b",
                text="launch calls, operator dispatch and Python code < 0.2 ms at a time",
                feedback="In the other two cases, the idle time would be in other rows.",
            ),
            Choice(key="c", text="step", feedback="The step time does not say what the time is spent on."),
        ),
        right="b",
        explanation="Waiting for data and 'synchronising calls' are rows of the same table, and the rows add up to "
        "the "
        "step time. Here both are zero.",
        hints=(
            "Look at the table 'Where the step time goes'.",
            "Compare the rows under 'GPU idle': each possible cause has its own row.",
            "'waiting for data' and 'synchronising calls' are listed below the table, with the parts that took no "
            "time.",
        ),
    ),
)
_FUSION = (
    Question(
        key="fuse",
        prompt="GELU as a formula is eight operators; each of them reads and writes a large tensor. A fused operator "
        "reads and writes the tensor only once. How much faster is it?",
        choices=(
            Choice(
                key="a",
                text="not faster: the arithmetic is the same",
                below=1.5,
                feedback="Arithmetic is not the limit here.",
            ),
            Choice(key="b", text="two to four times", below=4.5, feedback="Count the reads and writes of the tensor."),
            Choice(key="c", text="more than that", feedback="18 tensors are read or written, compared with 2."),
        ),
        expected="c",
        explanation="The formula reads or writes a tensor eighteen times, the fused operator twice. The arithmetic is "
        "the "
        "same, and takes almost no time.",
        hints=(
            "Count how often the tensor is read and written.",
            "Compare the bytes: six operators have one input, two operators have two, and each has one output.",
            "6 x 2 + 2 x 3 = 18 tensors, compared with 2.",
        ),
    ),
    Question(
        key="adam",
        prompt="Adam updates 100 parameters in a Python loop. How many kernels does one optimizer step launch?",
        choices=(
            Choice(key="a", text="1", below=10, feedback="That is the fused implementation."),
            Choice(
                key="b", text="100, one per parameter", below=300, feedback="Adam's formula needs several operators."
            ),
            Choice(key="c", text="several hundred", feedback="Each parameter needs about seven operators."),
        ),
        expected="c",
        explanation="Each parameter needs all operators of Adam's formula: the decay of both moments, a square root, "
        "two "
        "divisions, an update.",
        hints=(
            "Write down Adam's formula and count its operators.",
            "Compare the number of operators with the number of parameters.",
            "About seven for each of 100.",
        ),
    ),
    Question(
        key="keyword",
        prompt="Which keyword of torch.optim.Adam runs the whole formula as one kernel?",
        explanation="One kernel iterates over lists of parameters and applies the whole formula to each number that it "
        "reads.",
        hints=(
            "Look at the signature of torch.optim.Adam: help(torch.optim.Adam).",
            "One of its switches has the name of the topic of this section.",
            'best = {"fused": True}',
        ),
        find_problem=_check_keyword,
    ),
    Question(
        key="graph",
        prompt="Every token needs the same kernels in the same order. A CUDA graph records them once and launches all "
        "of "
        "them with one call. How does it change the time per token?",
        choices=(
            Choice(key="a", text="hardly: the kernels are the same", below=1.3, feedback="The gaps are not the same."),
            Choice(
                key="b",
                text="to half",
                below=2.5,
                feedback="Compare the total time of the gaps with that of the kernels.",
            ),
            Choice(key="c", text="to a third or less", feedback="Almost all of the time per token was gaps."),
        ),
        expected="c",
        explanation="The kernels stay the same; the gaps between them disappear, and they took most of the time.",
        hints=(
            "Look at the share of time in which the GPU is idle.",
            "Compare the busy time with the step time: a graph leaves little more than the busy time.",
            "In the table of %gpuwhatif, the rows of launching, dispatch and Python code shrink most.",
        ),
    ),
    Question(
        key="breaks",
        prompt="A function reads a value with .item() in the middle. Into how many graphs does torch.compile split it?",
        choices=(
            Choice(
                key="a",
                text="none: it raises an error",
                feedback="It continues in Python, and then starts a new graph.",
            ),
            Choice(key="b", text="1", feedback="A graph contains tensors; a number that Python needs ends it."),
            Choice(key="c", text="2", feedback="One before the value is read, and one after."),
        ),
        right="c",
        explanation="To return a number to Python, all work before it must be finished. The code after it becomes "
        "another "
        "graph, and nothing is fused across this graph break.",
        hints=(
            "When does Python need to know the number?",
            "Count the sections of tensor code between the places that need Python.",
            "The line with .item() is between two such sections.",
        ),
    ),
    Question(
        key="loop",
        prompt="A kernel scales 1,056 tiles of an array by one table. As a persistent kernel, it starts 132 programs, "
        "one per multiprocessor, and each processes one tile after the other. How often is the table loaded, compared "
        "with one program per tile?",
        choices=(
            Choice(key="a", text="as often", feedback="A program can keep the table for its next tile."),
            Choice(key="b", text="an eighth as often", feedback="Once per program instead of once per tile."),
            Choice(key="c", text="once in total", feedback="Programs do not share their fast memory."),
        ),
        right="b",
        explanation="A program loads the table once and keeps it for all of its eight tiles.",
        hints=(
            "How many programs are there?",
            "Compare the number of loads with the number of programs, not with the number of tiles.",
            "132 programs, 8 tiles each.",
        ),
    ),
    Question(
        key="null",
        prompt="A model of four large matrix products trains in bfloat16 with large batches. How much does a fused "
        "optimizer gain per step?",
        choices=(
            Choice(key="a", text="less than 2 %", below=1.02, feedback="The optimizer is a small part of this step."),
            Choice(
                key="b", text="2 to 20 %", below=1.2, feedback="For that, the optimizer would have to be a larger part."
            ),
            Choice(key="c", text="more", feedback="That was the optimizer on its own, with small parameters."),
        ),
        expected="a",
        explanation="A change cannot gain more than the time of the part it changes. Here, matrix products "
        "are almost nine tenths of the step, and GELU is most of the rest.",
        hints=(
            "What share of the step does the optimizer take?",
            "Compare the time of the optimizer kernels with the time of the matrix products.",
            "'matrix kernels' and GELU are almost the whole step.",
        ),
    ),
    Question(
        key="transfer",
        prompt="Another run: GPU idle 70 %; 40 kernels per step with a median of 900 us; 'synchronising calls' 66 %; "
        "launch calls and dispatch 3 %. What do you do first?",
        choices=(
            Choice(
                key="a",
                text="capture the step as a CUDA graph",
                feedback="Launches and dispatch take 3 %, so you cannot gain more than that.",
            ),
            Choice(
                key="b",
                text="find the code that reads values in the loop",
                feedback="The idle time follows a synchronisation.",
            ),
            Choice(key="c", text="fuse kernels", feedback="There are few kernels, and they are long already."),
        ),
        right="b",
        explanation="The GPU is idle, but not because of launches: the kernels are long, and launches take 3 %. Most "
        "of "
        "the idle time follows synchronisations by the host; notebook 07 covers them.",
        hints=(
            "Compare with the signature: is the median kernel shorter than 10 us?",
            "Which row contains the idle time?",
            "'synchronising calls' 66 % is the decisive number.",
        ),
    ),
)

LESSON = Lesson(
    id="12_launch_fusion_graphs",
    title="Launches, fusion and graphs",
    question="why does the GPU wait between small kernels?",
    minutes=45,
    budget_s=60,
    level=2,
    without_gpu="launches, bytes and graphs are counted for real; times come from a virtual H100, and the gains of "
    "CUDA graphs and torch.compile are predicted",
    prerequisites=("01_what_is_utilisation",),
    outcomes=(
        "use three counters to tell a launch-bound run from one that waits for data",
        "fuse a formula and an optimizer, and count what that saves",
        "calculate after how many calls torch.compile pays off",
        "find graph breaks, and recognise when none of this helps",
    ),
    symptom="The GPU is idle although data is available and nothing waits for a value; the host is busy launching "
    "kernels.",
    signature="Kernels shorter than 10 us with gaps between them; the idle time is in launch calls, operator dispatch "
    "and Python code < 0.2 ms at a time.",
    fix="Fewer, larger kernels: larger batches, fused operators, fused optimizers, torch.compile, CUDA graphs.",
    limits="Kernels are long: then launches overlap with GPU work, and saving them gains nothing. Fusing a chain of "
    "elementwise kernels still saves memory traffic.",
    experiments=(
        LessonExperiment(
            number="12.1", description="a launch-bound program, one that waits for data, and one with a busy GPU"
        ),
        LessonExperiment(number="12.2", description="a formula as eight operators, and as one"),
        LessonExperiment(number="12.3", description="Adam as a loop, with foreach, and fused"),
        LessonExperiment(number="12.4", description="a decoder launched kernel by kernel, and as one CUDA graph"),
        LessonExperiment(
            number="12.5", description="large matrix products: fused optimizer, compiler and graph gain nothing"
        ),
        LessonExperiment(number="12.6", description="a function with a graph break, and without one"),
        LessonExperiment(number="12.7", description="a launch per tile, a program per tile, and persistent programs"),
    ),
    questions=(*_SIGNATURE, *_FUSION),
    targets=(
        Target(
            key="loads",
            unit="loads of the table",
            value=132,
            hints=(
                "What does one program do in one_tile, and how often does it load the table?",
                "Count the loads: call program.load() once before a loop over tiles, not inside it.",
                "for tile in range(program.index, TILES, program.programs)",
            ),
        ),
    ),
)
