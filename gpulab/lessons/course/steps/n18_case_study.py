"""Lesson 18: a slow training run, fixed step by step, and the gain of each step."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

LESSON = Lesson(
    id="18_case_study",
    title="Case study: the path to 90 %",
    question="in which order should you fix a slow training run?",
    minutes=35,
    budget_s=60,
    level=3,
    without_gpu="the GPU is a virtual H100; the data pipeline runs for real on your cores",
    prerequisites=("05_data_loading", "07_host_to_device", "08_mixed_precision"),
    outcomes=(
        "speed up a training run one change at a time, and choose each change from the evidence of the last run",
        "explain why the same change gains nothing early and much later",
        "recognise where rules of thumb based on utilisation go wrong",
        "work through a checklist in which every item has evidence",
    ),
    symptom="The GPU is idle for most of each step, and a list of tips names a dozen things to try.",
    signature="The largest part of the step in the ledger of the latest run.",
    fix="Apply only the change that the report of the latest run names first, then record again: the next cause is "
    "another one.",
    limits="No change that the ledger suggests would gain 5 %: then only less work or a faster GPU helps.",
    experiments=(
        LessonExperiment(
            number="18.1", description="an image search that waits for data, and the same one with decoded images"
        ),
        LessonExperiment(
            number="18.2", description="precision first and precision last; the gain of all changes in order"
        ),
        LessonExperiment(
            number="18.3", description="four rules of thumb on eight machines, and the slowest part of the pipeline"
        ),
        LessonExperiment(number="18.4", description="a checklist in which every item has evidence"),
    ),
    questions=(
        Question(
            key="busy",
            prompt="The loop decodes each photo when it needs it, in the main process. For what share of a step is the "
            "GPU busy?",
            choices=(
                Choice(key="a", text="less than a quarter", below=0.25, feedback="64 photos are decoded one by one."),
                Choice(key="b", text="about half", below=0.7, feedback="64 photos are decoded before each step."),
                Choice(key="c", text="almost all of it", feedback="The GPU waits until 64 photos are decoded."),
            ),
            expected="a",
            explanation="Such a GPU needs a few ms to train on photos that one core needs tens of ms to decode.",
            hints=(
                "How many photos does a step need, and which process decodes them?",
                "Compare waiting for data with computing in the ledger.",
                "With DataLoader(..., num_workers=0), the training loop itself decodes.",
            ),
        ),
        Question(
            key="precision",
            prompt="Mixed precision makes this model's matrix products several times as fast. You apply it first, "
            "before "
            "any other change. How much faster is a step?",
            choices=(
                Choice(
                    key="a", text="less than 10 % faster", below=1.1, feedback="Only the GPU's part can become shorter."
                ),
                Choice(
                    key="b", text="about a third faster", below=1.6, feedback="The GPU's part is smaller than that."
                ),
                Choice(key="c", text="about twice as fast", feedback="The GPU computes for a small part of the step."),
            ),
            expected="a",
            explanation="It can only shorten the GPU's part of the step, which is small while the GPU waits for data.",
            hints=(
                "Which part of the step becomes shorter?",
                "Compare the share of computing with the rest of the step.",
                "gpulab.whatif(..., 'amp=bf16') predicts the effect from the run.",
            ),
        ),
        Question(
            key="first",
            prompt="Which evidence shows that data loading should be fixed first?",
            choices=(
                Choice(key="a", text="the GPU is hardly busy", feedback="That is true for every cause of waiting."),
                Choice(key="b", text="GPU memory is free", feedback="Free memory costs no time."),
                Choice(
                    key="c",
                    text="the loop spends most of each step in next() of the DataLoader iterator",
                    feedback="This shows what the loop waits for.",
                ),
                Choice(
                    key="d",
                    text="the model runs in float32",
                    feedback="It does, but for how much of a step does it run?",
                ),
            ),
            right="c",
            explanation="A low GPU share has many possible causes; the ledger shows which of them takes the time.",
            hints=(
                "Which of these would read differently if launches were the cause?",
                "What would each number be if the host were slow instead of the data?",
                "'waiting for data' in the ledger.",
            ),
        ),
        Question(
            key="next",
            prompt="The photos are now decoded only once, and the GPU is busy for most of the step. What does the "
            "report "
            "name next?",
            choices=(
                Choice(key="a", text="more workers", feedback="The loop no longer waits for data."),
                Choice(
                    key="b", text="the precision of the matrix products", feedback="GPU work is now the largest part."
                ),
                Choice(key="c", text="a second GPU", feedback="The first one is not well used yet."),
            ),
            right="b",
            explanation="Once the GPU is the bottleneck, its own work is the largest part of the step, and a lower "
            "precision pays off.",
            hints=(
                "Which part is the largest in the second ledger?",
                "Compare the shares of matrix products and of copies.",
                "The first finding of gpulab.diagnose(gpulab.runs['decoded']).",
            ),
        ),
        Question(
            key="share",
            prompt="Lower precision makes the training faster than in the run `decoded`. How does the share of a step "
            "in which the GPU is busy change?",
            choices=(
                Choice(key="a", text="it falls", below=-0.01, feedback="The host needs as much time as before."),
                Choice(
                    key="b",
                    text="it does not change",
                    below=0.01,
                    feedback="Only the GPU's part of the step becomes shorter.",
                ),
                Choice(key="c", text="it rises", feedback="A faster GPU finishes sooner, and waits as long as before."),
            ),
            expected="a",
            explanation="The GPU does its work in less time and the host's part stays the same, so the share falls "
            "although the training is faster. The share shows where to look; the time per photo is what counts.",
            hints=(
                "Which part of the step becomes shorter, and which does not?",
                "The share is the busy time divided by the step time: how does each of them change?",
                "GPU busy and GPU idle in the ledger: which of them does the precision affect?",
            ),
        ),
        Question(
            key="rules",
            prompt="Four rules of thumb use only utilisation and memory. On how many of eight machines do they name "
            "the "
            "most effective change?",
            choices=(
                Choice(
                    key="a",
                    text="two or fewer",
                    below=2.5,
                    feedback="Free memory does not prove that there are too few workers.",
                ),
                Choice(
                    key="b",
                    text="three to five",
                    below=5.5,
                    feedback="The rule about host memory matches on most machines, whatever the cause.",
                ),
                Choice(key="c", text="six or more", feedback="Two of the four numbers have nothing to do with time."),
            ),
            expected="a",
            explanation="Free host memory shows what is possible, not what is necessary; low GPU utilisation has "
            "several "
            "causes.",
            hints=(
                "Which of the rules looks at something that costs time?",
                "Compare what the rule reads with what the step waits for.",
                "Host memory: on how many machines is less than half of it in use?",
            ),
        ),
        Question(
            key="transfer",
            prompt="Another team: the GPU is busy for 35 % of each step, the loop waits for data for 2 %, and a step "
            "runs 9,000 kernels of 4 us. What do you fix first?",
            choices=(
                Choice(
                    key="a", text="more workers", feedback="Data loading takes 2 % of the step; you can gain no more."
                ),
                Choice(key="b", text="fewer, larger kernels", feedback="The host cannot launch them fast enough."),
                Choice(key="c", text="pinned memory", feedback="Nothing shows that copies take time."),
                Choice(key="d", text="a faster GPU", feedback="It would wait for launches even longer."),
            ),
            right="b",
            explanation="The host needs longer for 9,000 launches than the GPU needs for the kernels: see notebook 12.",
            hints=(
                "What does the GPU wait for, if not for data?",
                "Compare the duration of a kernel with the time of a launch.",
                "9,000 kernels of 4 us take 36 ms; launching them takes at least as long.",
            ),
        ),
    ),
    targets=(
        Target(
            key="changes",
            unit="changes that together make the run `decoded` twice as fast",
            value=4,
            hints=(
                "What does the report name after each change? The table shows it.",
                "Compare the gain of a change made first with its gain after precision.",
                "Precision, then the layout that its report names; then what the next report names.",
            ),
        ),
    ),
)
