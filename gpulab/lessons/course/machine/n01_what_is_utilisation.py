"""Lesson 01: what GPU utilisation measures, what it does not measure, and which counters fill the gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab.lessons.labs.machine import hot_card
from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

# For each metric: its definition (a choice of the question "cards"), and how it differs from similar metrics.
CARDS: dict[str, tuple[str, str]] = {
    "utilisation": ("c", "it says whether any kernel runs, not how much of the GPU the kernel uses"),
    "memory used": ("f", "it is the number of allocated bytes, whether or not anything reads them"),
    "memory controller": ("a", "it is a share of time, and does not depend on how much memory is allocated"),
    "SM activity": ("h", "it is averaged over the multiprocessors, so one busy SM out of 132 gives 1 %"),
    "occupancy": ("d", "it counts resident warps, whether or not they make progress"),
    "cache hit rate": ("g", "it is a share of requests, and does not depend on how many requests there were"),
    "PCIe throughput": ("b", "it measures transfers between host and GPU, not inside the GPU"),
    "MFU": ("e", "it divides the model's arithmetic by the peak, and is the only metric that counts useful work"),
}


def check_cards(answer: Any) -> str | None:
    """Return the problem with these matches of metrics and definitions; None if all are right."""
    if not isinstance(answer, Mapping):
        return f"give a letter for each of {', '.join(CARDS)}"
    if missing := [name for name in CARDS if not str(answer.get(name) or "").strip()]:
        return f"there is no letter yet for {', '.join(missing)}"
    wrong = [name for name, (letter, _) in CARDS.items() if str(answer[name]).strip().lower() != letter]
    if not wrong:
        return None
    return f"{len(CARDS) - len(wrong)} of {len(CARDS)} are right. Check {wrong[0]} again: {CARDS[wrong[0]][1]}"


TOLERANCE_S = 2  # how far each end of the interval may be off


def check_interval(answer: Any) -> str | None:
    """Return the problem with this interval (seconds) of thermal throttling of the dusty card; None if it is right."""
    try:
        start_s, end_s = (float(second) for second in answer)
    except (TypeError, ValueError):
        return "give two numbers, the first and the last second, for example (5, 8)"
    card = hot_card.simulate_card(name="dusty fans", thermal_c_per_w=hot_card.DUSTY_THERMAL_C_PER_W)
    first_s, last_s = hot_card.throttled_interval(card, hot_card.HEAT) or (0.0, 0.0)
    if not abs(start_s - first_s) <= TOLERANCE_S:  # also if it is not a number (NaN)
        why = "the clock is still at its maximum then" if start_s < first_s else "throttling started earlier"
        return f"thermal throttling does not start at second {start_s:g}: {why}"
    if not abs(end_s - last_s) <= TOLERANCE_S:
        why = "throttling ended earlier" if end_s > last_s else "the clock is still throttled after that"
        return f"thermal throttling does not end at second {end_s:g}: {why}"
    return None


LESSON = Lesson(
    id="01_what_is_utilisation",
    title="What is utilisation?",
    question="does a GPU at 100 % utilisation work hard?",
    minutes=45,
    budget_s=60,
    without_gpu="what needs a GPU runs on a virtual H100; the ranking by useful work is measured on the CPU",
    prerequisites=("00_start_here",),
    outcomes=(
        "say what GPU utilisation measures, and name a counter that tells a full GPU from an almost empty one",
        "estimate the error of one utilisation reading per second, and decide when it is good enough",
        "tell allocated memory from memory traffic, and thermal throttling from a power limit",
        "rank jobs by the work they do (MFU) instead of by how busy they keep the GPU",
    ),
    symptom="The monitor shows 100 % utilisation, and nobody knows whether that is good.",
    signature="Few blocks per kernel compared with the number of multiprocessors, and arithmetic far below the peak, "
    "at a high utilisation.",
    fix="Judge a job by useful work: steps per second, MFU. Use utilisation only to detect a GPU that waits.",
    limits="Utilisation is low: then the GPU does wait, and the report says for what.",
    experiments=(
        LessonExperiment(number="01.1", description="one busy multiprocessor and all of them: the same utilisation"),
        LessonExperiment(
            number="01.2", description="a job sampled once per second, sampled 20 times per second, and traced"
        ),
        LessonExperiment(number="01.3", description="memory that is full, and a memory controller that is busy"),
        LessonExperiment(number="01.4", description="jobs ranked by utilisation, and ranked by the work they do"),
        LessonExperiment(number="01.5", description="eight metrics of a GPU monitor and their definitions"),
        LessonExperiment(
            number="01.6", description="a GPU that overheats and a GPU with a lowered power limit, under the same load"
        ),
    ),
    questions=(
        Question(
            key="busy",
            prompt="A kernel runs on 1 of the 132 multiprocessors of an H100. As soon as it finishes, the next one "
            "starts. What does GPU utilisation show?",
            choices=(
                Choice(
                    key="a", text="about 1 %", below=0.2, feedback="That would be an average over the multiprocessors."
                ),
                Choice(key="b", text="about 50 %", below=0.8, feedback="Neither the time nor the GPU is half used."),
                Choice(key="c", text="about 100 %", feedback="At any time, some kernel is running."),
            ),
            expected="c",
            explanation="The driver measures the share of time in which at least one kernel ran. One kernel on one "
            "multiprocessor counts as much as a kernel on all of them.",
            hints=(
                "Take the two meanings in the text above: what would each of them show?",
                "Compare the share of time with work, and the share of multiprocessors with work.",
                "The loop starts one kernel after the other, so at any time some kernel is running.",
            ),
        ),
        Question(
            key="tell",
            prompt="Utilisation is about the same in both variants. Which counter shows, from the slow run alone, that "
            "the GPU is almost empty?",
            choices=(
                Choice(
                    key="a", text="kernels per step", feedback="There are many kernels, but each could still be large."
                ),
                Choice(
                    key="b",
                    text="blocks per kernel compared with multiprocessors",
                    feedback="A block cannot be split between multiprocessors.",
                ),
                Choice(key="c", text="idle time between kernels", feedback="There is almost none in either variant."),
            ),
            right="b",
            explanation="A block runs on one multiprocessor. A kernel with 1 block leaves 131 of 132 multiprocessors "
            "without work. If the GPU were waiting for the host, there would be many blocks and long gaps.",
            hints=(
                "Which column differs most between the first two rows?",
                "Compare the share of multiprocessors with work in both rows. How is it calculated?",
                "torch.softmax(row, 0) launches a kernel with one block.",
            ),
        ),
        Question(
            key="sampled",
            prompt="A job waits for data for a quarter of a second, then computes for three quarters, and repeats "
            "this. "
            "You take one reading per second; each reading covers the sixth of a second before it. How far from 75 % "
            "can the mean of your readings be?",
            choices=(
                Choice(
                    key="a", text="a few points", below=10, feedback="Only if the readings fell on different parts."
                ),
                Choice(
                    key="b",
                    text="ten to twenty points",
                    below=20,
                    feedback="Think about which part of the job each reading covers.",
                ),
                Choice(
                    key="c",
                    text="more than twenty points",
                    feedback="All readings cover the same part of the job.",
                ),
            ),
            expected="c",
            explanation="The job and the readings have the same period, so every reading covers the same part of the "
            "job: "
            "all of them the computation, or all of them the waiting (aliasing).",
            hints=(
                "Draw one second of the job, and mark the sixth of a second that a reading covers.",
                "Compare two monitors that start half a second apart.",
                "With batch_size=None the loader returns one item per second, always with the same period.",
            ),
        ),
        Question(
            key="memory",
            prompt="A job allocates three quarters of the GPU's memory and multiplies large matrices. By the traffic "
            "that its kernels need at least, how busy is the memory controller?",
            choices=(
                Choice(
                    key="a",
                    text="less than a quarter of the time",
                    below=0.25,
                    feedback="Allocated memory is not necessarily read.",
                ),
                Choice(
                    key="b",
                    text="about half of the time",
                    below=0.6,
                    feedback="A large matrix product uses each number many times after it is read once.",
                ),
                Choice(
                    key="c",
                    text="about three quarters of the time",
                    feedback="Most of the allocated memory is never read.",
                ),
            ),
            expected="a",
            explanation="'Memory used' counts allocated bytes. The memory controller is busy when bytes are read or "
            "written, and a large matrix product uses every number that it reads thousands of times.",
            hints=(
                "Which of the allocated bytes are read in a step?",
                "Compare memory used with memory traffic.",
                "torch.empty allocates memory that nothing else reads.",
            ),
        ),
        Question(
            key="batch",
            prompt="A small image network is trained with batch size 8, then with 512. How does the memory "
            "controller's "
            "busy share change?",
            choices=(
                Choice(
                    key="a",
                    text="it falls",
                    below=0.8,
                    feedback="Each image needs its own reads and writes, and the rate of images is far higher.",
                ),
                Choice(
                    key="b",
                    text="it stays about the same",
                    below=1.5,
                    feedback="With the large batch, the GPU waits for much less of the time.",
                ),
                Choice(key="c", text="it rises", feedback="The GPU waited before; now it works, and work moves data."),
            ),
            expected="c",
            explanation="With batch size 8 the GPU waits most of the time, and a GPU that waits moves no data. The "
            "direction depends on the model: in a model with a few very large layers, whose weights are read once per "
            "batch, the traffic falls instead.",
            hints=(
                "First ask for how much of the time any kernel runs.",
                "Compare busy and traffic for the two batch sizes.",
                "The rows of the first network have batch sizes 8 and 512.",
            ),
        ),
        Question(
            key="heat",
            prompt="A GPU with dusty fans runs under full load until it overheats. Which metric of the monitor does "
            "not "
            "change?",
            choices=(
                Choice(key="a", text="the clock", feedback="The driver lowers it until the GPU no longer overheats."),
                Choice(key="b", text="power", feedback="A lower clock needs less power; that is why it is lowered."),
                Choice(
                    key="c",
                    text="utilisation",
                    feedback="A kernel is always running; that each kernel takes longer does not count.",
                ),
            ),
            right="c",
            explanation="Under full load kernels run all the time, only more slowly: utilisation shows 100 % before "
            "the throttling and during it.",
            hints=(
                "For each metric: would it change if every kernel took longer?",
                "What happens to clock and power when the GPU must cool down?",
                "Utilisation measures whether a kernel runs, not how fast it runs.",
            ),
        ),
        Question(
            key="held",
            prompt="From which second to which second was the first GPU's clock throttled because of heat? Give both "
            "to "
            "within 2 s.",
            find_problem=check_interval,
            explanation="It takes nine seconds of full load to overheat. Throttling continues after the load ends, "
            "because "
            "the GPU has to cool down first.",
            hints=(
                "Look at the lowest curve of the chart, and at its triangles.",
                "Compare the clock with its maximum, 1980 MHz; heat lowers it from the first to the last triangle.",
                'dusty.gpu_samples.query("throttle_bits == 32") has one row for each triangle.',
            ),
        ),
        Question(
            key="rank",
            prompt="Three jobs: matrix products without pauses; the same products, but the data arrive late; an "
            "addition "
            "to every element of a long vector, without pauses. Utilisation ranks the job with late data last. Which "
            "job does the least arithmetic per second?",
            choices=(
                Choice(
                    key="a",
                    text="the one with late data",
                    below=1.0,
                    feedback="It computes for only a part of the time, but fast.",
                ),
                Choice(
                    key="b",
                    text="the one with the long vector",
                    feedback="It keeps the memory busy, not the arithmetic units.",
                ),
            ),
            expected="b",
            explanation="One operation per element leaves the arithmetic units idle while the memory is busy. "
            "Utilisation "
            "counts both kinds of work as busy.",
            hints=(
                "How many operations does each job do per number that it reads from memory?",
                "Compare FLOP/s, not busy shares.",
                "The matrix product needs 2 x n x n x n operations.",
            ),
        ),
        Question(
            key="cards",
            prompt="Match each metric with its definition: " + ", ".join(CARDS) + ".",
            choices=(
                Choice(key="a", text="share of time in which device memory was being read or written"),
                Choice(key="b", text="bytes per second between host and GPU"),
                Choice(key="c", text="share of time in which at least one kernel ran"),
                Choice(key="d", text="resident warps on a multiprocessor, divided by the maximum"),
                Choice(key="e", text="arithmetic that the model needs, divided by what the GPU could do in that time"),
                Choice(key="f", text="bytes of device memory that are allocated"),
                Choice(key="g", text="share of the requests to a cache that the cache answered by itself"),
                Choice(
                    key="h",
                    text="share of time with at least one warp resident, averaged over all multiprocessors",
                ),
            ),
            find_problem=check_cards,
            explanation="Eight of eight. Only one of these metrics counts useful work; the others count time, bytes, "
            "warps or requests.",
            hints=(
                "Sort the definitions first: shares of time, bytes, and other shares.",
                "Three definitions are about 'did anything happen': on the GPU, on a multiprocessor, in the memory.",
                "The row of 01.1 with 99 % busy and 3 % filled shows how utilisation differs from SM activity.",
            ),
        ),
        Question(
            key="anonymous",
            prompt="This is an unknown job, and you have only its counters. What limits its speed?",
            choices=(
                Choice(key="a", text="it waits for data", feedback="Then busy would be low, and idle time long."),
                Choice(
                    key="b",
                    text="its kernels are too small for the GPU",
                    feedback="Then fewer multiprocessors would have work.",
                ),
                Choice(
                    key="c",
                    text="memory bandwidth",
                    feedback="Then memory traffic would be near 100 %.",
                ),
                Choice(
                    key="d",
                    text="its arithmetic uses a slow number format",
                    feedback="The other three explanations contradict the counters.",
                ),
            ),
            right="d",
            explanation="The GPU is busy and full, and there is almost no memory traffic: the arithmetic itself is "
            "slow. "
            "It runs in FP32, without tensor cores. First action: try bfloat16 (lesson 08).",
            hints=(
                "Go through the four answers. How would each of them change the table?",
                "Compare MFU with the other three shares.",
                "The kernel name in gpulab.analysis.kernel_table contains f32 or sgemm, which means FP32 arithmetic.",
            ),
        ),
    ),
    targets=(
        Target(
            key="plan",
            unit="readings",
            value=3,
            hints=(
                "An interval of one second has the same period as the job; find an interval that has not.",
                "Where in the job's period do the readings fall? They should fall on different thirds of it.",
                "With plan_ms = 1333, each reading falls a third of the period later than the one before.",
            ),
        ),
    ),
)
