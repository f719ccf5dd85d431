"""Lesson 11: which architectures are fast, and how to search for architectures and hyperparameters."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_LAYERS = (
    Question(
        key="depthwise",
        prompt="A 3 x 3 convolution of 64 to 128 channels is replaced by a depthwise and a 1 x 1 convolution, which "
        "need 8.4 times fewer FLOPs. How much faster does a training step of this layer become on a CPU?",
        choices=(
            Choice(
                key="a",
                text="less than 1.5 times",
                below=1.5,
                feedback="Arithmetic does take most of the time of the full convolution on a CPU.",
            ),
            Choice(
                key="b",
                text="2 to 7 times",
                below=7,
                feedback="The bytes did not shrink as the arithmetic did.",
            ),
            Choice(key="c", text="about 8 times", feedback="Only if time followed the arithmetic alone."),
        ),
        expected="b",
        explanation="The depthwise convolution does 18 FLOPs for each number that it writes, the full one does 1,152. "
        "The new layers spend a large part of their time on moving numbers.",
        hints=(
            "What does each of both layers read and write?",
            "Compare FLOP per byte in the table.",
            "Two layers read and write more bytes than one.",
        ),
    ),
    Question(
        key="zeros",
        prompt="Nine of ten weights of two Linear layers are set to zero. How much faster is the forward pass?",
        choices=(
            Choice(
                key="a",
                text="not at all",
                below=1.25,
                feedback="A dense product multiplies all numbers, whatever their value.",
            ),
            Choice(key="b", text="about 2 times", below=4, feedback="That would need a kernel that skips zeros."),
            Choice(key="c", text="about 10 times", feedback="The matrices have the same shape as before."),
        ),
        expected="a",
        explanation="The matrices keep their shapes, so the same kernel does the same work. Only smaller matrices, or "
        "a format and a kernel for sparse matrices, save time.",
        hints=(
            "Which shapes does the matrix product see?",
            "Compare the times of the first two rows.",
            "The shapes are the same.",
        ),
    ),
    Question(
        key="distil",
        prompt="A student with 6 of 12 layers trains for one epoch, and every image has a label. It can start with "
        "layers of its teacher, or learn from the teacher's outputs. Compared with the first, how much accuracy does "
        "the second gain?",
        choices=(
            Choice(
                key="a",
                text="less than a quarter of it",
                below=0.25,
                feedback="The labels already say most of what these outputs say.",
            ),
            Choice(key="b", text="a quarter to three quarters", below=0.75, feedback="It is less here."),
            Choice(
                key="c",
                text="about as much, or more",
                feedback="Many descriptions of distillation give this impression; here it is not so.",
            ),
        ),
        expected="a",
        explanation="Each residual layer changes its input only a little, so every second layer is already a usable "
        "network, which one epoch repairs. The teacher's outputs add little where all labels are known.",
        hints=(
            "What does a student from random weights have to learn first?",
            "Compare the bars of the students from random weights with the others.",
            "Look at the student that has the teacher's layers and was not trained.",
        ),
    ),
)
_SEARCH = (
    Question(
        key="front",
        prompt="Twenty trials search kind, channels, blocks and learning rate. How many networks of the front are "
        "better than the one designed by hand in all three objectives, in less than 70 % of its time?",
        choices=(
            Choice(key="a", text="none", below=0.5, feedback="The design by hand is deeper than these images need."),
            Choice(key="b", text="one or more", feedback="Fewer blocks and a higher learning rate suffice."),
        ),
        expected="b",
        explanation="The design by hand has four blocks and a low learning rate. With a higher rate, one or two blocks "
        "reach the same error in a fraction of the time.",
        hints=(
            "Does the design by hand use its best learning rate?",
            "Look for points below and to the left of the cross.",
            "Points of the front with fewer errors and less time.",
        ),
    ),
    Question(
        key="halving",
        prompt="24 combinations would train 9 epochs each. ASHA trains all of them for 1 epoch, about a third for 3, "
        "and a third of these for 9. What share of the epochs does it need?",
        choices=(
            Choice(key="a", text="about 10 %", below=0.18, feedback="The first epoch of all takes 11 % already."),
            Choice(key="b", text="about 30 %", below=0.45, feedback="Each of the three rungs takes about a tenth."),
            Choice(key="c", text="about 60 %", feedback="Few combinations reach the later rungs."),
        ),
        expected="b",
        explanation="24 for the first rung, 2 more for each of 8, and 6 more for each of 4: 64 of 216. Without "
        "asynchrony, 2 would reach the last rung; ASHA promotes some early, before better ones have run. (The "
        "count can differ a little on another machine.)",
        hints=(
            "How many combinations reach each rung, and how many epochs do they add?",
            "24 x 1, about 8 x 2, and a few x 6.",
            "Divide by 24 x 9.",
        ),
    ),
    Question(
        key="optimizers",
        prompt="SGD, SGD with momentum, LARS, AdamW and Adafactor train the same network for 64 updates, each with the "
        "best of five learning rates. By how much does the accuracy of the best and the worst differ?",
        choices=(
            Choice(key="a", text="less than 8 points", below=0.08, feedback="At its own rate, each of them works."),
            Choice(key="b", text="8 to 40 points", below=0.4, feedback="That is nearer to the spread at one rate."),
            Choice(key="c", text="more than 40 points", feedback="That is the spread if all use the rate 0.001."),
        ),
        expected="a",
        explanation="The optimizers scale the gradient differently, so the same number means another step size in each "
        "of them. A comparison at one rate compares the rates.",
        hints=(
            "Does the rate 0.001 mean the same for SGD and for AdamW?",
            "Compare both columns of accuracy.",
            "The largest minus the smallest number of the second column.",
        ),
    ),
)
_COSTS = (
    Question(
        key="inverted",
        prompt="An inverted residual block (64 channels, widened to 384) computes less than a residual block of 64 "
        "channels. How many bytes does it save for the backward pass, compared with that?",
        choices=(
            Choice(key="a", text="less", below=1, feedback="Most of its activations have 384 channels."),
            Choice(key="b", text="1 to 3 times as many", below=3, feedback="Count the tensors with 384 channels."),
            Choice(key="c", text="more than 3 times as many", feedback="Its inner activations are six times as wide."),
        ),
        expected="c",
        explanation="Convolution, BatchNorm and activation save their inputs or results, and most of those have six "
        "times as many channels. MobileNetV2 was made for inference, which saves nothing.",
        hints=(
            "How many channels do the tensors inside each block have?",
            "Compare the last column of the table.",
            "Inside, 384 channels instead of 64.",
        ),
    ),
    Question(
        key="scaling",
        prompt="The images get 1.41 times the resolution, which doubles the FLOPs of a convolutional network. How does "
        "its number of weights change?",
        choices=(
            Choice(key="a", text="it stays the same", below=1.05, feedback="A kernel slides over more places."),
            Choice(key="b", text="x 1.41", below=1.7, feedback="The weights do not depend on the size of the image."),
            Choice(key="c", text="x 2", feedback="That is what more depth or width does."),
        ),
        expected="a",
        explanation="A convolution has the same weights for every place. Depth and width add weights; resolution adds "
        "only activations.",
        hints=(
            "What does the number of weights of a convolution depend on?",
            "Compare the column of weights.",
            "Channels and kernel size, not pixels.",
        ),
    ),
    Question(
        key="padding",
        prompt="A product computes the logits of 50,257 tokens in bfloat16 on an H100. The vocabulary is padded to "
        "50,304, a multiple of 64. What does that do to the time?",
        choices=(
            Choice(key="a", text="0.1 % slower: more columns", below=1, feedback="Another kernel becomes possible."),
            Choice(key="b", text="up to 2 times as fast", below=2, feedback="Odd widths cost more on this GPU."),
            Choice(
                key="c",
                text="more than 2 times as fast",
                feedback="With an odd width, the kernels of older GPUs run, which load two bytes at a time.",
            ),
        ),
        expected="c",
        explanation="Rows of 50,257 two-byte numbers do not start at multiples of 16 bytes, so the fast kernels "
        "cannot load them.",
        hints=(
            "How many bytes does a row have, and is that a multiple of 16?",
            "Compare the times of the first row of the table.",
            "50,257 is odd: the rows are aligned to 2 bytes only.",
        ),
    ),
    Question(
        key="frameworks",
        prompt="A CNN and an LSTM run in NumPy, eager PyTorch and torch.compile with the same weights. What is the "
        "same in all of them?",
        choices=(
            Choice(key="a", text="the loss", feedback="They compute the same formula in float32."),
            Choice(key="b", text="the order of their speeds", feedback="It depends on network, size and device."),
            Choice(key="c", text="the time of the first call", feedback="A compiler needs much more for it."),
        ),
        right="a",
        explanation="The loss differs only by rounding. Check that first: a comparison of speeds between different "
        "computations means nothing.",
        hints=(
            "What must be equal before a comparison of speeds makes sense?",
            "Read the column of losses.",
            "It is equal to five digits.",
        ),
    ),
)
_TRANSFER = Question(
    key="transfer",
    prompt="A team has pruned 80 % of the weights of an image model and replaced its 3 x 3 convolutions by depthwise "
    "separable ones. A training step on the GPU is as slow as before. Which first action makes sense?",
    choices=(
        Choice(key="a", text="prune 95 %", feedback="Zeros are multiplied like all other numbers."),
        Choice(
            key="b",
            text="compare the FLOPs again",
            feedback="They fell, as they were meant to; the time did not follow them.",
        ),
        Choice(
            key="c",
            text="measure time per layer, then shrink the dense layers that take the time: fewer channels or blocks",
            feedback="Smaller matrices are less work and fewer bytes.",
        ),
        Choice(key="d", text="use a larger learning rate", feedback="It may need fewer steps, but each stays as slow."),
    ),
    right="c",
    explanation="Neither change made matrices smaller or moved fewer bytes. Fewer channels, fewer blocks or a lower "
    "resolution do, and a search over them says what they cost in accuracy.",
    hints=(
        "Which of the two changes reduces what the kernels do?",
        "Think of bytes, not of FLOPs.",
        "Choose the answer that makes tensors smaller.",
    ),
)

LESSON = Lesson(
    id="11_architecture_and_search",
    title="Architecture and search",
    question="which design is fast, and how do you find it?",
    minutes=60,
    budget_s=120,
    level=2,
    without_gpu="networks are trained on the CPU; times of a GPU come from a virtual one",
    prerequisites=("03_parallel_work_and_batch",),
    outcomes=(
        "predict from FLOPs and bytes whether a cheaper layer will be faster, and measure it",
        "prune channels and distil a network, and compare with a small one that was trained as long",
        "search architectures with Optuna for error, time and memory, and choose from the Pareto front",
        "stop bad trainings early with successive halving",
    ),
    symptom="The model has fewer FLOPs or fewer weights than before, but a step is as slow.",
    signature="FLOP per byte fell, or the shapes of the matrices are unchanged.",
    fix="Smaller tensors: fewer channels, blocks or pixels; a student with half of the layers. A search with time and "
    "memory among its objectives, and early stopping.",
    limits="The network is launch-bound: then fewer and larger operators help, smaller ones do not.",
    experiments=(
        LessonExperiment(number="11.1", description="a convolution, and a depthwise separable one"),
        LessonExperiment(number="11.2", description="zeros in weights, and removed channels"),
        LessonExperiment(number="11.3", description="12 layers distilled into 6"),
        LessonExperiment(number="11.4", description="a design by hand, and a search with three objectives"),
        LessonExperiment(number="11.5", description="a grid of hyperparameters, and ASHA"),
        LessonExperiment(number="11.6", description="a residual block, and an inverted one"),
        LessonExperiment(number="11.7", description="depth, width, resolution, and compound scaling"),
        LessonExperiment(number="11.8", description="odd widths, and widths padded to 64"),
        LessonExperiment(number="11.9", description="five optimizers at one learning rate, and at their best ones"),
        LessonExperiment(number="11.10", description="the same CNN and LSTM in NumPy, PyTorch, compiled and JAX"),
    ),
    questions=(*_LAYERS, *_SEARCH, *_COSTS, _TRANSFER),
    targets=(
        Target(
            key="limits",
            unit="conditions met: 600 us, 160 MiB, the fewest errors within both",
            value=3,
            lower_is_better=False,
            hints=(
                "Which trials of the front are within both limits?",
                "trial.values has error, time and memory, in this order.",
                "min((t for t in study.best_trials if t.values[1] <= 600 and t.values[2] <= 160), "
                "key=lambda t: t.values[0])",
            ),
        ),
        Target(
            key="epochs",
            unit="% of the grid's epochs, within 2 points of its best accuracy",
            value=30,
            hints=(
                "How many of the standings may continue?",
                "A third of them; they are sorted, best first.",
                "standings[: len(standings) // 3]",
            ),
        ),
    ),
)
