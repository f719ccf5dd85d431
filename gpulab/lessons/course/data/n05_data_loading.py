"""Lesson 05: does the training loop wait for data, how do DataLoader workers help, and where is the limit?"""

from __future__ import annotations

from typing import Any

from gpulab.lessons.labs.data import queue_model
from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

COSTS_MS = queue_model.bursty_costs(100, usual_ms=10, burst_ms=110, every=16)  # batch times of experiment 05.2


def check_prefetch_factor(answer: Any) -> str | None:
    """Return the problem with a prefetch factor for these batches (20 ms steps, one worker); None if it is right."""
    if not isinstance(answer, int) or answer < 1:
        return "write a whole number without quotes, 1 or more."
    stalls, stalls_with_one_less = (
        queue_model.simulate_loader(COSTS_MS, 20, workers=1, prefetch=factor).stalls
        for factor in (answer, max(1, answer - 1))
    )
    if stalls:
        return f"with prefetch_factor={answer}, {stalls} of 99 steps still wait."
    if not stalls_with_one_less:
        return f"no step waits with {answer}, but none waits with {answer - 1} either, and every batch costs memory."
    return None


WAIT = Question(
    key="wait",
    prompt="What share of each training step does this loop spend waiting for its next batch?",
    choices=(
        Choice(key="a", text="about a tenth", below=0.2, feedback="Each batch needs eight reads of 6 ms, one by one."),
        Choice(
            key="b", text="about a third", below=0.5, feedback="Eight reads of 6 ms take 48 ms; the model is small."
        ),
        Choice(key="c", text="more than half"),
    ),
    expected="c",
    explanation="With num_workers=0, the process that runs the training loop also loads each batch. Meanwhile it gives "
    "the model no new work.",
    hints=(
        "How many items are in a batch, and how long does one item take?",
        "Compare 8 x 6 ms with the time a small model needs for a step.",
        "photos = loading.IoBoundDataset(..., wait_s=0.006), and make_loader(workers=0).",
    ),
)
CAUSE = Question(
    key="cause",
    prompt="What would make this loop faster?",
    choices=(
        Choice(key="a", text="A faster GPU.", feedback="the GPU computes for only a small share of the step."),
        Choice(key="b", text="Batches that are ready when the loop needs them."),
        Choice(key="c", text="A faster connection to the GPU.", feedback="copies take a negligible part of the step."),
        Choice(key="d", text="Larger batches.", feedback="a batch of twice the size takes twice as long to load."),
    ),
    right="b",
    explanation="A GPU twice as fast would shorten only the time in which it computes, a few percent of the step. The "
    "time spent waiting for data would not change.",
    hints=(
        "Read the first sentence of the report, and the bar below it.",
        "Compare 'waiting for data' with 'long operators' (on a GPU: 'GPU busy'), in ms per step.",
        "'waiting for data' is by far the largest line of the table.",
    ),
)
NUMBER = Question(
    key="number",
    prompt="Another program has enough DataLoader workers. Its model is idle for the same share of a step as here, "
    "but because of slow Python code between two steps. Which number would be near zero in a report on that program?",
    choices=(
        Choice(key="a", text="The step time.", feedback="a step can be long for either reason."),
        Choice(
            key="b",
            text="The share of a step in which the model does not compute.",
            feedback="both models are idle equally long; idle time has many causes.",
        ),
        Choice(key="c", text="The time inside next() of the DataLoader iterator."),
        Choice(key="d", text="The loss.", feedback="the loss does not depend on how long anything takes."),
    ),
    right="c",
    explanation="If a loop with enough workers is slow for another reason, its next batch is already there, and it "
    "spends almost no time in next() of the DataLoader iterator. A number that is the same under both explanations "
    "cannot decide between them.",
    hints=(
        "Imagine the other program: where would it spend its time?",
        "Look for a number that is large here and would be near zero there.",
        "The second line of the report: ms in next() of the DataLoader iterator.",
    ),
)
WORKERS = Question(
    key="workers",
    prompt="Four workers load batches while the model trains. How much faster is the loop, not counting start-up?",
    choices=(
        Choice(
            key="a",
            text="no faster: a read takes as long as before",
            feedback="It does, but the four workers wait for their reads at the same time.",
        ),
        Choice(key="b", text="about four times as fast: four batches are loaded at the same time"),
        Choice(
            key="c",
            text="twenty times as fast or more: the loop never waits",
            feedback="Four workers still need 48 ms / 4 = 12 ms per batch.",
        ),
    ),
    right="b",
    explanation="One worker still waits at least 48 ms per batch, but four workers load four batches at the same time. "
    "That gives one batch every 12 ms. The measured step can be longer, because other programs use the CPU, or "
    "shorter, because some batches were loaded in advance. The report calculates how long a worker takes per batch "
    "from the step time, so it may not say exactly 48 ms.",
    hints=(
        "How often do four workers together finish a batch?",
        "48 ms per batch, four batches at a time; the training step takes a few ms.",
        "The report of the run `before` predicts the gain, as a range.",
    ),
)
KINDS = Question(
    key="kinds",
    prompt="On a computer with two cores, you go from two workers to eight. Which items are loaded faster?",
    choices=(
        Choice(
            key="a",
            text="both kinds, about four times as fast",
            feedback="Eight processes have to share the two cores.",
        ),
        Choice(key="b", text="I/O-bound items are; CPU-bound items gain little or nothing"),
        Choice(
            key="c", text="neither: two cores can serve only two workers", feedback="Waiting does not occupy a core."
        ),
    ),
    right="b",
    explanation="A process that waits for I/O leaves its core to others, so eight processes can wait as easily as two. "
    "Computing occupies a core, so at most one item per core is computed at a time, however many workers you start. "
    "The two hardware threads of a physical core compute less than two physical cores do.",
    hints=(
        "Which resource does each kind of item use?",
        "How many items can be in progress at once? Count waiting processes, and count cores.",
        "One dataset calls time.sleep; the other one uses CPU time in a loop.",
    ),
)
BOUNDS = Question(
    key="bounds",
    prompt="Four workers; each of the eight items in a batch takes 24 ms. Which rate is lower and so limits the loop?",
    choices=(
        Choice(
            key="a",
            text="training on one batch in memory: the model is the bottleneck",
            feedback="A step takes a few ms; four workers need 48 ms per batch.",
        ),
        Choice(key="b", text="loading without training: data loading is the bottleneck"),
        Choice(
            key="c",
            text="neither: both times add up",
            feedback="They add up without workers; with workers, loading and training overlap.",
        ),
    ),
    right="b",
    explanation="Four workers deliver one batch every 48 ms. The model could process several meanwhile, so it waits.",
    hints=(
        "How often do four workers deliver a batch?",
        "Compare the two rates, in items per second.",
        "The real loop can reach min(model_only, loader_only) at most.",
    ),
)
BURST = Question(
    key="burst",
    prompt="One worker needs 10 ms per batch, but 110 ms for every sixteenth one (16 ms on average). A training step "
    "takes 20 ms. The loader prefetches two batches (the default). Does the loop ever wait?",
    choices=(
        Choice(
            key="a",
            text="no: on average the worker is faster than the model",
            feedback="The average does not tell you how long a single batch takes.",
        ),
        Choice(key="b", text="yes, at every slow batch"),
        Choice(
            key="c",
            text="yes, at every batch",
            feedback="Between slow batches the worker is twice as fast as the model.",
        ),
    ),
    right="b",
    explanation="Two prefetched batches last for two steps, which is 40 ms; the slow batch takes 110 ms. The "
    "prefetched "
    "batches must last as long as the slowest batch takes to load.",
    hints=(
        "How long do two prefetched batches last?",
        "Compare two steps of 20 ms with the 110 ms of a slow batch.",
        "After two steps, the worker is still loading the slow batch, and no batch is ready.",
    ),
)
AHEAD = Question(
    key="ahead",
    prompt="With one worker, what is the smallest prefetch factor for which only the first step waits?",
    explanation="110 ms / 20 ms is 5.5 steps: six prefetched batches last until the slow one is loaded, five do not.",
    hints=(
        "The prefetched batches must last until the slow batch is loaded. How long is that?",
        "Count the steps of 20 ms that start within 110 ms.",
        "Round 110 / 20 up to a whole number.",
    ),
    find_problem=check_prefetch_factor,
)
THREADS = Question(
    key="threads",
    prompt="Four threads load the items in one process. Which items are loaded faster than with one thread?",
    choices=(
        Choice(
            key="a",
            text="both kinds",
            feedback="In most builds of Python, only one thread at a time runs Python code.",
        ),
        Choice(key="b", text="I/O-bound items"),
        Choice(
            key="c",
            text="items that compute in Python",
            feedback="These are the ones that run one after the other: the threads take turns.",
        ),
    ),
    right="b",
    explanation="A thread runs Python code only while it holds the global interpreter lock (GIL), and it releases the "
    "lock "
    "while it waits. Four threads can therefore wait at the same time, but four threads that compute get as much done "
    "as one. Processes do not share a lock: they can compute at the same time, if several cores are free.",
    hints=(
        "What does a thread hold while it runs Python code?",
        "Does Python run two threads of one process at the same time?",
        "In most builds of Python, a thread needs the GIL to run code, but not to sleep.",
    ),
)
CACHE = Question(
    key="cache",
    prompt="The dataset keeps in memory every item that it has read. A DataLoader with two workers and default "
    "options runs two epochs. How many reads of the second epoch does this cache serve?",
    choices=(
        Choice(
            key="a",
            text="all of them",
            feedback="The cached items were in the memory of the workers, and the workers ended after the first epoch.",
        ),
        Choice(key="b", text="half of them", feedback="That would need persistent workers (05.3)."),
        Choice(key="c", text="none"),
    ),
    right="c",
    explanation="Each worker fills its own copy of the cache and loses it when it ends. A persistent worker finds the "
    "items that it has read itself, here about half of all. A cache on disk serves every process.",
    hints=(
        "In which process does the dataset read an item?",
        "What happens to a worker at the end of an epoch? See 05.3.",
        "Every worker gets its own copy of caching.MemoryCache() when it starts.",
    ),
)
FORMATS = Question(
    key="formats",
    prompt="You read 2,000 rows in random order from a local disk; the files are already in the page cache. Which "
    "layout "
    "takes longest?",
    choices=(
        Choice(
            key="a",
            text="2,000 files: each has to be opened",
            feedback="Opening a file is cheap on a local disk.",
        ),
        Choice(key="b", text="one tar archive, at random"),
        Choice(key="c", text="one memory-mapped array", feedback="Only the pages that hold the wanted rows are read."),
    ),
    right="b",
    explanation="Opening a file costs almost nothing here. A tar archive has no index, so Python first scans the whole "
    "archive for its members, and then seeks to each row.",
    hints=(
        "Which of the three has to be searched before a row can be read?",
        "Count the opens, and estimate what one open costs on this disk.",
        "A tar archive is a sequence of members, each behind its own header.",
    ),
)
TRANSFER = Question(
    key="transfer",
    prompt="The GPU is busy for less than half of each step, and the loop never waits for data. What should you try "
    "first?",
    choices=(
        Choice(
            key="a",
            text="More workers and a larger prefetch factor.",
            feedback="this loop never waits for a batch.",
        ),
        Choice(key="b", text="Pinned memory and a cache.", feedback="no batch is copied: it is already on the GPU."),
        Choice(key="c", text="Fewer, larger kernels: fuse small operations, or launch them together (CUDA graphs)."),
        Choice(key="d", text="A second GPU.", feedback="each GPU would wait for its own launches in the same way."),
    ),
    right="c",
    explanation="A kernel finishes before the host has launched the next one, so the GPU waits for launches. If data "
    "loading were the bottleneck, the share of waiting for data would be large; here it is zero.",
    hints=(
        "Which part of the step is the largest, and is it data loading?",
        "Read the share of waiting for data, and how long a kernel runs.",
        "The host needs several microseconds to launch one operator; half of the kernels are shorter than that.",
    ),
)

