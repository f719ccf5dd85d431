"""Lesson 00: one training loop from profile to fix, and how to time it correctly."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question

LESSON = Lesson(
    id="00_start_here",
    title="Start here",
    question="why is the GPU idle?",
    minutes=20,
    budget_s=40,
    without_gpu="everything runs; the model trains on the CPU",
    outcomes=(
        "profile a training cell with %%gpuprofile",
        "read a diagnosis: cause, evidence, fix, upper bound",
        "compare two runs, and tell a difference from noise",
        "time code correctly",
    ),
    symptom="Training is slow, and the GPU (or the CPU that trains the model) is mostly idle.",
    signature="The share of each step in which the loop waits for its next batch.",
    fix="Apply the fix in the report: here, DataLoader workers that load the next batches while the model trains.",
    limits="The loop does not wait for data. Then the report names another cause, and another lesson covers it.",
    experiments=(
        LessonExperiment(number="00.1", description="a loop that loads its own data, and one with DataLoader workers"),
        LessonExperiment(
            number="00.2", description="a timer that is stopped too early, and one that waits for the work to finish"
        ),
        LessonExperiment(number="00.3", description="a process that may use one core, and what counts it"),
    ),
    questions=(
        Question(
            key="time",
            prompt="A call puts 20 ms of work on a queue. You start a timer before the call and stop it when the call "
            "returns. How much of the 20 ms does the timer measure?",
            choices=(
                Choice(
                    key="a", text="all of it", below=None, feedback="The call does not wait for the work to finish."
                ),
                Choice(
                    key="b", text="about half", feedback="The work may not even have started when the call returns."
                ),
                Choice(key="c", text="almost nothing", feedback="Nothing waited for the work to finish."),
            ),
            right="c",
            explanation="The timer measures only how long it takes to put the work on the queue. Every CUDA kernel is "
            "launched in this way. Before you stop a timer, wait until the queue is empty; on a GPU, call "
            "torch.cuda.synchronize().",
            hints=(
                "When does the call return, and when is the work done?",
                "Compare the time of the call with the time until the queue is empty.",
                "The line that waits (here future.result()) runs after the timer has stopped.",
            ),
        ),
        Question(
            key="wait",
            prompt="The photos come from DataLoader(dataset, batch_size=16). What share of each training step does the "
            "loop spend waiting for its next batch?",
            choices=(
                Choice(
                    key="a",
                    text="almost nothing: the DataLoader reads ahead",
                    below=0.1,
                    feedback="It reads ahead only with workers, and by default it has none.",
                ),
                Choice(
                    key="b",
                    text="about a third",
                    below=0.5,
                    feedback="Sixteen reads, one after the other, take longer than a small step.",
                ),
                Choice(
                    key="c",
                    text="more than half",
                ),
            ),
            expected="c",
            explanation="Without workers, the loop reads 16 photos one after the other: at least 16 x 8 = 128 ms.",
            hints=(
                "How many photos are in a batch, how long does one take, and which process reads them?",
                "Compare 16 x 8 ms with the time that a small model needs for a step.",
                "Without workers, the training loop itself waits 8 ms for each of the 16 photos.",
            ),
        ),
        Question(
            key="parts",
            prompt="Which statement does the report support? Look at 'Where the step time goes'.",
            choices=(
                Choice(
                    key="a",
                    text="A faster processor for the model would help most.",
                    feedback="It shortens only the computation.",
                ),
                Choice(
                    key="b",
                    text="Faster data loading can gain more than a faster model.",
                    feedback="Waiting for data is the largest part.",
                ),
                Choice(
                    key="c",
                    text="Some parts of the step are unexplained.",
                    feedback="All parts are named, and they add up to the step time.",
                ),
            ),
            right="b",
            explanation="Optimising a part of the step can never save more time than this part takes.",
            hints=(
                "Look at the bar under 'Where the step time goes'.",
                "Compare waiting for data with computing, in ms per step.",
                "'waiting for data' is the longest part of the bar.",
            ),
        ),
    ),
)
