"""Lesson 03: how much parallel work a GPU needs, how to provide it, and where more of it stops helping."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_BATCH = (
    Question(
        key="many",
        prompt="On the GPU, the batch size grows from 8 images to 512, by a factor of 64. By what factor does the "
        "number "
        "of images per second grow?",
        choices=(
            Choice(
                key="a",
                text="less than 2",
                below=2.0,
                feedback="The arithmetic per image stays the same, but the launches per image become fewer.",
            ),
            Choice(
                key="b",
                text="2 to 8",
                below=8.0,
                feedback="A step with 512 images launches no more kernels than one with 8.",
            ),
            Choice(key="c", text="more than 8"),
        ),
        expected="c",
        explanation="A step with 8 images takes about as long as a step with 64: the host spends the time launching "
        "kernels, and their number does not depend on the batch size. Only beyond that does a larger batch take "
        "longer.",
        hints=(
            "Which part of a step does not depend on the batch size?",
            "Think of the number of kernels per step: does it change with 512 images?",
            "net(images) calls each layer once, however many images there are.",
        ),
    ),
    Question(
        key="idle",
        prompt="Which statement does the report for the small batch support?",
        choices=(
            Choice(key="a", text="The GPU waits for data.", feedback="the ledger has no line 'waiting for data'."),
            Choice(
                key="b", text="The GPU waits for the host: a kernel takes longer to launch than to run.", feedback=""
            ),
            Choice(
                key="c",
                text="The GPU is full; a second GPU would help.",
                feedback="it is idle for most of the step.",
            ),
        ),
        right="b",
        explanation="For most of a step, the GPU is idle while the host dispatches operators and launches kernels. If "
        "data loading were slow, 'waiting for data' would be a long line; if the GPU were full, there would be almost "
        "no idle time.",
        hints=(
            "Read the ledger: which lines are the longest?",
            "Compare the time the GPU is busy with operator dispatch and launch calls.",
            "'GPU idle' is far longer than 'matrix kernels'.",
        ),
    ),
    Question(
        key="fullest",
        prompt="The largest batch that fits into the GPU's memory is about 40 times as large as 2048. By what factor "
        "does "
        "it raise the number of images per second, compared with a batch of 2048?",
        choices=(
            Choice(key="a", text="hardly at all: 1.25 at most", below=1.25),
            Choice(
                key="b",
                text="up to 10",
                below=10.0,
                feedback="From 2048 on, the rate hardly rises: see the chart of 03.1.",
            ),
            Choice(key="c", text="more than 10", feedback="The chart of 03.1 is flat from 2048 on."),
        ),
        expected="a",
        explanation="Beyond the knee, the GPU is already fully used; a larger batch only needs more memory.",
        hints=(
            "Look at the chart of 03.1 again.",
            "Compare the rates of its last two batch sizes.",
            "From 2048 to 8192 images, the rate hardly changed.",
        ),
    ),
)

_WORK = (
    Question(
        key="loop",
        prompt="You call the network once with 32 images, and once with 64. By what factor does the number of "
        "operators "
        "grow?",
        choices=(
            Choice(key="a", text="it does not grow", below=1.2),
            Choice(
                key="b",
                text="1.5",
                below=1.8,
                feedback="There is not one operator more: each one processes all images.",
            ),
            Choice(key="c", text="2", feedback="That is true for a loop that calls the network once per image."),
        ),
        expected="a",
        explanation="The number of operators depends on the number of calls, not on the number of images. A loop with "
        "32 "
        "calls runs 32 times as many operators, each with 1/32 of the work.",
        hints=(
            "How often is each layer called, for 32 images and for 64?",
            "Count the layers, not the images.",
            "net(images) calls each layer once, however many images there are.",
        ),
    ),
    Question(
        key="accumulate",
        prompt="The loop accumulates the gradients of 8 batches of 8 images for each update. By what factor does the "
        "number of images per second grow, compared with an update after every batch of 8?",
        choices=(
            Choice(key="a", text="less than 2", below=2.0),
            Choice(
                key="b",
                text="2 to 5",
                below=5.0,
                feedback="The update is a small part of a step, and accumulation saves nothing else.",
            ),
            Choice(
                key="c",
                text="as much as with a batch of 64",
                feedback="Each kernel still processes a batch of 8.",
            ),
        ),
        expected="a",
        explanation="Each kernel still processes 8 images, and an update needs nine times as many kernels. "
        "Accumulation "
        "saves only optimizer updates: one instead of eight.",
        hints=(
            "How many images does one kernel process?",
            "Compare the number of kernels per step, and the time that one kernel takes.",
            "net(images) receives 8 images, whatever the value of micro_batches.",
        ),
    ),
    Question(
        key="norm",
        prompt="The accumulated gradient of 8 parts was equal to the gradient of the whole batch of 64. Now the "
        "network "
        "gets BatchNorm layers. How large is the difference between the two gradients, relative to the largest value?",
        choices=(
            Choice(
                key="a",
                text="zero, except for rounding",
                below=1e-4,
                feedback="BatchNorm computes the mean of each part separately.",
            ),
            Choice(
                key="b",
                text="small: at most 2 %",
                below=0.02,
                feedback="The mean of 8 images differs a lot from that of 64, and it does so in every layer.",
            ),
            Choice(key="c", text="large: it is a different gradient"),
        ),
        expected="c",
        explanation="BatchNorm computes mean and variance over the images in its input. For 8 images they differ from "
        "those for 64, so training in parts trains a different function.",
        hints=(
            "Which layers use more than one image at a time?",
            "How close is the mean of 8 images to the mean of 64?",
            "norm(out_channels): with BatchNorm2d, the output for one image depends on the other images.",
        ),
    ),
    Question(
        key="ensemble",
        prompt="Four small models run one after the other, or together with vmap. What share of the matrix products "
        "remains when they run together?",
        choices=(
            Choice(key="a", text="a quarter", below=0.3),
            Choice(key="b", text="half", below=0.7, feedback="All four models fit into one batched product."),
            Choice(
                key="c",
                text="all of them",
                feedback="The arithmetic stays the same, but one operator does it for all four models.",
            ),
        ),
        expected="a",
        explanation="The weights of the four models are stacked in one tensor, so each layer needs one batched product "
        "for "
        "all of them.",
        hints=(
            "How many products does one model need, and how many do four models need?",
            "Run one by one, each model has its own weight tensor per layer. How many tensors are there after "
            "stacking?",
            "stack_module_state(models) makes one tensor from four.",
        ),
    ),
)

_SHAPES = (
    Question(
        key="padding",
        prompt="Texts in random batches of 32 are padded to the longest text of the batch. Half of the texts are "
        "shorter "
        "than 48 tokens; a few have 512. How much of the model's input is padding?",
        choices=(
            Choice(
                key="a",
                text="less than a fifth",
                below=0.2,
                feedback="A single long text is enough to lengthen 32 rows.",
            ),
            Choice(key="b", text="a fifth to a half", below=0.5, feedback="Almost every batch contains a long text."),
            Choice(key="c", text="more than half"),
        ),
        expected="c",
        explanation="The longest of 32 texts sets the length for all of them, and almost every 32 texts include a long "
        "one.",
        hints=(
            "How long is the longest of 32 texts, compared with a typical one?",
            "Compare the number of real tokens with the number of tokens that the model processes.",
            "A batch costs its number of texts times the length of its longest text.",
        ),
    ),
    Question(
        key="one_more",
        prompt="A batch of 256 rows needs 2 x 64 = 128 blocks, which 132 multiprocessors process in one wave. By what "
        "factor does one more row raise the number of waves?",
        choices=(
            Choice(
                key="a", text="it does not raise it", below=1.2, feedback="One extra row needs a whole row of tiles."
            ),
            Choice(key="b", text="1.5", below=1.8, feedback="A partial wave takes as long as a full one."),
            Choice(key="c", text="2"),
        ),
        expected="c",
        explanation="257 rows need three rows of tiles, which are 192 blocks: 132 in the first wave, and 60 in a "
        "second "
        "wave that takes just as long. With 8192 rows there are 32 waves, and the last one has free slots.",
        hints=(
            "How many rows of tiles do 257 rows need?",
            "Compare the number of blocks with the number of multiprocessors.",
            "ceil(blocks / multiprocessors) rounds up.",
        ),
    ),
    Question(
        key="transfer",
        prompt="How does a batch of twice the size change the number of texts per second?",
        choices=(
            Choice(
                key="a",
                text="It almost doubles: half of the memory is free.",
                feedback="Free memory does not mean that the GPU has free time.",
            ),
            Choice(key="b", text="It hardly changes: the GPU is already fully used.", feedback=""),
            Choice(
                key="c",
                text="It does not change until data loading becomes faster.",
                feedback="The GPU is idle for only 3 % of a step.",
            ),
        ),
        right="b",
        explanation="The kernels are long and have thousands of blocks, and there is almost no idle time: this loop is "
        "beyond its knee. Below the knee, kernels would be short, with gaps between them. Only cheaper work could "
        "help: see notebook 08.",
        hints=(
            "For how much of the time is the GPU idle?",
            "Compare 4,000 blocks with 132 multiprocessors, and 900 us with the few microseconds of a launch.",
            "'busy for 97 % of each step' leaves 3 % to gain.",
        ),
    ),
)

LESSON = Lesson(
    id="03_parallel_work_and_batch",
    title="Parallel work and batch size",
    question="how much work should the GPU get at once?",
    minutes=45,
    level=2,
    without_gpu="what needs a GPU runs on a virtual H100; the counts and the CPU measurements are real",
    prerequisites=("00_start_here",),
    outcomes=(
        "find the knee of a batch-size sweep, and say what limits the loop on either side of it",
        "replace loops over samples, time steps and models with one operator, and count what that saves",
        "say what gradient accumulation saves, what it does not save, and which layer changes its result",
        "reduce padding to less than 5 % with token-budget batches",
        "find the largest batch in a few tries, and say why it is rarely the best one",
    ),
    symptom="The GPU is idle for most of a step, and a step with eight times the batch size takes about as long.",
    signature="The number of kernels per step does not change with the batch size, and each kernel takes microseconds.",
    fix="More work per launch: a batch size at the knee, one operator instead of a loop, token-budget batches, stacked "
    "models.",
    limits="The GPU is busy with long kernels: beyond the knee, a larger batch needs more memory and gains no speed. "
    "Gradient accumulation changes the gradient, not the size of the kernels.",
    experiments=(
        LessonExperiment(number="03.1", description="batch sizes from 8 up to where the rate no longer rises"),
        LessonExperiment(number="03.2", description="a loop over samples or time steps, and one operator"),
        LessonExperiment(number="03.3", description="a batch of 64, 8 accumulated batches of 8, and a batch of 8"),
        LessonExperiment(number="03.4", description="a batch and its micro-batches, without and with BatchNorm"),
        LessonExperiment(number="03.5", description="small, medium and large batches, in a table from your own sweep"),
        LessonExperiment(
            number="03.6", description="padding in random, bucketed and token-budget batches; a growing batch size"
        ),
        LessonExperiment(number="03.7", description="sizes of 257 and 8193, and sizes that fill whole tiles and waves"),
        LessonExperiment(number="03.8", description="the largest batch, by doubling and by extrapolation"),
        LessonExperiment(number="03.9", description="four small models one by one, in streams, and stacked"),
    ),
    questions=(*_BATCH, *_WORK, *_SHAPES),
    targets=(
        Target(
            key="budget",
            unit="tokens in the largest batch",
            value=4096,
            hints=(
                "How many tokens would the batch have, padding included, if you added this text?",
                "Compare (number of texts, including this one) x (length of the longest text) with the budget.",
                "This text is the longest: full is lengths[text] * (len(batch) + 1) > budget.",
            ),
        ),
        Target(
            key="tries",
            unit="steps tried to find the largest batch",
            value=6,
            hints=(
                "A successful try tells you more than that the batch fits: it returns the bytes in use.",
                "Compare the bytes of two small batches: how much memory does one image need?",
                "A line through (64, low) and (128, high) reaches room.capacity_bytes at the largest batch.",
            ),
        ),
    ),
)