LESSON = Lesson(
    id="05_data_loading",
    title="Data loading",
    question="is the GPU slow, or is it waiting?",
    minutes=45,
    budget_s=60,
    without_gpu="everything runs; the section Transfer uses a virtual GPU",
    prerequisites=("00_start_here", "01_what_is_utilisation"),
    outcomes=(
        "tell from the numbers of a report whether a loop waits for data or its model is slow",
        "measure an upper bound for the gain from faster data loading, or from a faster model, before you change "
        "either",
        "find the resource that limits the loop, and decide whether more workers, a larger prefetch factor, threads or "
        "a cache help",
        "recognise when more workers, another file format or a cache do not help, and prove it",
    ),
    symptom="The GPU is idle for most of each step, and a faster GPU would change little.",
    signature="Time inside next() of the DataLoader iterator; it would be near zero if the workers kept up.",
    fix="DataLoader workers that load while the model trains and persist across epochs, a prefetch factor that covers "
    "the slowest batch, and no repeated reads.",
    limits="If the loop does not wait for data, even batches at no cost would change nothing. More workers do not help "
    "either if all cores are already busy.",
    experiments=(
        LessonExperiment(number="05.1", description="0 to 8 workers, for I/O-bound and CPU-bound items"),
        LessonExperiment(
            number="05.2", description="bursty batch times, with a small and a sufficient prefetch factor"
        ),
        LessonExperiment(number="05.3", description="workers that restart in every epoch and persistent workers"),
        LessonExperiment(number="05.4", description="no cache, and caches in memory, on disk and on a network"),
        LessonExperiment(
            number="05.5", description="a real loop between its two upper bounds: model only and loader only"
        ),
        LessonExperiment(
            number="05.6", description="threads, processes and asynchronous I/O, for I/O-bound and CPU-bound items"
        ),
        LessonExperiment(number="05.7", description="more workers than cores, and how much memory each worker copies"),
        LessonExperiment(number="05.8", description="every rank reads everything, or only its own share"),
    ),
    questions=(WAIT, CAUSE, NUMBER, WORKERS, KINDS, BOUNDS, BURST, AHEAD, THREADS, CACHE, FORMATS, TRANSFER),
    targets=(
        Target(
            key="opens",
            unit="file opens in five epochs",
            value=3,
            hints=(
                "What has to be done for every row, what once per epoch, and what only once?",
                "Watch the memory too: all rows are 2 MB, and rows[order] on a memory map copies 1,200 rows at once.",
                'Call rows = np.load(folder / "rows.npy", mmap_mode="r") once, at the start; then read row by row.',
            ),
        ),
    ),
)
