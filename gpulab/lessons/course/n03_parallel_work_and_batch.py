"""Lesson 03: how much work a GPU gets at once, what gives it more, and where that stops paying."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

_BATCH = (
    Question(
        key="many",
        ask="On the GPU the batch goes from 8 images to 512: 64 times as many. How many times as many images a "
        "second does it train on?",
        choices=(
            Choice(
                key="a", text="about as many", below=2.0, told="The arithmetic of an image stays, its calls do not."
            ),
            Choice(
                key="b", text="two to eight times as many", below=8.0, told="A step of 512 has no more calls in it."
            ),
            Choice(key="c", text="more than eight times as many"),
        ),
        because="A step of 8 images takes about as long as one of 64: the time goes to calling kernels, and there "
        "are as many of them whatever the batch. Only beyond that does a larger batch take longer.",
        hints=(
            "What does a step need to do that does not depend on the batch?",
            "Think of the number of kernels in a step: is it another one for 512 images?",
            "The line is net(images): a call for each layer, however many images are in it.",
        ),
    ),
    Question(
        key="idle",
        ask="Which sentence does the report of the small batch bear out?",
        choices=(
            Choice(key="a", text="The GPU waits for data.", told="the ledger has no line 'waiting for data'."),
            Choice(key="b", text="The GPU waits to be told: calling its kernels takes longer than they do.", told=""),
            Choice(
                key="c",
                text="The GPU is full, and needs a faster one beside it.",
                told="it is idle for most of a step.",
            ),
        ),
        right="b",
        because="For most of a step the GPU is idle while operators are dispatched and launched. Were data "
        "missing, 'waiting for data' would be a long line; were the GPU full, there would be next to no idle time.",
        hints=(
            "Read the ledger: what are the longest lines?",
            "Compare GPU busy with operator dispatch and launch calls.",
            "The line 'GPU idle' is far longer than 'matrix kernels'.",
        ),
    ),
    Question(
        key="fullest",
        ask="Compare a batch of 512 with the largest one that the GPU has room for, some 150 times as large. How many "
        "times as many images a second does the largest train on?",
        choices=(
            Choice(key="a", text="hardly more: at most a quarter", below=1.25),
            Choice(
                key="b",
                text="up to ten times as many",
                below=10.0,
                told="From 512 on the rate hardly rises: see the chart of 03.1.",
            ),
            Choice(key="c", text="more than ten times as many", told="The chart of 03.1 is flat from 512 on."),
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
        ask="The network is called once with 32 images, and once with 64. How many times as many operators does the "
        "device get the second time?",
        choices=(
            Choice(key="a", text="as many", below=1.2),
            Choice(key="b", text="half as many more", below=1.8, told="Not even one more: each works on all images."),
            Choice(key="c", text="twice as many", told="That is so in a loop, which calls the network once an image."),
        ),
        because="The number of operators belongs to the call, not to the image. A loop of 32 calls hands out 32 times "
        "as many, each with a 32nd of the work.",
        hints=(
            "How often is each layer called, for 32 images and for 64?",
            "Count the layers, not the images.",
            "The line net(images) calls each layer once, however many images there are.",
        ),
    ),
    Question(
        key="accumulate",
        ask="Gradients of 8 batches of 8 images are added up for each update. How many images a second does that "
        "train on, beside plain batches of 8?",
        choices=(
            Choice(key="a", text="about as many", below=2.0),
            Choice(
                key="b",
                text="two to five times as many",
                below=5.0,
                told="An update is a small part of a step, and nothing else is saved.",
            ),
            Choice(key="c", text="as many as with a batch of 64", told="The kernels are still those of a batch of 8."),
        ),
        because="Each kernel still gets 8 images, and an update takes eight times as many of them. All that is saved "
        "is the update itself: one in place of eight.",
        hints=(
            "What does one kernel get to work on?",
            "Compare the number of kernels in a step, and what one takes.",
            "The line net(images) sees 8 images, whatever the value of times is.",
        ),
    ),
    Question(
        key="norm",
        ask="The gradient of 8 parts, added up, was that of the whole batch of 64. The network now gets BatchNorm. How "
        "far apart are the two gradients, by the largest number in them?",
        choices=(
            Choice(key="a", text="not at all, but for rounding", below=1e-4, told="Each part has a mean of its own."),
            Choice(
                key="b",
                text="hardly: by at most 2 %",
                below=0.02,
                told="The mean of eight images is far from that of 64, in every layer anew.",
            ),
            Choice(key="c", text="clearly: it is another gradient"),
        ),
        because="BatchNorm takes mean and spread over the images of the part that it sees. Eight images give others "
        "than 64, so what is trained in parts is another network.",
        hints=(
            "Which layers look at more than one image at a time?",
            "How near does the mean of eight images come to that of 64?",
            "The line norm(after): with BatchNorm2d its output depends on the other images.",
        ),
    ),
    Question(
        key="ensemble",
        ask="Four small models give their answers one after the other, or all at once by vmap. Of the matrix products "
        "in turn, how many are left?",
        choices=(
            Choice(key="a", text="a quarter", below=0.3),
            Choice(key="b", text="half", below=0.7, told="All four models fit into one product."),
            Choice(key="c", text="all of them", told="The arithmetic stays; but one operator does it for all four."),
        ),
        because="The weights of the four are one tensor, so each layer is one batched product for all of them.",
        hints=(
            "How many products does one model need, and how many do four?",
            "With four models in turn there are four tensors of weights for a layer. How many are there together?",
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
            Choice(key="c", text="more than half"),
        ),
        because="The longest of 32 texts decides for all of them, and among 32 there is nearly always a long one.",
        hints=(
            "How long is the longest of 32 texts, beside a usual one?",
            "Compare tokens that mean something with all that are computed on.",
            "A batch costs its number of texts, times the length of its longest.",
        ),
    ),
    Question(
        key="one_more",
        ask="A batch of 256 rows makes 2 x 64 = 128 blocks, and 132 multiprocessors work them off in one wave. One row "
        "more: how many times as many waves?",
        choices=(
            Choice(key="a", text="as many", below=1.2, told="A row over the edge costs a whole row of tiles."),
            Choice(
                key="b", text="half as many more", below=1.8, told="A wave that is not full counts like a full one."
            ),
            Choice(key="c", text="twice as many"),
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
            key="budget",
            what="tokens in the largest batch",
            par=4096,
            hints=(
                "What would the batch cost, padding included, if this text came into it?",
                "Compare (texts in the batch, with this one) x (length of its longest) with the budget.",
                "This text is the longest: full is lengths[text] * (len(batch) + 1) > budget.",
            ),
        ),
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
