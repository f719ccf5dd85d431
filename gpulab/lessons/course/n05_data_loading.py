"""Lesson 05: whether a loop waits for its data, who can fetch it meanwhile, and how far that goes."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.labs.data import queue_model
from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

COSTS_MS = queue_model.bursty(100, usual_ms=10, burst_ms=110, every=16)  # the stream of experiment 05.2


def wrong_ahead(answer: Any) -> str | None:
    """What is wrong with so many batches held ready for that stream, with steps of 20 ms and one worker."""
    if not isinstance(answer, int) or answer < 1:
        return "it is a whole number of batches, one at the least."
    waiting, fewer = (
        queue_model.fed(COSTS_MS, 20, workers=1, prefetch=each).stalls for each in (answer, max(1, answer - 1))
    )
    if waiting:
        return f"with {answer} ready, {waiting} of 99 steps still wait."
    return None if fewer else f"no step waits with {answer}, and none with {answer - 1}; each costs memory."


WAIT = Question(
    key="wait",
    ask="Of each training step, which share does this loop spend waiting for its next batch?",
    choices=(
        Choice(key="a", text="a tenth", below=0.2, told="Each batch is eight reads of 6 ms, one after the other."),
        Choice(key="b", text="about a third", below=0.5, told="Eight reads of 6 ms are 48 ms; the model is small."),
        Choice(key="c", text="more than half"),
    ),
    because="num_workers=0 means that the loop itself reads: it trains, then it reads, and never both.",
    hints=(
        "How many items does a batch have, and what does one cost?",
        "Compare 8 x 6 ms with what a small model needs for a step.",
        "photos = loading.Waiting(..., wait_s=0.006), and make(workers=0).",
    ),
)
CAUSE = Question(
    key="cause",
    ask="What is this loop short of?",
    choices=(
        Choice(key="a", text="A faster GPU.", told="the GPU computes for a small share of the step only."),
        Choice(key="b", text="Batches that are there in time."),
        Choice(key="c", text="A faster way to the GPU.", told="copies are no part worth naming in that table."),
        Choice(key="d", text="Larger batches.", told="a batch twice as large takes twice as long to read."),
    ),
    right="b",
    because="A GPU twice as fast would shorten the smallest part of the step. The wait would stay as long as it is.",
    hints=(
        "Look at the first sentence of the report, and at the bar under it.",
        "Compare 'waiting for data' with 'compute', in ms per step.",
        "The line 'waiting for data' is the largest of the table by far.",
    ),
)
COUNTER = Question(
    key="counter",
    ask="Another program keeps its GPU idle just as long, because its own Python code between two steps is slow. Which "
    "number of this report would be near zero there?",
    choices=(
        Choice(key="a", text="The length of the step.", told="a step can be long for either reason."),
        Choice(key="b", text="The share of idle time.", told="both are idle just as long: idle tells that, not why."),
        Choice(key="c", text="The time inside DataLoader.__next__."),
        Choice(key="d", text="The loss.", told="the loss does not know how long anything takes."),
    ),
    right="c",
    because="A loop that is slow for another reason finds its next batch ready, and spends next to nothing in "
    "__next__. A counter that reads the same under both explanations decides nothing.",
    hints=(
        "Imagine the other program: where would its time go?",
        "Look for a number that is large now, and would be near zero then.",
        "The second line of the report: ms in DataLoader.__next__.",
    ),
)
WORKERS = Question(
    key="workers",
    ask="Four workers fetch batches while the model trains. How many times as fast is the loop, start aside?",
    choices=(
        Choice(
            key="a", text="no faster: a read takes as long as before", told="It does, but four are waited for at once."
        ),
        Choice(key="b", text="about four times: four batches are in the making at once"),
        Choice(key="c", text="twenty times or more: nothing waits any more", told="48 ms / 4 is still 12 ms a batch."),
    ),
    right="b",
    because="A batch still takes one worker 48 ms, but four are in the making at once: one every 12 ms, at best. "
    "Whatever else the computer does makes it less.",
    hints=(
        "How often does a batch come out of four workers?",
        "48 ms of waiting, four at once; the step takes a few ms.",
        "The report of before says what to expect, as a range.",
    ),
)
KINDS = Question(
    key="kinds",
    ask="From two workers to eight, on a computer of two cores: which items are fetched faster?",
    choices=(
        Choice(key="a", text="both kinds, about four times", told="Eight processes share the cores that there are."),
        Choice(key="b", text="those that wait; those that compute hardly or not"),
        Choice(key="c", text="neither: two cores serve two workers", told="Waiting takes no core."),
    ),
    right="b",
    because="A process that waits leaves its core to others, so eight wait as easily as two. Computing takes a core, "
    "and no more than the cores' number can be computed at once, however many workers there are.",
    hints=(
        "Which resource does each kind use up?",
        "Count how many can be in the making at once: sleepers, and cores.",
        "time.sleep against a loop that uses CPU time, in the data sets.",
    ),
)
BOUNDS = Question(
    key="bounds",
    ask="Four workers, 24 ms for each of eight items: which of the two bounds is the smaller one, and so decides?",
    choices=(
        Choice(key="a", text="the data for free: the model is slow", told="A few ms, beside 48 for four workers."),
        Choice(key="b", text="the model for free: the data is slow"),
        Choice(key="c", text="neither: their times add up", told="They would without workers; here both go on."),
    ),
    right="b",
    because="Four workers give a batch every 48 ms. The model could take one every few ms, and so it waits.",
    hints=(
        "How often do four workers give a batch?",
        "Compare the two rates, in items a second.",
        "min(free_data, free_model) is what the real loop can reach.",
    ),
)
BURST = Question(
    key="burst",
    ask="One worker, 16 ms a batch in the mean, 110 ms for one in sixteen; a step takes 20 ms. Two batches may be "
    "ready (the default). Does the loop ever wait?",
    choices=(
        Choice(key="a", text="no: in the mean the worker is faster", told="The mean says nothing about one batch."),
        Choice(key="b", text="yes, at every dear batch"),
        Choice(key="c", text="yes, at every batch", told="Between dear batches the worker is twice as fast."),
    ),
    right="b",
    because="Two batches last for two steps, 40 ms; the dear one takes 110. What is held ready must last as long as "
    "the longest batch takes.",
    hints=(
        "How long do two ready batches last?",
        "Compare two steps of 20 ms with the 110 ms of a dear batch.",
        "After two steps the worker is still at the dear batch, and nothing is ready.",
    ),
)
AHEAD = Question(
    key="ahead",
    ask="How many batches must one worker have ready, at the least, so that no step after the first waits?",
    because="110 ms / 20 ms is 5.5 steps: six batches last through the dear one, five do not.",
    hints=(
        "What has to last until the dear batch is made?",
        "Count the steps of 20 ms that begin within 110 ms.",
        "The smallest whole number that is not under 110 / 20.",
    ),
    judge=wrong_ahead,
)
THREADS = Question(
    key="threads",
    ask="Four threads in one process. For which items do they help?",
    choices=(
        Choice(
            key="a", text="for both kinds", told="In most builds of Python only one thread at a time runs Python code."
        ),
        Choice(key="b", text="for items that wait"),
        Choice(key="c", text="for items that compute in Python", told="It is just these that take turns."),
    ),
    right="b",
    because="A thread runs Python code only while it holds the global interpreter lock (GIL), and lets go of it while "
    "it waits. So four wait at once, but four that compute do the work of one; for that there are processes.",
    hints=(
        "What does a thread hold while it runs Python code?",
        "Does Python run two threads of one process at the same time?",
        "In most builds of Python a thread needs the interpreter's lock to run code, and none to sleep.",
    ),
)
CACHE = Question(
    key="cache",
    ask="The data set keeps every item it has read in memory. A plain DataLoader with two workers runs two epochs: how "
    "many of the second epoch's reads does this answer?",
    choices=(
        Choice(key="a", text="all of them", told="What they had read was in their own memory, and went with them."),
        Choice(key="b", text="half of them", told="That would need workers that stay (05.3)."),
        Choice(key="c", text="none"),
    ),
    right="c",
    because="Each worker fills a copy of its own, and takes it along when it ends. Workers that stay find what they "
    "read themselves, about half of it here; files on a disk are found by every process.",
    hints=(
        "In which process is the data set when it reads?",
        "What becomes of a worker when an epoch is over? See 05.3.",
        "caching.Ram() is copied into each worker at its start.",
    ),
)
FORMATS = Question(
    key="formats",
    ask="2,000 rows in random order, from a local disk whose files are in memory already. Which takes longest?",
    choices=(
        Choice(key="a", text="2,000 files: each has to be opened", told="An open costs little where the file is near."),
        Choice(key="b", text="the one tar"),
        Choice(key="c", text="the one array, mapped", told="Of it, only the pages that are wanted are touched."),
    ),
    right="b",
    because="Opens cost next to nothing here. A tar has no list of what is in it, so Python first goes through all of "
    "it to find its members, and then jumps to each.",
    hints=(
        "Which of the three has to find out first where a row lies?",
        "Count the opens, and think of what one costs on this disk.",
        "A tar is one member after the other, each behind a header of its own.",
    ),
)
TRANSFER = Question(
    key="transfer",
    ask="The GPU works in less than half of each step, and the loop never waits for data. What comes first?",
    choices=(
        Choice(key="a", text="More workers, and a larger prefetch factor.", told="nothing waits for a batch here."),
        Choice(key="b", text="Pinned memory and a cache.", told="no batch is copied: it lies on the GPU already."),
        Choice(key="c", text="Fewer, larger kernels: join small operations, or launch them together."),
        Choice(key="d", text="A second GPU.", told="it would wait for the same host."),
    ),
    right="c",
    because="A kernel is over sooner than the host has called the next one, so the GPU waits for calls. Had the loop "
    "waited for data, the share of waiting would be large; it is zero.",
    hints=(
        "Which part of the step is the largest, and is it data?",
        "Read the share of waiting, and how long a kernel takes.",
        "Calling one operator takes a host some microseconds; half of the kernels are shorter.",
    ),
)

LESSON = Lesson(
    id="05_data_loading",
    title="Data loading",
    question="is the GPU slow, or is it waiting?",
    minutes=45,
    budget_s=60,
    without_gpu="everything runs; the transfer question uses a virtual GPU",
    before=("00_start_here", "01_what_is_utilisation"),
    outcomes=(
        "tell a loop that waits for data from one whose model is slow, by a counter and not by the look of it",
        "bound from both sides what work on the data, or on the model, can give, before doing any",
        "choose workers, prefetch factor, threads and caches by the resource that is full",
        "say when more workers, another format or a cache do nothing, and show it",
    ),
    symptom="The device is idle for most of each step, and a faster one would change nothing.",
    signature="The time inside DataLoader.__next__; it would be near zero if the model were slow.",
    fix="Workers that fetch meanwhile and stay for all epochs, enough batches ready for the longest one, reads that "
    "are not made twice.",
    not_when="The loop does not wait for data: then a batch that is there for free changes nothing. Nor do more "
    "workers help where all cores compute already.",
    experiments=(
        Experiment(number="05.1", shows="no workers, then up to eight, for items that wait and items that compute"),
        Experiment(number="05.2", shows="a stream with dear batches, without and with enough of them ready"),
        Experiment(number="05.3", shows="workers started for each epoch against workers that stay"),
        Experiment(number="05.4", shows="threads, processes and asynchronous I/O, for waiting and for computing"),
        Experiment(number="05.5", shows="no cache, then one in memory, on disk, or shared"),
        Experiment(number="05.6", shows="more workers than cores, and the memory that becomes their own"),
        Experiment(number="05.7", shows="every rank reads all against a share for each"),
        Experiment(number="05.8", shows="a real loop between data for free and a model for free"),
    ),
    questions=(WAIT, CAUSE, COUNTER, WORKERS, KINDS, BOUNDS, BURST, AHEAD, THREADS, CACHE, FORMATS, TRANSFER),
    pars=(
        Par(
            key="opens",
            what="opens in five epochs",
            par=3,
            hints=(
                "What has to be done for every row, what for every epoch, and what only once?",
                "Watch the memory too: all rows are 2 MB, and rows[order] of a map copies 1,200 of them at once.",
                'rows = np.load(folder / "rows.npy", mmap_mode="r") once, at the start; then a row at a time.',
            ),
        ),
    ),
)
