"""Lesson 03: how much work a GPU gets at once, what gives it more, and where that stops paying."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

_BATCH = (
    Question(
        key="many",
        ask="On the GPU the batch goes from 8 pictures to 512: 64 times as many. How many times as many pictures a "
        "second does it train on?",
        choices=(
            Choice(key="a", text="about as many", below=2.0, told="The work is the same, but the calls are not."),
            Choice(key="b", text="two to four times as many", below=4.0, told="Count the calls that a step needs."),
            Choice(key="c", text="more than four times as many", told="The same calls do 64 times the work."),
        ),
        because="A step of 8 pictures takes about as long as one of 64: the time goes to calling kernels, and there "
        "are as many of them whatever the batch. Only beyond that does a larger batch take longer.",
        hints=(
            "What does a step need to do that does not depend on the batch?",
            "Compare the number of kernels in a step at both sizes.",
            "The line is net(images): a call for each layer, however many pictures are in it.",
        ),
    ),
    Question(
        key="idle",
        ask="Which sentence does the report of the small batch bear out?",
        choices=(
            Choice(
                key="a", text="The GPU waits for data.", told="The ledger has no time in which a batch was missing."
            ),
            Choice(key="b", text="The GPU waits to be told: calling its kernels takes longer than they do.", told=""),
            Choice(
                key="c", text="The GPU is full, and needs a faster one beside it.", told="It is idle most of a step."
            ),
        ),
        right="b",
        because="Most of a step is idle time of the GPU while operators are dispatched and launched. Were data "
        "missing, that line of the ledger would be long; were the GPU full, there would be next to no idle time.",
        hints=(
            "Read the ledger: what are the longest lines?",
            "Compare GPU busy with operator dispatch and launch calls.",
            "The line 'GPU idle' is far longer than 'matrix kernels'.",
        ),
    ),
    Question(
        key="fullest",
        ask="Compare a batch of 512 with the largest one that the GPU has room for, some 150 times as large. How many "
        "times as many pictures a second does the largest train on?",
        choices=(
            Choice(key="a", text="hardly more: at most a quarter", below=1.25, told="The knee lies below both."),
            Choice(key="b", text="up to ten times as many", below=10.0, told="The rate had stopped rising before."),
            Choice(key="c", text="more than ten times as many", told="Look at the sweep: where does it become flat?"),
        ),
        because="Beyond the knee the GPU has all the work it can do; more of it waits in memory.",
        hints=(
            "Look at the chart of 03.1 once more.",
            "Compare the rates of the last two sizes in it.",
            "From 2048 to 8192 the rate hardly changed.",
        ),
    ),
)

_WORK = (
    Question(
        key="loop",
        ask="A loop calls the network for each of 32 pictures, instead of once for all of them. How many times as many "
        "operators does the device get?",
        choices=(
            Choice(key="a", text="as many", below=1.5, told="Each call of the network hands out its operators anew."),
            Choice(key="b", text="about 6 times as many", below=12.0, told="There are 32 calls."),
            Choice(key="c", text="about 32 times as many", told="One set of operators for each call."),
        ),
        because="The number of operators belongs to the call, not to the picture.",
        hints=(
            "How often is the network called?",
            "Compare the two counts of operators.",
            "The line net(image[None]) runs once for each picture.",
        ),
    ),
    Question(
        key="accumulate",
        ask="Gradients of 8 batches of 8 pictures are added up for each update. How many pictures a second does that "
        "train on, beside plain batches of 8? (A batch of 64 gives six to nine times as many.)",
        choices=(
            Choice(key="a", text="about as many", below=2.0, told="The kernels stay as small as they were."),
            Choice(key="b", text="two to five times as many", below=5.0, told="Only the update is saved, seven of 8."),
            Choice(key="c", text="about as many as a batch of 64", told="Its kernels are those of a batch of 8."),
        ),
        because="Each kernel still gets 8 pictures, and there are 8 times as many of them: only updates are saved.",
        hints=(
            "What does one kernel get to work on?",
            "Compare the number of kernels in a step, and what one takes.",
            "The line net(images) sees 8 pictures, whatever `times` is.",
        ),
    ),
    Question(
        key="norm",
        ask="Accumulated gradients were those of the large batch. The network now gets BatchNorm. How far are they "
        "apart, as a share of the largest number in them?",
        choices=(
            Choice(key="a", text="not at all, but for rounding", below=1e-4, told="Each part has a mean of its own."),
            Choice(key="b", text="by less than 2 %", below=0.02, told="Eight pictures differ more than that."),
            Choice(key="c", text="by more than 2 %", told="Parts of 8 are scaled otherwise than a batch of 64."),
        ),
        because="BatchNorm takes mean and spread over the pictures of the part that it sees, so each part is scaled in "
        "another way than the whole.",
        hints=(
            "Which layers look at more than one picture at a time?",
            "Compare the gradients of the whole batch and of its parts.",
            "The line norm(after): with BatchNorm2d its output depends on the other pictures.",
        ),
    ),
    Question(
        key="ensemble",
        ask="Four small models give their answers one after the other, or all at once by vmap. Of the matrix products "
        "in turn, how many are left?",
        choices=(
            Choice(key="a", text="a quarter", below=0.3, told="Four products of a layer become one."),
            Choice(key="b", text="half", below=0.7, told="All four models fit into one product."),
            Choice(key="c", text="all of them", told="vmap does not loop: it takes the batched operator."),
        ),
        because="The weights of the four are one tensor, so each layer is one batched product for all of them.",
        hints=(
            "How many products does one model need, and how many do four?",
            "Compare the two counts above.",
            "The line stack_module_state(models) makes one tensor of four.",
        ),
    ),
)

_SHAPES = (
    Question(
        key="padding",
        ask="Texts in random batches of 32 are filled up to the longest of each batch. Half of them are shorter than "
        "48 tokens, a few as long as 512. How much of what the model computes on is padding?",
        choices=(
            Choice(key="a", text="less than a fifth", below=0.2, told="One long text is enough to stretch 32 rows."),
            Choice(key="b", text="a fifth to a half", below=0.5, told="Nearly each batch has a long text in it."),
            Choice(key="c", text="more than half", told="The longest of 32 decides, and it is far from the usual."),
        ),
        because="The longest of 32 texts decides for all of them, and among 32 there is nearly always a long one.",
        hints=(
            "How long is the longest of 32 texts, beside a usual one?",
            "Compare tokens that mean something with all that are computed on.",
            "The line len(batch) * max(...) is what a batch costs.",
        ),
    ),
    Question(
        key="one_more",
        ask="A batch of 256 rows makes 128 blocks, and 132 multiprocessors work them off in one wave. One row more: "
        "how many times as many waves?",
        choices=(
            Choice(key="a", text="as many", below=1.2, told="A row over the edge costs a whole row of tiles."),
            Choice(
                key="b", text="half as many more", below=1.8, told="A wave that is not full counts like a full one."
            ),
            Choice(key="c", text="twice as many", told="192 blocks do not fit on 132 multiprocessors at once."),
        ),
        because="257 rows need three rows of tiles, 192 blocks: 132 in the first wave and 60 in a second that takes as "
        "long. At 8192 rows there are 32 waves, and the last has room for more.",
        hints=(
            "How many rows of tiles do 257 rows need?",
            "Compare the number of blocks with that of multiprocessors.",
            "The line ceil(blocks / multiprocessors) rounds up.",
        ),
    ),
    Question(
        key="transfer",
        ask="What will a batch of twice the size do to the texts a second?",
        choices=(
            Choice(
                key="a", text="Nearly double them: half of the memory is free.", told="Free memory is no free time."
            ),
            Choice(key="b", text="Next to nothing: the GPU has its work already.", told=""),
            Choice(
                key="c", text="Nothing before the data comes faster.", told="The GPU is idle for 3 % of a step only."
            ),
        ),
        right="b",
        because="Long kernels of thousands of blocks, and hardly any idle time: this loop is beyond its knee. Below "
        "it, kernels would be short, with gaps between them. What could help is less work: see notebook 08.",
        hints=(
            "Is there time in which the GPU does nothing?",
            "Compare 4,000 blocks with 132 multiprocessors, and 900 us with the few a call takes.",
            "The line 'busy for 97 % of each step' leaves 3 % to gain.",
        ),
    ),
)

LESSON = Lesson(
    id="03_parallel_work_and_batch",
    title="Parallel work and batch size",
    question="how much should the GPU get at once?",
    minutes=45,
    level=2,
    without_gpu="what needs a GPU runs on a virtual H100; counts and the CPU's sweep are real",
    before=("00_start_here",),
    outcomes=(
        "find the knee of a batch sweep, and say what limits the loop on either side of it",
        "replace loops over samples, time steps and models by one operator, and count what that saves",
        "say what gradient accumulation gives and what it does not, and which layer breaks it",
        "bring padding below 5 % with batches by tokens",
        "find the largest batch in a few tries, and know why it is seldom the one to use",
    ),
    symptom="The GPU is idle most of a step, and a step with eight times the batch takes about as long.",
    signature="The number of kernels in a step stays the same while the batch grows, and each takes microseconds.",
    fix="More work for each call: a batch at the knee, one operator in place of a loop, batches by tokens, models "
    "stacked.",
    not_when="The GPU is busy with long kernels: beyond the knee a larger batch gives memory use and no speed. "
    "Accumulation changes the gradient, not the size of the kernels.",
    experiments=(
        Experiment(number="03.1", shows="a batch of 8 against larger ones, up to where the rate stays flat"),
        Experiment(number="03.2", shows="a loop over samples or time steps against one operator"),
        Experiment(number="03.3", shows="64 images at once, 8 times 8 accumulated, and 8"),
        Experiment(number="03.4", shows="a batch against its micro-batches, without BatchNorm and with it"),
        Experiment(
            number="03.5", shows="random batches of texts against buckets and a budget of tokens; a batch that grows"
        ),
        Experiment(number="03.6", shows="sizes of 257 and 8193 against whole tiles and waves"),
        Experiment(number="03.7", shows="a search for the largest batch by doubling against one that reckons"),
        Experiment(number="03.8", shows="four small models in turn, in streams, and as one"),
        Experiment(number="03.9", shows="small, medium and large batches, each with your own numbers"),
    ),
    questions=(*_BATCH, *_WORK, *_SHAPES),
    pars=(
        Par(
            key="tries",
            what="steps tried to find the largest batch",
            par=6,
            hints=(
                "Each try that fits tells you more than yes: it gives the bytes in use.",
                "Compare the bytes of two small batches: what does one image more need?",
                "A line through (64, low) and (128, high) reaches room.capacity_bytes at the batch that is wanted.",
            ),
        ),
    ),
)
