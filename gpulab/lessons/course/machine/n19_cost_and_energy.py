"""Lesson 19: what an idle GPU costs, and which change pays."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_BILL = (
    Question(
        key="week",
        prompt="A run takes a week and keeps its GPU busy 15 % of the time. A fix removes waiting, and utilisation "
        "rises to 95 %. The GPU computes the same as before. How long does the run take now?",
        choices=(
            Choice(key="a", text="less than 24 hours", below=24, feedback="Only a run of at most 152 hours would."),
            Choice(key="b", text="between 24 and 30 hours", below=30, feedback="25.2 busy hours at 95 %."),
            Choice(key="c", text="more than 30 hours", feedback="15 % of 168 hours is 25.2 hours of work."),
        ),
        expected="b",
        explanation="168 h * 15 % = 25.2 h of work, which at 95 % take 26.5 h. It ends on the next day. The formula "
        "assumes that the busy time stays the same; if a fix also makes kernels faster, the run is shorter than that.",
        hints=(
            "How many hours does the GPU work in this week?",
            "The busy hours are the same before and after.",
            "168 * 0.15 / 0.95",
        ),
    ),
    Question(
        key="energy",
        prompt="A fix of data loading halves the time of an epoch; the GPU computes the same. What happens to the "
        "energy that the GPU uses per epoch?",
        choices=(
            Choice(key="a", text="it stays the same", feedback="A GPU that waits still draws idle power."),
            Choice(key="b", text="it falls, but by less than half", feedback="Only the idle part becomes shorter."),
            Choice(key="c", text="it falls by half, too", feedback="The busy part uses as much energy as before."),
        ),
        right="b",
        explanation="The bill of a rented GPU counts hours. Energy counts watts: a busy second costs several times as "
        "much energy as an idle one, and the busy seconds are the same.",
        hints=(
            "Split the epoch into busy and idle seconds.",
            "Which of the two does the fix shorten?",
            "idle watts * idle seconds + busy watts * busy seconds",
        ),
    ),
)
_POWER = (
    Question(
        key="cap",
        prompt="A V100 may draw 250 W. With which power limit does ResNet-50 train the most images per joule?",
        choices=(
            Choice(
                key="a",
                text="100 W, the lowest",
                below=110,
                feedback="The epoch then takes almost twice as long, and idle power counts for all of it.",
            ),
            Choice(
                key="b",
                text="125 to 175 W",
                below=180,
                feedback="The last watts buy little speed; at the first ones, idle power dominates.",
            ),
            Choice(
                key="c",
                text="200 W or more",
                feedback="At the highest clocks, the voltage is at its highest, too.",
            ),
        ),
        expected="b",
        explanation="Dynamic power grows with clock times voltage squared. Near the highest clock, a little speed "
        "costs much power. Far below it, the voltage falls no more, and the idle power is paid for a longer time.",
        hints=(
            "Energy is power times time. Which of the two changes faster at each end?",
            "Compare images per joule at the seven limits.",
            "images / (seconds * watts)",
        ),
    ),
    Question(
        key="renter",
        prompt="At 150 W, an epoch of ResNet-50 needs 0.048 kWh less, and takes 0.176 hours longer. You rent the GPU "
        "by the hour, electricity included. Does the limit save you money?",
        choices=(
            Choice(key="a", text="yes: it uses 23 % less energy", feedback="Who pays for this energy?"),
            Choice(
                key="b",
                text="no: you pay for 0.176 hours more",
                feedback="The rent runs on, and the provider saves the electricity.",
            ),
            Choice(
                key="c",
                text="only if electricity is expensive",
                feedback="It is included. Even if you paid for it, a kWh would have to cost 3.6 times the rent of an "
                "hour.",
            ),
        ),
        right="b",
        explanation="With electricity on top, the limit would pay for a renter only if a kWh cost 3.6 times the rent "
        "of an hour (0.176 / 0.0484). It pays for the owner of a full machine room, where power or cooling is the "
        "limit, and for GPUs that have time to spare.",
        hints=(
            "Which resource do you pay for: hours or kWh?",
            "Compare the extra hours with the saved kWh.",
            "rent * 0.176 against price of a kWh * 0.048",
        ),
    ),
)
_RENT = (
    Question(
        key="rent",
        prompt="A small transformer trains with 128 sequences per batch. Five GPUs, from an RTX 4090 for $0.74 an hour "
        "to a B200 for $6.79. Which one has the lowest cost per epoch?",
        choices=(
            Choice(
                key="a",
                text="the fastest one",
                feedback="Its price is five to nine times that of the slowest, its speed three to four times.",
            ),
            Choice(key="b", text="one in the middle", feedback="Compare speed per dollar, not speed."),
            Choice(
                key="c",
                text="the slowest one",
                feedback="It has over a fifth of the speed of a B200, for a ninth of the price.",
            ),
        ),
        right="c",
        explanation="Cost per epoch is price divided by speed. From the RTX 4090 to the B200, the price grows "
        "ninefold. The speed of such a small model grows less: memory bandwidth limits it, and on the fastest GPUs "
        "the host. With a large model the order can be the opposite.",
        hints=(
            "What is the cost of a million sequences?",
            "Compare the columns dollars/h and sequences/s.",
            "price per hour / (sequences per second * 3600)",
        ),
    ),
    Question(
        key="faster",
        prompt="The network of four wide layers is limited by arithmetic on an A100. A B200 has 7.2 times the FP16 "
        "peak. How many times as fast is the network on it?",
        choices=(
            Choice(
                key="a",
                text="less than 5 times",
                below=5,
                feedback="Memory and host did not become 7.2 times as fast.",
            ),
            Choice(key="b", text="5 to 7 times", below=7, feedback="Only if it stays limited by arithmetic."),
            Choice(key="c", text="7 times or more", feedback="7.2 is the upper bound, if only arithmetic counts."),
        ),
        expected="a",
        explanation="A step takes as long as its slowest resource. The bandwidth of a B200 is 3.9 times that of an "
        "A100, and the host that launches kernels is the same. What was hidden behind arithmetic becomes the limit.",
        hints=(
            "Which three resources does a step use?",
            "Calculate the three times for each GPU.",
            "max(flops / peak, bytes / bandwidth, host time)",
        ),
    ),
)
_MORE = (
    Question(
        key="spin",
        prompt="A host thread waits 0.3 s for the GPU in a loop that calls event.query() again and again. How much of "
        "a core does it use, if the core has nothing else to do?",
        choices=(
            Choice(key="a", text="hardly any: it only waits", below=0.1, feedback="A loop runs instructions."),
            Choice(key="b", text="about half", below=0.6, feedback="Only if it shares the core with others."),
            Choice(key="c", text="all of it", feedback="It asks as fast as the core can."),
        ),
        right="c",
        explanation="Polling reacts fast and occupies a core, which draws power and is missing for the loader. A "
        "blocking wait hands the core back to the operating system.",
        hints=(
            "What does the thread do while it waits?",
            "Compare CPU time with wall time.",
            "time.process_time() grows by almost as much as time.perf_counter().",
        ),
    ),
    Question(
        key="interval",
        prompt="A checkpoint takes 2 minutes, and a preemptible instance is taken away every 4 hours on average. How "
        "many minutes of work should lie between two checkpoints?",
        choices=(
            Choice(
                key="a", text="fewer than 10", below=10, feedback="Then checkpoints take a sixth of the time or more."
            ),
            Choice(key="b", text="10 to 50", below=50, feedback="Near sqrt(2 * 2 * 240) = 31."),
            Choice(key="c", text="more than 50", feedback="Then each failure loses 25 minutes or more on average."),
        ),
        expected="b",
        explanation="Two costs: checkpoints, C / T of the work, and lost work, about T / 2 for each failure. Their sum "
        "is smallest at T = sqrt(2 * C * M), with C the time of a checkpoint and M the mean time between failures.",
        hints=(
            "Which cost grows with the interval, which falls?",
            "The sum is C / T + T / (2 * M).",
            "sqrt(2 * C * M)",
        ),
    ),
)
_TRANSFER = (
    Question(
        key="transfer",
        prompt="A team rents 8 GPUs for $28 an hour. They are busy 35 % of the time, waiting for the DataLoader; the "
        "host has 128 cores, and the loader uses 8 of them. Which of these do you try first?",
        choices=(
            Choice(
                key="a",
                text="limit the power of the GPUs",
                feedback="It saves energy for the provider; the bill counts hours.",
            ),
            Choice(
                key="b",
                text="GPUs of the next generation",
                feedback="They wait for the same loader, at a higher price.",
            ),
            Choice(
                key="c",
                text="8 more GPUs",
                feedback="Twice the price; each GPU waits as before, unless the new host brings the cores.",
            ),
            Choice(key="d", text="more loader workers", feedback="The cores are paid already, and idle."),
        ),
        right="d",
        explanation="The bill counts hours. At 95 %, the same work takes 35 / 95 of the hours, which saves about $18 "
        "of every $28. More or faster GPUs cost more and wait for the same loader.",
        hints=(
            "What is the GPU waiting for?",
            "Which resource is paid and not used?",
            "120 of 128 cores are idle.",
        ),
    ),
)

LESSON = Lesson(
    id="19_cost_and_energy",
    title="Cost and energy",
    question="what does an idle GPU cost, and which change pays?",
    minutes=45,
    budget_s=90,
    level=2,
    without_gpu="epochs and waits are measured on the CPU; speeds of GPUs are estimated, a power sweep is recorded",
    prerequisites=("01_what_is_utilisation", "18_case_study"),
    outcomes=(
        "calculate hours, cost and energy of a run from its utilisation, and say what the calculation assumes",
        "find the power limit with the most work per joule, and say for whom it pays",
        "rank GPUs by cost per epoch, and write the condition under which a second GPU pays",
        "say what limits a job on a faster GPU before renting it",
    ),
    symptom="The bill is high, and the GPUs are not busy.",
    signature="Dollars and watt-hours per epoch: price times hours, and idle power times idle hours, counted apart.",
    fix="Remove waiting first; then choose the GPU by cost per epoch with the limits of this job; then the number.",
    limits="The GPU is busy, and the work itself is the cost. Then less work, faster kernels or a cheaper GPU help.",
    experiments=(
        LessonExperiment(number="19.1", description="what 15 % and 95 % of utilisation imply, and what not"),
        LessonExperiment(number="19.2", description="cost and energy of an epoch before and after a fix"),
        LessonExperiment(number="19.3", description="a power limit: a recorded sweep, and a model of it"),
        LessonExperiment(number="19.4", description="which GPU to rent, when a second one pays, cores per GPU"),
        LessonExperiment(number="19.5", description="a faster accelerator: the roofline once more"),
        LessonExperiment(number="19.6", description="a plan for 100 epochs in a day"),
        LessonExperiment(number="19.7", description="a host that spins, and one that blocks"),
        LessonExperiment(number="19.8", description="GPU-hours held and used in a week"),
        LessonExperiment(number="19.9", description="CO2 by the hour of the start"),
        LessonExperiment(number="19.10", description="checkpoints on a preemptible instance"),
    ),
    questions=(*_BILL, *_POWER, *_RENT, *_MORE, *_TRANSFER),
    targets=(
        Target(
            key="plan",
            unit="dollars for 100 epochs within 24 hours",
            value=24,
            hints=(
                "Compare the seconds of the loader with those of the GPU.",
                "What does the cheapest GPU per epoch lack for the deadline?",
                "Decode once, use all cores, and take two of the GPUs with the lowest cost per epoch.",
            ),
        ),
    ),
)
