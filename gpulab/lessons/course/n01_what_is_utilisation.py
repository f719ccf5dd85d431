"""Lesson 01: what the number called utilisation counts, what it does not, and which numbers tell the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab.lessons.labs.machine import hot_card
from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

# Of each number its definition (a choice of the question "cards"), and what sets it apart from its neighbours.
CARDS: dict[str, tuple[str, str]] = {
    "utilisation": ("c", "it asks whether anything runs, not how much of the GPU runs it"),
    "memory used": ("f", "it is a number of bytes that are held, whether or not anyone reads them"),
    "memory controller": ("a", "it is a share of time, and says nothing of how much memory is held"),
    "SM activity": ("h", "it is averaged over the multiprocessors, so one busy one of 132 gives 1 %"),
    "occupancy": ("d", "it counts warps that are resident, not whether they get anything done"),
    "cache hit rate": ("g", "it is a share of requests, and says nothing of how many there were"),
    "PCIe throughput": ("b", "it is what travels between host and GPU, not inside the GPU"),
    "MFU": ("e", "it sets the model's arithmetic against the peak, and is the only one that counts work done"),
}


def wrong_cards(answer: Any) -> str | None:
    """What is still wrong with these matches, or None."""
    if not isinstance(answer, Mapping):
        return f"give a letter for each of {', '.join(CARDS)}"
    if missing := [name for name in CARDS if not str(answer.get(name) or "").strip()]:
        return f"there is no letter yet for {', '.join(missing)}"
    wrong = [name for name, (letter, _) in CARDS.items() if str(answer[name]).strip().lower() != letter]
    if not wrong:
        return None
    return f"{len(CARDS) - len(wrong)} of {len(CARDS)} match. Look again at {wrong[0]}: {CARDS[wrong[0]][1]}"


HELD_WITHIN_S = 2  # how near to each end of the interval is near enough


def wrong_interval(answer: Any) -> str | None:
    """What is still wrong with this interval, in seconds, in which heat held the dusty card down; or None."""
    try:
        begun_s, ended_s = (float(each) for each in answer)
    except (TypeError, ValueError):
        return "give two numbers, the first and the last second, as (5, 8)"
    card = hot_card.watched_card(name="dusty fans", warms_c_per_w=hot_card.DUSTY_C_PER_W)
    first_s, last_s = hot_card.held_down(card, hot_card.HEAT) or (0.0, 0.0)
    if abs(begun_s - first_s) > HELD_WITHIN_S:
        where = "the clock is still at its highest then" if begun_s < first_s else "the clock was held down before that"
        return f"it does not begin at second {begun_s:g}: {where}"
    if abs(ended_s - last_s) > HELD_WITHIN_S:
        where = "the clock is free by then" if ended_s > last_s else "the clock is held down after that too"
        return f"it does not end at second {ended_s:g}: {where}"
    return None


LESSON = Lesson(
    id="01_what_is_utilisation",
    title="What is utilisation?",
    question="if the GPU is 100 % used, is it working hard?",
    minutes=45,
    budget_s=60,
    without_gpu="what needs a GPU is computed for a virtual H100; ranking by work done is measured on the CPU",
    before=("00_start_here",),
    outcomes=(
        "say what GPU utilisation counts, and name a counter that tells a full GPU from one that is merely occupied",
        "say how wrong a reading once a second can be, and when it is good enough",
        "tell memory that is held from memory that is read, and heat from a power limit",
        "rank jobs by the work they do (MFU) instead of by how busy they keep the GPU",
    ),
    symptom="The monitor says 100 %, and nobody can say whether that is good.",
    signature="Blocks per kernel against multiprocessors, and arithmetic against the peak: both low at a high reading.",
    fix="Judge by work done: steps per second, MFU. Use utilisation for one thing only, to notice a GPU that waits.",
    not_when="The reading is low: then the GPU waits, utilisation has told you so, and the report names for what.",
    experiments=(
        Experiment(number="01.1", shows="one multiprocessor at work against all of them: the same reading"),
        Experiment(number="01.2", shows="a job watched once a second, twenty times a second, and traced"),
        Experiment(number="01.3", shows="memory that is full against a memory controller that is busy"),
        Experiment(number="01.4", shows="a card that gets hot, and one whose power is capped, at an even load"),
        Experiment(number="01.5", shows="jobs ranked by utilisation against jobs ranked by the work they do"),
        Experiment(number="01.6", shows="eight numbers of a monitor, matched with what they count"),
    ),
    questions=(
        Question(
            key="busy",
            ask="A kernel runs on 1 of the 132 multiprocessors of an H100, and another follows as soon as it is done. "
            "What does GPU utilisation read?",
            choices=(
                Choice(key="a", text="about 1 %", below=0.2, told="That would be a mean over the multiprocessors."),
                Choice(key="b", text="about 50 %", below=0.8, told="Neither the time nor the GPU is half used."),
                Choice(key="c", text="about 100 %", told="At every moment some kernel runs."),
            ),
            because="The driver counts the share of time in which one or more kernels ran. One is as good as all.",
            hints=(
                "Take the two meanings in the text above: what would each of them read?",
                "Compare the share of the time with work, and the share of the multiprocessors with work.",
                "The line that runs one kernel after the other leaves no time without work.",
            ),
        ),
        Question(
            key="tell",
            ask="Utilisation reads about the same for both variants. Which counter tells, from a run of the slow one "
            "alone, that the GPU is nearly empty?",
            choices=(
                Choice(key="a", text="kernels a step", told="There are many here, but many could each be large too."),
                Choice(key="b", text="blocks per kernel against multiprocessors", told="One block cannot be shared."),
                Choice(key="c", text="idle time between kernels", told="There is next to none in either variant."),
            ),
            right="b",
            because="A block runs on one multiprocessor. A kernel of 1 block leaves 131 of 132 without work; were the "
            "GPU waiting for the host, blocks would be many and the gaps long.",
            hints=(
                "Look at the column that differs most between the first two rows.",
                "Compare 'filled' of the two, and ask what it is made from.",
                "The line torch.softmax(row, 0) starts a kernel of one block.",
            ),
        ),
        Question(
            key="sampled",
            ask="A job waits a quarter of a second for its data, then computes for three quarters, again and again. "
            "You look once a second; each reading covers the sixth of a second before it. How far from 75 % can the "
            "mean of your readings be?",
            choices=(
                Choice(key="a", text="a few points", below=0.1, told="It would be, if the looks were spread out."),
                Choice(
                    key="b", text="ten to twenty points", below=0.2, told="Think of where in the job each look falls."
                ),
                Choice(key="c", text="more than twenty points", told="Each look falls on the same part of the job."),
            ),
            because="The job and the looks keep step, so that every look sees the same part of the job: all of them "
            "the computing, or all of them the waiting.",
            hints=(
                "Draw one second of the job, and mark the sixth that is seen.",
                "Compare the readings of two watchers who begin half a second apart.",
                "The line batch_size=None hands over one item each second, always in the same rhythm.",
            ),
        ),
        Question(
            key="memory",
            ask="A job holds three quarters of the GPU's memory and multiplies large matrices. How busy is the memory "
            "controller?",
            choices=(
                Choice(key="a", text="less than a quarter", below=0.25, told="Held is not read."),
                Choice(
                    key="b", text="about half", below=0.6, told="Each number of a large product is used many times."
                ),
                Choice(
                    key="c", text="about three quarters", told="Held is not read: most of this memory is not touched."
                ),
            ),
            because="Memory used counts bytes that are held. The controller is busy when bytes travel, and a large "
            "matrix product uses every number that travels thousands of times.",
            hints=(
                "Ask of each byte that is held whether anyone reads it in a step.",
                "Compare memory used with memory traffic.",
                "The line torch.empty holds memory that no other line reads.",
            ),
        ),
        Question(
            key="batch",
            ask="A small image network is trained with batch 8, then with batch 512. What does the busy share of the "
            "memory controller do?",
            choices=(
                Choice(
                    key="a", text="it falls", below=0.8, told="Fewer, larger fetches: but many more of them a second."
                ),
                Choice(key="b", text="it stays", below=1.5, told="More kernels a second means more traffic a second."),
                Choice(key="c", text="it rises", told="The GPU waited; now it works, and work moves data."),
            ),
            because="With batch 8 the GPU mostly waits, and a GPU that waits moves nothing. The direction is the "
            "job's own: with a few very large layers, whose weights are read once a batch, it is the other way.",
            hints=(
                "First ask how much of the time anything runs at all.",
                "Compare busy and memory traffic of the two batches.",
                "The lines of the first network have batch 8 and 512.",
            ),
        ),
        Question(
            key="heat",
            ask="A card with dust in its fans works under full load until it is too hot. Which number of the monitor "
            "does not change?",
            choices=(
                Choice(key="a", text="the clock", told="It is lowered until the heat can get away."),
                Choice(key="b", text="power", told="A lower clock takes less power; that is what it is lowered for."),
                Choice(
                    key="c", text="utilisation", told="Kernels run all the time; that each takes longer is not in it."
                ),
            ),
            right="c",
            because="Kernels run all the time, only more slowly. Utilisation reads 100 % before, during and after.",
            hints=(
                "Ask of each number whether it would notice that a kernel takes longer.",
                "Compare what the clock and power do when the card must get cooler.",
                "The line that the driver counts by asks whether a kernel runs, not how fast.",
            ),
        ),
        Question(
            key="held",
            ask="From which second to which did heat hold the clock of the first card down? Give both to within 2 s.",
            judge=wrong_interval,
            because="It takes nine seconds of full load to get too hot. Heat still holds the clock down when the load "
            "has gone: the card has to cool down first.",
            hints=(
                "Look at the lowest curve of the chart, and at its triangles.",
                "Compare the clock with its highest, 1980 MHz; heat holds it down from the first to the last triangle.",
                'The line dusty.gpu_samples.query("throttle_bits == 32") has one row for each triangle.',
            ),
        ),
        Question(
            key="rank",
            ask="Three jobs: matrix products without a pause; the same products with data that come late; an addition "
            "to each number of a long list, without a pause. Utilisation puts the one with late data last. Which does "
            "least arithmetic a second?",
            choices=(
                Choice(
                    key="a", text="the one with late data", below=1.0, told="It computes little of the time, but fast."
                ),
                Choice(key="b", text="the one with the long list", told="It is busy with memory, not with arithmetic."),
            ),
            because="One operation for each number fetched leaves the arithmetic units idle while memory is busy. "
            "Utilisation calls both busy.",
            hints=(
                "Count the operations for each number that comes from memory.",
                "Compare FLOP/s of the two, not their busy shares.",
                "The line that counts 2 x n x n x n is that of the products.",
            ),
        ),
        Question(
            key="cards",
            ask="Match each number of a monitor with what it counts: " + ", ".join(CARDS) + ".",
            choices=(
                Choice(key="a", text="share of the time in which device memory was being read or written"),
                Choice(key="b", text="bytes a second between host and GPU"),
                Choice(key="c", text="share of the time in which at least one kernel ran"),
                Choice(key="d", text="warps resident on a multiprocessor, of the most it can hold"),
                Choice(key="e", text="arithmetic the model needs, of what the GPU could have done in that time"),
                Choice(key="f", text="bytes of device memory that are held"),
                Choice(key="g", text="share of memory requests that were answered without going to device memory"),
                Choice(
                    key="h", text="share of the time with at least one warp on it, as a mean over all multiprocessors"
                ),
            ),
            judge=wrong_cards,
            because="Eight of eight. Only one of them counts work that was done; the others count time, bytes or room.",
            hints=(
                "Sort the definitions first: shares of time, bytes, and shares of something else.",
                "Three sentences ask 'did anything run'; ask of what: the GPU, a multiprocessor, the memory.",
                "The line of 01.1 that read 99 % busy and 3 % filled tells utilisation from SM activity.",
            ),
        ),
        Question(
            key="anonymous",
            ask="Somebody else's job, from its counters alone. What keeps it from being fast?",
            choices=(
                Choice(key="a", text="it waits for data", told="Then busy would be low, and idle time long."),
                Choice(
                    key="b", text="its kernels are too small for the GPU", told="Then fewer multiprocessors had work."
                ),
                Choice(key="c", text="the memory carries all it can", told="Then memory traffic would be near 100 %."),
                Choice(key="d", text="its arithmetic is done in a slow number format", told="What is left is how."),
            ),
            right="d",
            because="Busy, filled, and no traffic to speak of: the arithmetic itself is slow. It is done in 32 bits, "
            "without tensor cores. First action: try bfloat16, lesson 08.",
            hints=(
                "Go through the four answers, and ask what each would do to the table.",
                "Compare MFU with the other three shares.",
                "The kernel's name in gpulab.analysis.kernel_table says f32 or sgemm: 32-bit arithmetic.",
            ),
        ),
    ),
    pars=(
        Par(
            key="plan",
            what="readings",
            par=3,
            hints=(
                "A pause of a second keeps step with the job; look for one that does not.",
                "Compare where in the job's second the readings fall: they should fall on different thirds of it.",
                "The line plan_ms = 1333 moves each reading by a third of the job's period.",
            ),
        ),
    ),
)
