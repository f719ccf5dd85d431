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
            ask="A call hands its work, 20 ms of it, to a queue. A clock is started before the call and stopped when "
            "the call returns. How much of the 20 ms does it see?",
            choices=(
                Choice(
                    key="a", text="all of it", below=None, told="The call does not wait for the work it hands over."
                ),
                Choice(key="b", text="about half", told="None of the work need be done when the call returns."),
                Choice(key="c", text="next to nothing", told="Nobody has waited for the work."),
            ),
            right="c",
            because="Only the handing over is timed, and every CUDA kernel is handed over so. Before you stop a clock, "
            "wait until the queue is empty; on a GPU, torch.cuda.synchronize() does that.",
            hints=(
                "Look at when the call returns, and when the work is done.",
                "Compare the time of the call with the time until the queue is empty.",
                "The line that waits, future.result() here, comes after the clock was stopped.",
            ),
        ),
        Question(
            key="wait",
            ask="The photos come from DataLoader(dataset, batch_size=16). How much of each training step does the "
            "model spend waiting for its next batch?",
            choices=(
                Choice(
                    key="a",
                    text="next to nothing: the DataLoader reads ahead",
                    below=0.1,
                    told="It reads ahead only with workers, and has none unless you ask for them.",
                ),
                Choice(key="b", text="about a third", below=0.5, told="Sixteen reads in turn outlast a small step."),
                Choice(key="c", text="more than half", told="You added up the sixteen reads."),
            ),
            because="Without workers the loop itself reads the 16 photos, one after the other, 8 ms each before they "
            "are decoded: 128 ms at least, for a model that needs a fraction of that.",
            hints=(
                "How many photos does a batch have, how long does one take, and who reads them?",
                "Compare 16 x 8 ms with what a small model needs for a step.",
                "The line time.sleep(self.wait_s) stands in the dataset, and without workers the loop itself runs it.",
            ),
        ),
        Question(
            key="gain",
            ask="Two workers fetch batches while the model trains. How many times as fast is a step?",
            choices=(
                Choice(
                    key="a",
                    text="about once: as many photos have to be read as before",
                    below=1.2,
                    told="As many, but two reads can wait at the same time.",
                ),
                Choice(
                    key="b",
                    text="about two times, or a little more",
                    below=3.5,
                    told="Two batches are fetched at once.",
                ),
                Choice(
                    key="c",
                    text="five times or more: the model no longer waits",
                    told="It waits less, but two workers fetch only twice as much at once.",
                ),
            ),
            because="Two batches are fetched at once, which halves the wait, and the model computes meanwhile instead "
            "of afterwards, which gives a little more. Few cores, and other programs on them, take from that.",
            hints=(
                "How many batches are fetched at once, before and after?",
                "Compare 16 reads in turn by one process with 16 reads by each of two.",
                "The line num_workers=2 says how many processes read.",
            ),
        ),
        Question(
            key="parts",
            ask="Which sentence does the report bear out? Look at where a step goes.",
            choices=(
                Choice(
                    key="a",
                    text="A faster processor for the model would help most.",
                    told="It shortens computing alone.",
                ),
                Choice(key="b", text="Work on the data can give more than work on the model.", told="Waiting is most."),
                Choice(
                    key="c",
                    text="The step has parts that nobody can account for.",
                    told="They are named, and sum to it.",
                ),
            ),
            right="b",
            because="No work on a part can give more than that part takes.",
            hints=(
                "Look at the bar under 'Where a step goes'.",
                "Compare waiting for data with computing, in ms per step.",
                "The line 'waiting for data' is the longest part of the bar.",
            ),
        ),
    ),
)
