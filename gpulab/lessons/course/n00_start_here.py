"""Lesson 00: one loop from profile to fix, and how to take a time that means something."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Question

LESSON = Lesson(
    id="00_start_here",
    title="Start here",
    question="why is the GPU idle?",
    minutes=20,
    budget_s=40,
    without_gpu="everything runs; the CPU is the device",
    outcomes=(
        "profile any training cell by putting %%gpuprofile on top of it",
        "read a diagnosis: cause, evidence, fix, and what the fix can give at most",
        "put before and after side by side, and tell a difference from noise",
        "take a time that means something: warm, to the end of the work, more than once",
    ),
    symptom="Training is slow, and whatever computes is mostly idle.",
    signature="The share of each step in which the loop waits for its next batch.",
    fix="What the report names: here, workers that fetch the next batches while the model trains.",
    not_when="The loop does not wait for data; then the report names something else, and so does the course.",
    experiments=(
        Experiment(number="00.1", shows="a clock stopped too early against one that waits for the work"),
        Experiment(number="00.2", shows="an unknown machine against one whose limits are known"),
        Experiment(number="00.3", shows="a loop that fetches its own data against one whose workers do"),
    ),
    questions=(
        Question(
            key="time",
            ask="A call hands its work to a queue and returns at once, as every CUDA kernel does. Of the true time, "
            "what does a clock see that is stopped when the call returns?",
            choices=(
                Choice(key="a", text="all of it", below=None, told="The call returns before the work is done."),
                Choice(key="b", text="about half", told="Nothing of the work needs to be done when the call returns."),
                Choice(key="c", text="next to nothing", told="Only the handing over is timed."),
            ),
            right="c",
            because="What is timed is the handing over. Wait for the queue to be empty before you stop the clock: "
            "torch.cuda.synchronize(), or events.",
            hints=(
                "Look at when the call returns, and when the work is done.",
                "Compare the time of the call with the time until the queue is empty.",
                "The line that waits, future.result() here, comes after the clock was stopped.",
            ),
        ),
        Question(
            key="wait",
            ask="Of each training step, which share does the model spend waiting for its next batch?",
            choices=(
                Choice(key="a", text="a tenth", below=0.2, told="The loop reads 16 photos before each step."),
                Choice(key="b", text="a third", below=0.5, told="The loop reads 16 photos before each step."),
                Choice(key="c", text="more than half", told="Sixteen reads in turn outlast a small model's step."),
            ),
            because="16 photos in turn, 4 ms each before they are decoded: 64 ms at least, for a model that needs a "
            "fraction of that.",
            hints=(
                "How many items does a batch have, and how long does one take?",
                "Compare 16 x 4 ms with what a small model needs for a step.",
                "The line time.sleep(0.004) stands in the data set, and the main process runs it.",
            ),
        ),
        Question(
            key="gain",
            ask="Two workers fetch batches while the model trains. How many times as fast is a step?",
            choices=(
                Choice(key="a", text="as fast as before", below=1.2, told="Two reads that wait can wait together."),
                Choice(key="b", text="up to three times", below=3.2, told="Two workers fetch twice as much at once."),
                Choice(key="c", text="ten times", told="Two workers fetch twice as much at once, not ten times."),
            ),
            because="Two workers fetch two batches at once, and the model no longer adds its own time to theirs.",
            hints=(
                "How many batches are fetched at once, before and after?",
                "Compare 16 reads in turn by one process with 16 reads by each of two.",
                "The line num_workers=2 says how many processes read.",
            ),
        ),
        Question(
            key="parts",
            ask="Which sentence does the ledger of the report bear out?",
            choices=(
                Choice(key="a", text="A faster GPU would help most.", told="It would shorten the smallest part."),
                Choice(key="b", text="Work on the data can give more than work on the model.", told="Waiting is most."),
                Choice(key="c", text="The step has parts that nobody can account for.", told="The parts sum to it."),
            ),
            right="b",
            because="No work on a part can give more than that part takes.",
            hints=(
                "Read the bar under the first sentence.",
                "Compare waiting for data with computing, in ms per step.",
                "The line 'waiting for data' is the largest of all.",
            ),
        ),
    ),
)
