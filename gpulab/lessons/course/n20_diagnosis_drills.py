"""Lesson 20, the capstone: twelve anonymous runs, seven questions that everybody asks, and two trees to walk."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.labs.drills.cases import CASES, Case
from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question


def _drill(case: Case) -> Question:
    """The question about a case: three words, of which the third excludes the rival."""
    words = ", ".join(f'"{word}"' for word in case.excluded_by[:1])
    return Question(
        key=case.key,
        ask=f"Case {case.number}: which cause, which first action, and which counter excludes {case.rival}?",
        because=case.because,
        judge=lambda pick: _problem(case, pick),
        hints=(
            case.look,
            f"Ask of each counter: would it read differently if the cause were {case.rival}?",
            f"The line of the evidence to hold against {case.rival} is {words}.",
        ),
    )


def _problem(case: Case, pick: Any) -> str | None:
    from gpulab.lessons.labs.drills.verdicts import problem  # reads runs: not before an answer is judged

    return problem(case, pick)


_FAQ = (
    Question(
        key="faq1",
        ask="A monitor shows 98 % GPU utilisation. What was measured?",
        choices=(
            Choice(key="a", text="the share of the arithmetic units that worked", told="One small kernel is enough."),
            Choice(key="b", text="the share of time in which at least one kernel ran"),
            Choice(key="c", text="the share of the GPU's peak rate", told="No operation was counted."),
        ),
        right="b",
        because="It tells that something ran, and not how much or how well. It matters because an idle GPU costs as "
        "much as a busy one; a busy one may still waste most of it, as in case 4.",
        hints=(
            "Compare cases 4 and 11.",
            "Hold busy against tensor_cores and filled.",
            "The line busy reads 100 % in both cases.",
        ),
    ),
    Question(
        key="faq2",
        ask="Two jobs show about 35 % in nvidia-smi. How do you find out why?",
        choices=(
            Choice(key="a", text="watch them with a better monitor", told="A monitor shows the same one number."),
            Choice(key="b", text="raise the batch size of both", told="That treats what nobody has diagnosed."),
            Choice(key="c", text="record a few steps of each, and split a step into what device and host did"),
        ),
        right="c",
        because="A monitor tells that there is a problem and for how long; the cause needs what host and device did "
        "at the same moment. Cases 2, 3 and 6 differ by a few percent of utilisation and in everything else.",
        hints=("Compare cases 2 and 6.", "Their busy is alike.", "The lines copies and loader are not."),
    ),
    Question(
        key="faq3",
        ask="When does mixed precision make a step several times as fast?",
        choices=(
            Choice(key="a", text="where matrix products take most of it, and not on tensor cores yet"),
            Choice(key="b", text="always: 16 bits are half of 32", told="Half of a part that is small is smaller."),
            Choice(key="c", text="where the GPU waits for data", told="It would wait for longer."),
        ),
        right="a",
        because="It shortens matrix products much, passes over memory by half at best, and waiting not at all. "
        "Where the device computes a fifth of a step, no format can save more than that fifth.",
        hints=(
            "Which part of a step does it shorten?",
            "busy, matrix and tensor_cores.",
            "The line tensor_cores of case 4 reads 0 %.",
        ),
    ),
    Question(
        key="faq4",
        ask="You double the batch. Which number tells whether the GPU is used better?",
        choices=(
            Choice(key="a", text="utilisation", told="It may already read 100 %, or rise without any gain."),
            Choice(key="b", text="memory in use", told="Full memory is no work done."),
            Choice(key="c", text="samples per second"),
        ),
        right="c",
        because="More samples in the same time is what a larger batch is for; it stops paying where kernels fill the "
        "GPU. What it does to the loss is a question of its own.",
        hints=("What do you pay for?", "Compare step time with samples in it.", "The line filled tells when it ends."),
    ),
    Question(
        key="faq5",
        ask="Which cause of low utilisation is so common that its remedy may be tried without looking?",
        choices=(
            Choice(key="a", text="data loading", told="Among the six here that are idle, it is two, of two kinds."),
            Choice(key="b", text="none: look first"),
            Choice(key="c", text="a small batch", told="Its GPU here is nearly always busy."),
        ),
        right="b",
        because="The six idle runs here have six causes: loading, the CPU, copies, fetches and calls look the same on "
        "a monitor. A recording of ten steps costs less than the first wrong guess.",
        hints=(
            "Count the causes among the idle cases.",
            "Which counters differ between them?",
            "The line busy is under 50 % in cases 1, 2, 3, 5, 6 and 7.",
        ),
    ),
    Question(
        key="faq6",
        ask="Training runs out of memory. What do you ask first?",
        choices=(
            Choice(key="a", text="whether it fails in the first step, or later"),
            Choice(key="b", text="how much smaller the batch must be", told="Against a leak no batch is small enough."),
            Choice(key="c", text="whether there is a larger GPU", told="A leak fills that one as well."),
        ),
        right="a",
        because="What fails at once does not fit; what fails later grows, or met one large sample. The remedies have "
        "nothing in common.",
        hints=(
            "When does a leak fail, and when a model that is too large?",
            "The number of complete steps.",
            "The first line of the tree below asks for it.",
        ),
    ),
    Question(
        key="faq7",
        ask="Parameters, gradients and optimizer states exceed one GPU. Which parallelism helps?",
        choices=(
            Choice(
                key="a",
                text="data parallelism: each GPU takes a part of the batch",
                told="Each would still hold all of the states.",
            ),
            Choice(key="b", text="splitting the model, or its states, among GPUs"),
            Choice(key="c", text="either of the two", told="Only one of them makes what a GPU holds smaller."),
        ),
        right="b",
        because="Plain data parallelism copies the whole model to every GPU and divides the batch alone; it makes "
        "training faster, not smaller.",
        hints=(
            "What does each GPU hold?",
            "Bytes of states for each GPU, before and after.",
            "The line states of the memory facts.",
        ),
    ),
)

LESSON = Lesson(
    id="20_diagnosis_drills",
    title="Diagnosis drills",
    question="can you name the cause before anybody tells you?",
    minutes=55,
    budget_s=40,
    level=3,
    without_gpu="nothing is different: all runs are recorded or virtual",
    before=(
        "01_what_is_utilisation",
        "05_data_loading",
        "07_host_to_device",
        "08_mixed_precision",
        "09_memory_anatomy_and_oom",
    ),
    outcomes=(
        "name the cause of a slow run from its ledger and its counters, before reading a verdict",
        "name the rival cause, and the counter that excludes it",
        "say which rules of thumb fail, and how often, among twelve runs",
        "walk from a failure to its remedy by questions that each have a measured answer",
    ),
    symptom="A job is slow, or fails, and everybody has an opinion.",
    signature="Not one number: a counter that would read differently if the rival explanation were true.",
    fix="The first action that belongs to the cause, and then a new recording.",
    not_when="The device is busy, filled and computes the fast way: then nothing needs a remedy.",
    experiments=(
        Experiment(number="20.1", shows="twelve anonymous runs: guesses by utilisation against causes by counters"),
        Experiment(number="20.2", shows="seven questions that everybody asks: answers by heart, each held to a run"),
        Experiment(number="20.3", shows="two trees: one remedy for everything against the leaf that facts lead to"),
    ),
    questions=(
        Question(
            key="thumb",
            ask="The program above reads utilisation alone. For how many of the twelve is its advice right?",
            choices=(
                Choice(key="a", text="two or three", below=3.5, told="It gives two answers to twelve questions."),
                Choice(key="b", text="about half", below=8.5, told="It gives two answers to twelve questions."),
                Choice(key="c", text="nearly all", told="Utilisation tells that a device idles, not why."),
            ),
            because="It has two answers, and the twelve need twelve. The same number stands for six different causes "
            "below one half, and for six more above it.",
            hints=(
                "How many different answers can the program give?",
                "Each of the twelve has another cause, and needs another first action.",
                'The line return "start workers" is all it knows of an idle device.',
            ),
        ),
        Question(
            key="workers",
            ask="Four workers in place of what there is: which of cases 1, 3 and 6 does that make much faster?",
            choices=(
                Choice(
                    key="a", text="all three", told="In case 3 the DataLoader takes one part in a hundred of a step."
                ),
                Choice(
                    key="b", text="cases 1 and 6, which wait for data", told="The workers of case 6 fill both cores."
                ),
                Choice(key="c", text="case 1 alone"),
            ),
            right="c",
            because="Waiting for storage needs no core, so four can wait at once. Computing needs one, and case 6 has "
            "used both. In case 3 nothing waits for the DataLoader.",
            hints=(
                "What do those who make the batches do while the loop waits?",
                "Hold loader of each case against its worker_cpu, and that against the number of cores.",
                "The lines loader of case 3 and worker_cpu of case 6.",
            ),
        ),
        *(_drill(case) for case in CASES),
        *_FAQ,
        Question(
            key="oom",
            ask="memory 2 failed in its first step, in the optimizer, on a virtual T4 of 14.8 GiB: 4.5 GiB of "
            "parameters in float32, trained with Adam. What filled the card, and so what helps?",
            choices=(
                Choice(key="a", text="activations: a smaller batch", told="Even a batch of one needs all the states."),
                Choice(key="b", text="states: smaller, sharded or offloaded"),
                Choice(key="c", text="leak: something keeps tensors", told="There was no step before to leak in."),
            ),
            right="b",
            because="With gradients and Adam's two averages there are four times as many bytes as parameters: 18 GiB, "
            "before a single sample is computed.",
            hints=(
                "In which phase did it fail?",
                "Bytes of parameters times four, against the card.",
                'The line states of memory_facts(drills.beside("memory2")).',
            ),
        ),
        Question(
            key="transfer",
            ask="A service answers one request at a time on its GPU. The monitor reads 97 %, a kernel has 12 blocks, "
            "the GPU 132 multiprocessors, and the queue of requests grows. What first?",
            choices=(
                Choice(key="a", text="a second GPU: this one is full", told="120 of its multiprocessors have no work."),
                Choice(key="b", text="a quicker tokenizer: requests wait", told="They wait for the GPU, busy at 97 %."),
                Choice(key="c", text="several requests at a time"),
            ),
            right="c",
            because="It is case 9 without training: busy all the time, and filled to a tenth. The counter filled "
            "excludes the full GPU.",
            hints=(
                "Which case is busy and mostly empty?",
                "12 blocks on 132 multiprocessors.",
                "The line filled of case 9.",
            ),
        ),
    ),
    pars=(
        Par(
            key="words",
            what="right words of 36",
            par=30,
            lower_is_better=False,
            hints=(
                "Each case has three words, and can be answered again; the figure counts what stands there now.",
                "Look for the counter in which case and rival differ by a factor of two at least.",
                "The hints of each case name it.",
            ),
        ),
        Par(
            key="reads",
            what="counters read to name all twelve causes",
            par=52,
            hints=(
                "Ask first what divides the twelve into halves.",
                "busy divides them six to six; loader, copies and growth divide what is left.",
                "print(trees.walk(trees.UTILISATION, drills.reads(1))) shows the way of the tree, which needs 52.",
            ),
        ),
    ),
)
