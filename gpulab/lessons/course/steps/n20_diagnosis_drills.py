"""Lesson 20, the capstone: twelve anonymous runs to diagnose, seven common questions, and two decision trees."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.labs.drills.cases import CASES, DrillCase
from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target


def _drill(case: DrillCase) -> Question:
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


_FAQ = (
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

LESSON = Lesson(
    id="20_diagnosis_drills",
    title="Diagnosis drills",
    question="can you find the cause on your own?",
    minutes=55,
    budget_s=40,
    level=3,
    without_gpu="no difference: all runs are recorded or virtual",
    prerequisites=(
        "01_what_is_utilisation",
        "05_data_loading",
        "07_host_to_device",
        "08_mixed_precision",
        "09_memory_anatomy_and_oom",
    ),
    outcomes=(
        "find the cause of a slow run from its ledger and its counters, before you read a verdict",
        "name the rival cause, and the counter that excludes it",
        "say which rules of thumb fail, and how often, among twelve runs",
        "get from an out-of-memory error to its fix with questions that a measurement can answer",
    ),
    symptom="A job is slow, or fails, and everyone has an opinion.",
    signature="Not a single number, but a counter that would read differently if the rival explanation were true.",
    fix="The first action for this cause, and then a new recording.",
    limits="The device is busy and full, and uses its fast units: then there is nothing to fix.",
    experiments=(
        LessonExperiment(
            number="20.1", description="twelve anonymous runs: guesses from utilisation, and causes from counters"
        ),
        LessonExperiment(number="20.2", description="seven common questions, each answered from a run"),
        LessonExperiment(number="20.3", description="two decision trees instead of one fix for everything"),
    ),
    questions=(
        Question(
            key="thumb",
            prompt="The program above uses only utilisation. For how many of the twelve runs is its advice right?",
            choices=(
                Choice(key="a", text="two or three", below=3.5, feedback="It has two answers for twelve runs."),
                Choice(key="b", text="about half", below=8.5, feedback="It has only two answers for twelve runs."),
                Choice(key="c", text="almost all", feedback="Utilisation shows that a device is idle, but not why."),
            ),
            expected="a",
            explanation="It has two answers, but the twelve runs need twelve. More thresholds would not help much: "
            "cases 1 and 7 both show 17 %, and cases 4, 11 and 12 show 100 %, each with another cause.",
            hints=(
                "How many different answers can the program give?",
                "Each of the twelve runs has another cause, and needs another first action.",
                'For an idle device, return "start workers" is its only answer.',
            ),
        ),
        Question(
            key="workers",
            prompt="Which of cases 1, 3 and 6 become much faster with four workers?",
            choices=(
                Choice(key="a", text="all three", feedback="In case 3, the DataLoader takes 1 % of a step."),
                Choice(
                    key="b",
                    text="cases 1 and 6, which wait for data",
                    feedback="The workers of case 6 already keep both cores busy.",
                ),
                Choice(key="c", text="only case 1"),
            ),
            right="c",
            explanation="Waiting for storage does not occupy a core, so four workers can wait at the same time. "
            "Computing "
            "occupies a core, and case 6 already uses both. In case 3, nothing waits for the DataLoader.",
            hints=(
                "What do the processes that load the batches do while the loop waits?",
                "Compare loader in each case with worker_cpu, and worker_cpu with the number of cores.",
                "Look at loader in case 3 and worker_cpu in case 6.",
            ),
        ),
        *(_drill(case) for case in CASES),
        *_FAQ,
        Question(
            key="oom",
            prompt="The run memory2 failed in its first step, in the optimizer, on a virtual T4 with 14.8 GiB. It has "
            "4.5 GiB of parameters in float32 and uses Adam. What filled the memory, and so what helps?",
            choices=(
                Choice(
                    key="a",
                    text="activations: a smaller batch",
                    feedback="Even a batch of one needs all parameters, gradients and optimizer state.",
                ),
                Choice(
                    key="b", text="states (weights, gradients, optimizer): make them smaller, shard or offload them"
                ),
                Choice(
                    key="c",
                    text="leak: something keeps tensors alive",
                    feedback="There was no earlier step in which memory could leak.",
                ),
            ),
            right="b",
            explanation="With gradients and Adam's two moments, there are four times as many bytes as parameters: 18 "
            "GiB, "
            "before the first sample is processed.",
            hints=(
                "In which phase did it fail?",
                "Compare the bytes of the parameters times four with the memory of the GPU.",
                'The entry states of decision_trees.memory_facts(drills.named_run("memory2")).',
            ),
        ),
        Question(
            key="transfer",
            prompt="A service processes one request at a time on its GPU. The monitor shows 97 %, a kernel has 12 "
            "blocks, the GPU has 132 multiprocessors, and the queue of requests grows. What do you do first?",
            choices=(
                Choice(
                    key="a",
                    text="a second GPU: this one is full",
                    feedback="120 of its multiprocessors have no work.",
                ),
                Choice(
                    key="b",
                    text="a faster tokenizer: requests wait",
                    feedback="They wait for the GPU, which is busy at 97 %.",
                ),
                Choice(key="c", text="process several requests at a time"),
            ),
            right="c",
            explanation="This is case 9 without training: busy all the time, but only a tenth of the GPU is filled. "
            "The "
            "counter filled excludes a full GPU.",
            hints=(
                "Which case is busy, but mostly empty?",
                "12 blocks on 132 multiprocessors.",
                "Look at filled in case 9.",
            ),
        ),
    ),
    targets=(
        Target(
            key="words",
            unit="right words of 36",
            value=30,
            lower_is_better=False,
            hints=(
                "Each case needs three words, and you can change them; the score counts your current answers.",
                "Look for the counter that differs by at least a factor of two between the case and its rival.",
                "The hints of each case name it.",
            ),
        ),
        Target(
            key="reads",
            unit="counter readings to find all twelve causes",
            value=52,
            hints=(
                "Which counter divides the twelve runs into halves?",
                "busy divides them six to six; loader, copies and growth divide the remaining ones.",
                "print(decision_trees.walk(decision_trees.UTILISATION, drills.counter_values(1))) shows the path of "
                "the tree, "
                "which needs 52.",
            ),
        ),
    ),
)
