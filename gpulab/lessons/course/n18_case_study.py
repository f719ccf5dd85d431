"""Lesson 18: one slow training, mended step by step, and what each step was worth."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

LESSON = Lesson(
    id="18_case_study",
    title="Case study: the path to 90 %",
    question="in which order is a slow training mended?",
    minutes=35,
    budget_s=60,
    level=3,
    without_gpu="the GPU is a virtual H100; the data pipeline runs for real on your cores",
    before=("05_data_loading", "07_host_to_device", "08_mixed_precision"),
    outcomes=(
        "mend a training one change at a time, each chosen from the evidence of the last",
        "say why the same change is worth nothing early and much late",
        "tell where rules of thumb from utilisation misfire",
        "go through a checklist in which every item has evidence",
    ),
    symptom="The GPU is idle for most of each step, and a list of tips names a dozen things to try.",
    signature="The part of the step that is largest now, in the ledger of the run after the last change.",
    fix="What the report of the last run names first, alone; then a new run: the next cause is another one.",
    not_when="No change that the ledger names is worth a twentieth: then only less work, or another GPU, helps.",
    experiments=(
        Experiment(number="18.1", shows="an image search that starves, against the same one fed from decoded bytes"),
        Experiment(number="18.2", shows="precision first against precision last; the waterfall of all changes"),
        Experiment(number="18.3", shows="four rules of thumb on eight machines, against the slowest side"),
        Experiment(number="18.4", shows="items that are ticked against items that have evidence"),
    ),
    questions=(
        Question(
            key="busy",
            ask="The loop decodes each photograph when it is asked for, in the main process. For which share of a step "
            "does the GPU compute?",
            choices=(
                Choice(key="a", text="less than a quarter", below=0.25, told="64 photographs are decoded in turn."),
                Choice(key="b", text="about half", below=0.7, told="64 photographs are decoded before each step."),
                Choice(key="c", text="nearly all of it", told="The GPU waits until 64 photographs are decoded."),
            ),
            because="A GPU of this kind needs some ms for what one core decodes in tens of them.",
            hints=(
                "How many photographs does a step need, and who decodes them?",
                "Compare waiting for data with computing in the ledger.",
                "The line DataLoader(..., num_workers=0) decodes in the loop itself.",
            ),
        ),
        Question(
            key="precision",
            ask="Mixed precision makes this model's matrix products several times as fast. You apply it first, before "
            "anything else. How much faster is a step?",
            choices=(
                Choice(key="a", text="by less than a tenth", below=1.1, told="Only the GPU's part can shrink."),
                Choice(key="b", text="by a third or so", below=1.6, told="The GPU's part is smaller than that."),
                Choice(key="c", text="about twice as fast", told="The GPU computes for a small part of the step."),
            ),
            because="It can only shorten the GPU's part, and that is small while the GPU starves.",
            hints=(
                "Which part of the step does it shorten?",
                "Compare the share of computing with what remains of the step without it.",
                "The line gpulab.whatif(..., 'amp=bf16') predicts it from the run.",
            ),
        ),
        Question(
            key="first",
            ask="Which evidence says that data comes first?",
            choices=(
                Choice(key="a", text="the GPU is hardly busy", told="So it would be with any cause of waiting."),
                Choice(key="b", text="memory of the GPU is free", told="Free memory costs no time."),
                Choice(
                    key="c",
                    text="the loop spends most of each step in the loader's __next__",
                    told="That names who is waited for.",
                ),
                Choice(
                    key="d", text="the model runs in float32", told="It does; but for how much of a step does it run?"
                ),
            ),
            right="c",
            because="A low GPU share has many causes; the ledger says which of them takes the time.",
            hints=(
                "Which of these would read differently if launches were the cause?",
                "Compare what each number would be with a slow host instead of slow data.",
                "The line 'waiting for data' in the ledger.",
            ),
        ),
        Question(
            key="next",
            ask="Data is decoded once now, and the GPU computes for most of the step. What does the report name next?",
            choices=(
                Choice(key="a", text="more workers", told="Nobody waits for data any more."),
                Choice(key="b", text="the precision of the matrix products", told="The GPU's own work is largest."),
                Choice(key="c", text="a second GPU", told="The first one is not used well yet."),
            ),
            right="b",
            because="Once the GPU is what the step waits for, its own work is the largest part, and precision pays.",
            hints=(
                "Which part is the largest in the second ledger?",
                "Compare the shares of matrix products and of copies.",
                "The first finding of gpulab.diagnose(gpulab.runs['decoded']).",
            ),
        ),
        Question(
            key="share",
            ask="Precision and layout together make a photograph well over 1.5 times as fast as with decoded. What "
            "becomes of the share of a step in which the GPU is busy?",
            choices=(
                Choice(key="a", text="it falls", below=-0.01, told="The host works as long as before."),
                Choice(key="b", text="it stays as it is", below=0.01, told="Only the GPU's part of the step shrinks."),
                Choice(key="c", text="it rises", told="A faster GPU is done sooner, and waits for as long as before."),
            ),
            because="The GPU does its work in less time and the host's part stays, so the share falls while the "
            "training gains. The share shows where to look; what counts is the time of a photograph.",
            hints=(
                "Which part of the step gets shorter, and which does not?",
                "GPU busy over step: what happens to each of the two?",
                "The lines GPU busy and GPU idle of the ledger: which of them do the two changes touch?",
            ),
        ),
        Question(
            key="rules",
            ask="Four rules of thumb look at utilisation and memory alone. On how many of eight machines do they name "
            "the change that helps most?",
            choices=(
                Choice(
                    key="a", text="two or fewer", below=2.5, told="Free memory is no evidence of a lack of workers."
                ),
                Choice(key="b", text="three to five", below=5.5, told="One of the four rules fires nearly everywhere."),
                Choice(key="c", text="six or more", told="Two of the four readings are not about time at all."),
            ),
            because="Free memory of the host says what is allowed, not what is needed; a low GPU has several causes.",
            hints=(
                "Which of the rules looks at something that costs time?",
                "Compare what the rule reads with what the step waits for.",
                "The line of the RAM: on how many machines is less than half of it in use?",
            ),
        ),
        Question(
            key="transfer",
            ask="Another team: the GPU computes for 35 % of each step, waits for data 2 %, and runs 9,000 kernels of "
            "4 us a step. What comes first?",
            choices=(
                Choice(key="a", text="more workers", told="Data costs 2 % of the step; that is all they could give."),
                Choice(key="b", text="fewer, larger kernels", told="The host cannot launch them fast enough."),
                Choice(key="c", text="pinned memory", told="Nothing says that copies take any time."),
                Choice(key="d", text="a faster GPU", told="It would wait for launches even longer."),
            ),
            right="b",
            because="9,000 launches take the host longer than the kernels take the GPU: notebook 12 is about that.",
            hints=(
                "What does the GPU wait for, if not for data?",
                "Compare the length of a kernel with what a launch costs the host.",
                "9,000 kernels of 4 us are 36 ms; launching them takes at least as long again.",
            ),
        ),
    ),
    pars=(
        Par(
            key="changes",
            what="changes that together make a photograph twice as fast as decoding once did",
            par=4,
            hints=(
                "What does the report name after each change? The table says it.",
                "Compare the gain of a change made first with its gain after precision.",
                "Precision, then the layout that its report names; then what the report of both names.",
            ),
        ),
    ),
)
