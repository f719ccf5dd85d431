"""Lesson 20, the capstone: twelve anonymous runs to diagnose, seven common questions, and two decision trees."""

from __future__ import annotations

from gpulab.lessons.course.steps.drill_questions import COMMON_QUESTIONS, PROFILE_QUESTIONS, drill_question
from gpulab.lessons.labs.drills.cases import ALL_CASES
from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

LESSON = Lesson(
    id="20_diagnosis_drills",
    title="Diagnosis drills",
    question="can you find the cause on your own?",
    minutes=60,
    budget_s=60,
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
        "read a key_averages() table and a timeline of CPU thread, CUDA API and streams",
        "say how often a checklist and a decision tree fail on runs that they were not written for",
        "get from an out-of-memory error to its fix with questions that a measurement can answer",
    ),
    symptom="A job is slow, or fails, and everyone has an opinion.",
    signature="Not a single number, but a counter that would read differently if the rival explanation were true.",
    fix="The first action for this cause, and then a new recording.",
    limits="The device is busy and full, and uses its fast units: then there is nothing to fix.",
    experiments=(
        LessonExperiment(
            number="20.1", description="twelve anonymous runs: a checklist in order, and causes from counters"
        ),
        LessonExperiment(number="20.2", description="seven common questions, each answered from a run"),
        LessonExperiment(
            number="20.3", description="torch.profiler's key_averages() tables, live and from a recording of an H100"
        ),
        LessonExperiment(number="20.4", description="timelines of an H100 and of two ranks, as in Nsight Systems"),
        LessonExperiment(
            number="20.5", description="four recordings of a real H100, and a decision tree on 13 that it never saw"
        ),
        LessonExperiment(number="20.6", description="a decision tree for out-of-memory errors; the smaller batch, run"),
    ),
    questions=(
        Question(
            key="thumb",
            prompt="For how many of the twelve runs is the first open item of the guide the right first action?",
            choices=(
                Choice(key="a", text="at most five", below=5.5, feedback="An open item need not cost any time."),
                Choice(key="b", text="six to nine", below=9.5, feedback="For half of the runs, it is not on the list."),
                Choice(key="c", text="ten or more", feedback="For half of the runs, it is not on the list."),
            ),
            expected="a",
            explanation="An item is open because of a setting, not because it costs time. None of the runs is "
            "compiled, so torch.compile comes first for most of them.",
            hints=(
                "Which items are open in a run that waits for data?",
                "Each of the twelve runs has another cause, and needs another first action.",
                "torch.compile is open in all twelve runs.",
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
        *(drill_question(case) for case in ALL_CASES),
        *PROFILE_QUESTIONS,
        *COMMON_QUESTIONS,
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
            key="halved",
            prompt="memory1 and memory3 are run again with half of the batch. How many of the two fit?",
            choices=(
                Choice(key="a", text="none", below=0.5, feedback="Each needs more than twice the memory of the GPU."),
                Choice(key="b", text="one", below=1.5, feedback="Both fail with the same number of samples."),
                Choice(key="c", text="both", feedback="Each needs more than twice the memory of the GPU."),
            ),
            expected="a",
            explanation="A step keeps one tensor of 4 GiB for each of the eight layers, more than twice 14.75 GiB. "
            "The error message shows only the request that failed.",
            hints=(
                "How many bytes do 524,288 samples of 2,048 numbers in float32 take?",
                "How many layers keep such a tensor for the backward pass?",
                "Eight tensors of 4 GiB are 32 GiB, before the gradients.",
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
            key="recorded",
            unit="right words of 12 for the recordings of an H100",
            value=9,
            lower_is_better=False,
            hints=(
                "Each case needs three words, and you can change them; the score counts your current answers.",
                "Look for layout, alloc and blocked in the counters of the case.",
                "The hints of each case name the counter.",
            ),
        ),
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
