"""Lesson 18: a slow training run, fixed step by step, and the gain of each step."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

LESSON = Lesson(
    id="18_case_study",
    title="Case study: the path to 90 %",
    question="in which order should you fix a slow training run?",
    minutes=45,
    budget_s=60,
    level=3,
    without_gpu="the GPU is a virtual H100; the data pipeline runs for real on your cores",
    prerequisites=("05_data_loading", "07_host_to_device", "08_mixed_precision"),
    outcomes=(
        "speed up a training run one change at a time, and choose each change from the evidence of the last run",
        "explain why the same change gains nothing early and much later",
        "decide whether torch.compile pays off, from its first step and its gain per step",
        "say how far a prediction can be trusted, and where a checklist applied in order goes wrong",
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
            number="18.3", description="all levers ranked by their predicted gain; when torch.compile pays off"
        ),
        LessonExperiment(
            number="18.4", description="predicted beside measured step times for seven changes on an H100"
        ),
        LessonExperiment(
            number="18.5", description="PyTorch's tuning guide, applied in order, on eight recordings of an H100"
        ),
        LessonExperiment(number="18.6", description="a checklist in which every item has evidence"),
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
            key="compile",
            prompt="You compile the network and train it on the CPU. After how many steps has torch.compile paid for "
            "itself?",
            choices=(
                Choice(
                    key="a",
                    text="after fewer than 50 steps",
                    below=50,
                    feedback="Compiling takes many seconds; 50 steps take about two.",
                ),
                Choice(
                    key="b",
                    text="after 50 to 500 steps",
                    below=500,
                    feedback="Convolutions take most of a step, and the compiler does not replace them on a CPU.",
                ),
                Choice(
                    key="c",
                    text="after more than 500 steps, or never",
                    feedback="The first step takes many seconds, and each later step gains a few ms at best.",
                ),
            ),
            expected="c",
            explanation="The steps to break even are the time of the first step divided by the gain per step. "
            "Compilation takes as long for a short run as for a long one.",
            hints=(
                "What does the compiler speed up here, and what not?",
                "Divide the time of the first step by the gain per step.",
                "Convolutions call the same library in both versions.",
            ),
        ),
        Question(
            key="ranges",
            prompt="For how many of the seven changes does the measured step time lie within the predicted range?",
            choices=(
                Choice(key="a", text="three or fewer", below=3.5, feedback="The ranges are wider than that."),
                Choice(
                    key="b",
                    text="four to six",
                    below=6.5,
                    feedback="A replay cannot know everything that a change does.",
                ),
                Choice(key="c", text="all seven", feedback="A replay cannot know everything that a change does."),
            ),
            expected="b",
            explanation="Three changes were better than their range. None was worse, so none of them would have "
            "disappointed you.",
            hints=(
                "What can a replay not know about a changed kernel, or about eight worker processes?",
                "Compare the columns predicted and measured.",
                "Look at channels_last, empty_cache() and num_workers.",
            ),
        ),
        Question(
            key="guide",
            prompt="PyTorch's Performance Tuning Guide, applied in order: for how many of the eight recordings is its "
            "first open item the right change?",
            choices=(
                Choice(
                    key="a",
                    text="three or fewer",
                    below=3.5,
                    feedback="A checklist does not know what a step waits for.",
                ),
                Choice(
                    key="b",
                    text="four to six",
                    below=6.5,
                    feedback="The right change is often on the list, but further down.",
                ),
                Choice(key="c", text="seven or eight", feedback="Its order is the same for every program."),
            ),
            expected="a",
            explanation="An item is open because of a setting, and not because it costs time. The order of the guide "
            "is the same for every program; the largest part of the step is not.",
            hints=(
                "Which item of the guide is open in nearly every program?",
                "Compare the columns of the first open item and of the right change.",
                "None of the recorded loops is compiled.",
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
