"""Lesson 12: a GPU that waits for the next small piece of work, and four ways to hand it larger ones."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

_OTHERS = {  # keywords of Adam that are not the one asked for
    "foreach": "that is the second way, lists of tensors.",
    "capturable": "that lets a CUDA graph record the step; it makes no kernel of it.",
    "amsgrad": "that is another formula.",
    "maximize": "that turns the direction round.",
    "differentiable": "that lets autograd go through the step.",
    "decoupled_weight_decay": "that is another formula.",
}


def _wrong_keyword(value: Any) -> str | None:
    """What is wrong with a keyword of Adam that is to ask for one kernel."""
    if not isinstance(value, dict) or len(value) != 1:
        return 'write one keyword, as {"name": True}.'
    (name, on) = next(iter(value.items()))
    if name == "fused":
        return None if on is True else "it has to be switched on: True."
    return _OTHERS.get(name, "Adam has no such switch; its signature lists what it has.")


_SEEN = (
    Question(
        key="idle",
        ask="A small model writes a text on an H100, one token at a time. Which share of the time does the GPU stand "
        "still?",
        choices=(
            Choice(key="a", text="less than a tenth", below=0.1, told="Its kernels take a few microseconds each."),
            Choice(key="b", text="a tenth to a half", below=0.5, told="A call costs more than the kernel it starts."),
            Choice(key="c", text="more than half", told="A kernel is over before the next one is called for."),
        ),
        because="Each kernel has one token to work on and is done in microseconds. Python and PyTorch need longer than "
        "that to call for the next.",
        hints=(
            "Ask how much work one token is.",
            "Compare the length of a kernel with the time PyTorch needs to call an operator.",
            "Kernels of 2 to 4 us, and 10 us and more from call to call.",
        ),
    ),
    Question(
        key="cause",
        ask="The report says that the GPU waits for calls of small kernels. Which of its readings would tell you if it "
        "waited for data instead, or for a value that is read from the GPU?",
        choices=(
            Choice(key="a", text="GPU idle", told="The GPU stands still in all three cases."),
            Choice(
                key="b",
                text="launch calls, operator dispatch and Python between operators",
                told="In the rival cases the idle time would stand in other rows.",
            ),
            Choice(key="c", text="step", told="How long a step is says nothing of what it is spent on."),
        ),
        right="b",
        because="Waiting for data, and after synchronisation, are rows of the same table, and the rows sum to the "
        "step. Here both read zero.",
        hints=(
            "Look at the table 'Where a step goes'.",
            "Compare the rows under 'GPU idle': one of them holds the idle time of each rival.",
            "The rows 'waiting for data' and 'after synchronisation' are named below the table, among those without "
            "time.",
        ),
    ),
)
_FEWER = (
    Question(
        key="fuse",
        ask="GELU written as a formula is eight operators, each a pass over a large tensor. One operator that does all "
        "of it reads and writes the tensor once. How many times as fast is it?",
        choices=(
            Choice(
                key="a", text="no faster: the arithmetic is the same", below=1.5, told="Arithmetic is not the cost."
            ),
            Choice(key="b", text="two to four times", below=4.5, told="Count the passes over memory."),
            Choice(key="c", text="more than that", told="Eighteen tensors travel, or two."),
        ),
        because="The formula moves its tensor eighteen times, the single operator twice. Arithmetic is the same, and "
        "next to free.",
        hints=(
            "Count how often the tensor is read and written.",
            "Compare bytes moved: six operators with one input, two operators with two, each with one output.",
            "6 x 2 + 2 x 3 = 18 tensors, against 2.",
        ),
    ),
    Question(
        key="adam",
        ask="Adam updates 100 parameters in a Python loop. How many kernels does one step launch?",
        choices=(
            Choice(key="a", text="1", below=10, told="That is the fused one."),
            Choice(key="b", text="100, one for each", below=300, told="Adam's formula has several operators."),
            Choice(key="c", text="several hundred", told="Each parameter passes through seven operators or so."),
        ),
        because="Each parameter passes through the operators of Adam's formula: decay of both moments, a root, two "
        "divisions, an update.",
        hints=(
            "Write down Adam's formula and count its operators.",
            "Compare the number of operators with the number of parameters.",
            "About seven for each of 100.",
        ),
    ),
    Question(
        key="keyword",
        ask="Which keyword of torch.optim.Adam makes one kernel of the whole formula?",
        because="One kernel goes through lists of parameters and does all of the formula for each number it reads.",
        hints=(
            "Look at the signature of torch.optim.Adam: help(torch.optim.Adam).",
            "Of its switches, one names what this section is about.",
            'best = {"fused": True}',
        ),
        judge=_wrong_keyword,
    ),
    Question(
        key="graph",
        ask="Every token needs the same kernels in the same order. A CUDA graph records them once and starts all of "
        "them by one call. What is expected of a token's time?",
        choices=(
            Choice(key="a", text="the same: the kernels are the same", below=1.3, told="The gaps are not the same."),
            Choice(key="b", text="half", below=2.5, told="Compare what the gaps take with what kernels take."),
            Choice(key="c", text="a third or less", told="Nearly all of a token's time was gaps."),
        ),
        because="The kernels stay as they are; what goes is the time between them, and that was most of it.",
        hints=(
            "Look at the share in which the GPU stands still.",
            "Compare busy time with the whole step: a graph leaves little more than the busy time.",
            "In the table of %gpuwhatif the rows of calling fall to almost nothing.",
        ),
    ),
    Question(
        key="breaks",
        ask="A function reads one value with .item() half way. Into how many graphs does torch.compile cut it?",
        choices=(
            Choice(key="a", text="none: it refuses", told="It goes on in Python, and then starts again."),
            Choice(key="b", text="1", told="A graph holds tensors; a number that Python needs now ends it."),
            Choice(key="c", text="2", told="One before the number is read, one after."),
        ),
        right="c",
        because="To give Python a number, all work before it must be done. What comes after is another graph, and "
        "nothing is fused across the cut.",
        hints=(
            "Ask when the number must be known.",
            "Count the stretches of tensor code between stretches that need Python.",
            "The line with .item() stands between two such stretches.",
        ),
    ),
    Question(
        key="loop",
        ask="1,056 tiles of an array are to be scaled by one table. A persistent kernel starts 132 programs, one for "
        "each multiprocessor, and each does tile after tile. How often is the table fetched, beside a kernel with one "
        "program for each tile?",
        choices=(
            Choice(key="a", text="as often", told="A program can keep what it fetched for its next tile."),
            Choice(key="b", text="an eighth as often", told="Once for each program, not once for each tile."),
            Choice(key="c", text="once in all", told="Programs do not share their fast memory."),
        ),
        right="b",
        because="A program fetches the table once and keeps it for the eight tiles it does.",
        hints=(
            "Ask how many programs there are.",
            "Compare loads with programs, not with tiles.",
            "132 programs, 8 tiles each.",
        ),
    ),
    Question(
        key="null",
        ask="A model of four large matrix products trains in bfloat16 on big batches. What does a fused optimizer gain "
        "for a step?",
        choices=(
            Choice(key="a", text="less than 2 %", below=1.02, told="The optimizer is a small part of this step."),
            Choice(key="b", text="2 to 20 %", below=1.2, told="That would need an optimizer that takes so much."),
            Choice(key="c", text="more", told="That was the optimizer alone, on small parameters."),
        ),
        because="No change gains more than the part it changes takes. Here nearly all of the step is matrix products.",
        hints=(
            "Ask which share of the step the optimizer takes.",
            "Compare the kernels of the optimizer with those of the products, in time.",
            "The row 'matrix kernels' is nearly all of the step.",
        ),
    ),
    Question(
        key="transfer",
        ask="Another run: GPU idle 70 %; 40 kernels a step, median 900 us; 'after synchronisation' 66 %; launch calls "
        "and dispatch 3 %. What do you do first?",
        choices=(
            Choice(key="a", text="capture the step as a CUDA graph", told="Calling takes 3 %: no more can be gained."),
            Choice(key="b", text="look for what reads values in the loop", told="The idle time stands after a wait."),
            Choice(key="c", text="fuse kernels", told="They are long already, and few."),
        ),
        right="b",
        because="Idle it is, and not for want of launches: the kernels are long, and calling is 3 %. Most of the idle "
        "time follows waits of the host: 07 is the notebook for it.",
        hints=(
            "Compare with the signature: is the median kernel under 10 us?",
            "Ask which row holds the idle time.",
            "'after synchronisation 66 %' is the line.",
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
    without_gpu="launches, bytes and graphs are counted for real; times are those of a virtual H100, and CUDA graphs "
    "and torch.compile are forecast",
    before=("01_what_is_utilisation",),
    outcomes=(
        "tell waiting for launches from waiting for data by three readings of a run",
        "fuse a formula and an optimizer, and count what that saves",
        "say after how many calls compiling has paid",
        "find what cuts a compiled graph, and when none of this helps",
    ),
    symptom="The GPU is idle although data is there and nothing waits for a value; the host is busy calling.",
    signature="Kernels under 10 us with gaps between them; the idle time stands in launch calls, dispatch and Python "
    "between operators.",
    fix="Fewer, larger pieces: more samples a step, operators that do more, fused optimizers, torch.compile, CUDA "
    "graphs.",
    not_when="Kernels are long: then calls are made while the GPU works, and saving them gains nothing.",
    experiments=(
        Experiment(number="12.1", shows="a formula of eight operators against one"),
        Experiment(number="12.2", shows="an optimizer that loops, that goes by lists, that is fused"),
        Experiment(number="12.3", shows="a decoder launched kernel by kernel, and as one CUDA graph"),
        Experiment(number="12.4", shows="a function that torch.compile cuts in two, and the same in one graph"),
        Experiment(number="12.5", shows="a launch for each tile, a program for each tile, programs that stay"),
        Experiment(number="12.6", shows="waiting for launches against waiting for data and against a busy GPU"),
        Experiment(number="12.7", shows="large matrix products: fused optimizer, compiler and graph gain nothing"),
    ),
    questions=(*_SEEN, *_FEWER),
    pars=(
        Par(
            key="loads",
            what="loads of the table",
            par=132,
            hints=(
                "Look at what one program does in one_tile, and how often it fetches.",
                "Count loads: one call of program.load() before a loop over tiles, not one in it.",
                "for tile in range(program.place, TILES, program.programs)",
            ),
        ),
    ),
)
