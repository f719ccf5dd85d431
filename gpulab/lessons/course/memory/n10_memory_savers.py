"""Lesson 10: what each way to save memory saves, and what it costs."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_ACTIVATIONS = (
    Question(
        key="segments",
        prompt="64 equal layers are split into segments. Only the input of each segment is stored, and the backward "
        "pass computes the rest again, one segment at a time. How many segments need the least memory?",
        choices=(
            Choice(
                key="a",
                text="2 to 4",
                below=5,
                feedback="Then half or a quarter of all activations exist at once while a segment is computed again.",
            ),
            Choice(key="b", text="8 to 32", below=33, feedback="Few inputs are stored, and segments are short."),
            Choice(
                key="c",
                text="64: a segment per layer",
                feedback="Then the input of every layer is stored, which is half of what no checkpointing stores.",
            ),
        ),
        expected="b",
        explanation="With n segments, memory holds n inputs and the activations of one segment, 64 / n layers. The sum "
        "n * 0.5 MiB + 64 / n * 1 MiB is smallest for 8 to 16 segments, near the square root of the number of layers. "
        "The gradients of the weights, which grow while the activations shrink, move the minimum to more segments.",
        hints=(
            "What is in memory while one segment is computed again?",
            "Add the inputs of n segments and the activations of 64 / n layers.",
            "n * 0.5 MiB + 64 / n * 1 MiB: compare 4, 16 and 64.",
        ),
    ),
    Question(
        key="selective",
        prompt="A block has a LayerNorm, a wide Linear, a GELU and a narrow Linear. You store the results of the two "
        "matrix products, and compute everything else again. How much more arithmetic does the FLOP counter show?",
        choices=(
            Choice(key="a", text="none", below=0.001, feedback="It counts products, and none is computed again."),
            Choice(
                key="b",
                text="a sixth",
                below=0.25,
                feedback="That is what complete checkpointing costs here: it stops before the narrow Linear.",
            ),
            Choice(key="c", text="a third", feedback="That would be the whole forward pass again."),
        ),
        expected="a",
        explanation="A FLOP counter counts matrix products, which take most of the time of large models. LayerNorm and "
        "GELU are cheap to compute again, and their results are as large as those of products.",
        hints=(
            "Which operators does a FLOP counter count?",
            "The policy stores the results of addmm and mm.",
            "No product runs a second time.",
        ),
    ),
    Question(
        key="offload",
        prompt="Activations of 64 MiB are moved to the host's memory in the forward pass and fetched back in the "
        "backward pass. How many bytes cross the link in a step?",
        choices=(
            Choice(key="a", text="64 MiB", feedback="The backward pass needs them back on the GPU."),
            Choice(key="b", text="128 MiB", feedback="Once to the host, once back."),
            Choice(key="c", text="192 MiB", feedback="The gradients of activations stay on the GPU."),
        ),
        right="b",
        explanation="Each activation crosses the link twice. At 25 GB/s in each direction (PCIe 4), 64 MiB take 2.7 ms "
        "there and 2.7 ms back; whether the copies overlap with kernels decides whether the step becomes slower.",
        hints=(
            "Follow one tensor from the forward pass to its use in the backward pass.",
            "Count copies to the host and copies to the device.",
            "One of each per tensor: twice its bytes.",
        ),
    ),
    Question(
        key="compiled",
        prompt="`(gelu(h) * sigmoid(h) * tanh(h) + 1).square().mean()` for h = x @ w. Eager PyTorch saves seven "
        "tensors of the size of h, x among them, for the backward pass. What does torch.compile save?",
        choices=(
            Choice(
                key="a", text="the same seven", feedback="It sees forward and backward together, before either runs."
            ),
            Choice(
                key="b",
                text="one or two, and computes the rest again",
                feedback="Elementwise functions of h are cheaper to compute again than to load.",
            ),
            Choice(key="c", text="none", feedback="The backward pass needs at least h, or x and w."),
        ),
        right="b",
        explanation="The partitioner of torch.compile looks for the smallest set of tensors from which the backward "
        "pass can be computed by cheap operators: a minimum cut of the graph.",
        hints=(
            "From which single tensor can gelu(h), sigmoid(h) and tanh(h) be computed?",
            "Compare the saved bytes with those of h.",
            "h is enough, and x for the gradient of w.",
        ),
    ),
    Question(
        key="branch",
        prompt="A model has an expensive and a cheap branch. A colleague computes both and selects one with "
        "`torch.where`. What is saved for the backward pass?",
        choices=(
            Choice(key="a", text="the selected branch only", feedback="Both ran, and autograd records what runs."),
            Choice(key="b", text="both branches", feedback="A mask selects values, not computations."),
            Choice(
                key="c", text="neither: where() stops gradients", feedback="where() passes gradients to both sides."
            ),
        ),
        right="b",
        explanation="In eager mode, autograd records the operators that run. An `if` in Python runs one "
        "branch, and so only that branch is saved.",
        hints=(
            "Which operators run?",
            "Compare the two numbers that the cell prints.",
            "An if statement runs only one of them.",
        ),
    ),
)
_STATES = (
    Question(
        key="eight",
        prompt="Adam's two moments are stored as 8-bit integers, with one float32 scale for every 64 numbers. How does "
        "the loss after training change?",
        choices=(
            Choice(
                key="a",
                text="by less than 5 %",
                below=0.05,
                feedback="The moments are averages; rounding them hardly matters.",
            ),
            Choice(key="b", text="by 5 to 50 %", below=0.5, feedback="With one scale for everything, perhaps."),
            Choice(key="c", text="training diverges", feedback="Only if small second moments are rounded to zero."),
        ),
        expected="a",
        explanation="A block of 64 numbers has a range that 255 steps cover well. The second moment spans many orders "
        "of magnitude, which is why its square root is stored. Libraries use 8-bit types with more resolution near "
        "zero for the same reason.",
        hints=(
            "How large is the rounding error, compared with the largest number of a block?",
            "Compare the loss with that of 32-bit moments.",
            "At most 1/254 of the largest number of the block.",
        ),
    ),
    Question(
        key="rows",
        prompt="The rows of a weight matrix differ a hundredfold in size. You store it in 8 bits: with one scale for "
        "the matrix, or with a scale for each row. How large is the error of the worst row, relative to that row?",
        choices=(
            Choice(key="a", text="about 1 % in both cases", feedback="One scale must fit the largest row."),
            Choice(
                key="b",
                text="1 % with a scale per row, most of the row without",
                feedback="The small rows lose almost everything.",
            ),
            Choice(key="c", text="large in both cases", feedback="A row that uses all 255 steps loses little."),
        ),
        right="b",
        explanation="With one scale, a step is 1/127 of the largest weight of the matrix. In a row that is a hundred "
        "times smaller, most weights round to zero.",
        hints=(
            "What is the step between two 8-bit values in each case?",
            "Compare the step with the weights of the smallest row.",
            "The step is 1/127 of the largest weight; in the smallest row, the largest weight is about 1/100 of it.",
        ),
    ),
    Question(
        key="ranks",
        prompt="Two ranks train a model with Adam in float32. With FSDP, how many bytes per parameter does each rank "
        "store after a step, gradients included?",
        choices=(
            Choice(key="a", text="16", feedback="That is DistributedDataParallel: every rank stores everything."),
            Choice(key="b", text="12", feedback="That is ZeRO-1: only the optimizer's state is divided."),
            Choice(key="c", text="8", feedback="Half of weights, gradients and states."),
        ),
        right="c",
        explanation="Weights and gradients have 4 bytes each, Adam's state 8. FSDP divides all of them by the number "
        "of ranks, and gathers the weights of a layer only while it runs.",
        hints=(
            "List the bytes per parameter of one GPU.",
            "Which of the three parts does each strategy divide?",
            "(4 + 4 + 8) / 2",
        ),
    ),
    Question(
        key="adapters",
        prompt="LoRA freezes the weights and trains two thin matrices beside each of them. By how much do the "
        "activations that are saved for the backward pass shrink?",
        choices=(
            Choice(
                key="a",
                text="to about 1 %, as the trained parameters do",
                below=0.2,
                feedback="Parameters and activations are different parts.",
            ),
            Choice(
                key="b",
                text="to about half",
                below=0.85,
                feedback="Each layer still passes gradients on to the layer before.",
            ),
            Choice(key="c", text="hardly", feedback="The thin matrices need the inputs of each layer, too."),
        ),
        expected="c",
        explanation="With LoRA, frozen weights need no gradients and no optimizer states. The gradient of a thin "
        "matrix needs the input of its layer, so this input is stored as before. LoRA helps if gradients and optimizer "
        "states fill the memory, not if activations do.",
        hints=(
            "What does the gradient of x @ A need?",
            "Compare the bytes saved for backward.",
            "It needs x, exactly what the frozen layer would have saved.",
        ),
    ),
)
_TRANSFER = (
    Question(
        key="transfer",
        prompt="A model with 13 billion parameters is to be trained on one GPU with 80 GB, with Adam, in float32, on "
        "one sequence at a time. Its first step fails. Which of these can make it fit?",
        choices=(
            Choice(key="a", text="checkpointing all layers", feedback="Weights and gradients alone are 104 GB."),
            Choice(
                key="b",
                text="LoRA with the frozen weights in bfloat16",
                feedback="26 GB of weights, and almost no gradients and states.",
            ),
            Choice(
                key="c",
                text="8-bit Adam",
                feedback="Weights and gradients are 104 GB, and states of 26 GB come on top.",
            ),
            Choice(key="d", text="a smaller batch", feedback="It is one sequence already."),
        ),
        right="b",
        explanation="16 bytes per parameter are 208 GB. Only what shrinks weights, gradients and states together "
        "helps: LoRA on bfloat16 weights needs about 2 bytes per parameter, 26 GB. With 8-bit Adam, 10 bytes per "
        "parameter remain: 130 GB.",
        hints=(
            "Multiply the bytes per parameter by 13 billion.",
            "Which parts does each choice shrink?",
            "208 GB now, without activations.",
        ),
    ),
)

LESSON = Lesson(
    id="10_memory_savers",
    title="Memory savers",
    question="what does each way to save memory save, and what does it cost?",
    minutes=55,
    budget_s=90,
    level=2,
    without_gpu="bytes and arithmetic are counted; offloading runs on a virtual GPU",
    prerequisites=("09_memory_anatomy_and_oom",),
    outcomes=(
        "choose the number of checkpointed segments, and say what recomputing costs",
        "store Adam's state and weights in 8 bits, and check what it does to the result",
        "calculate the bytes per rank of DDP, ZeRO-1 and FSDP, and measure them on two ranks",
        "fit a training step into a budget at the lowest cost",
    ),
    symptom="The step does not fit, and a smaller batch is not an option, or does not help.",
    signature="The peak by role: activations, optimizer state, gradients or weights. Each saver shrinks one of them.",
    fix="Activations: checkpointing, selectively if it suffices. States: 8 bits, or sharding. Weights: LoRA on a "
    "frozen bfloat16 model, or FSDP.",
    limits="It shrinks one part, and another one fills the memory.",
    experiments=(
        LessonExperiment(number="10.1", description="checkpointing in 2 to 64 segments"),
        LessonExperiment(number="10.2", description="recompute what is cheap: selective checkpointing"),
        LessonExperiment(number="10.3", description="Adam with 8-bit state"),
        LessonExperiment(number="10.4", description="DDP, ZeRO-1 and FSDP on two ranks"),
        LessonExperiment(number="10.5", description="LoRA: parameters, states and activations"),
        LessonExperiment(number="10.6", description="a budget of 160 MiB"),
        LessonExperiment(number="10.7", description="activations offloaded to the host"),
        LessonExperiment(number="10.8", description="int8 weights with a scale per matrix and per row"),
        LessonExperiment(number="10.9", description="a model on several devices, and the bubble of its pipeline"),
        LessonExperiment(number="10.10", description="what torch.compile saves for the backward pass"),
        LessonExperiment(number="10.11", description="a branch by mask, and a branch by if"),
    ),
    questions=(*_ACTIVATIONS, *_STATES, *_TRANSFER),
    targets=(
        Target(
            key="budget",
            unit="% of the arithmetic without savers, within 160 MiB",
            value=100,
            hints=(
                "Which savers cost no arithmetic?",
                "Activations and optimizer state are the two large parts; shrink both.",
                "selective, halves and one of the two for the optimizer.",
            ),
        ),
    ),
)
