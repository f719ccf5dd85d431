"""Lesson 09: what is in a GPU's memory, when it peaks, and the cheapest fix for an out-of-memory error."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_ANATOMY = (
    Question(
        key="guess",
        prompt="Adam, float32, weights of 512 MiB, 4,096 samples, 64 MiB for the output of one layer: how much memory "
        "is "
        "allocated at the peak?",
        choices=(
            Choice(key="a", text="less than 1 GiB", below=1.0, feedback="The weights are not the only part."),
            Choice(
                key="b", text="1 to 2 GiB", below=2.0, feedback="Adam's state alone is twice as large as the weights."
            ),
            Choice(key="c", text="2 to 4 GiB", below=4.0),
            Choice(key="d", text="more than 4 GiB", feedback="Not everything is in memory at the same time."),
        ),
        expected="c",
        explanation="Weights and Adam's state are always there, 1.5 GiB. Activations come on top, 17 tensors of 64 "
        "MiB, "
        "and one more for the gradient that backward passes on. Gradients appear as activations are freed.",
        hints=(
            "List what a step stores, and until when.",
            "Compare what is stored per weight with what is stored per sample.",
            "Three numbers per weight are always there; the forward pass saves two tensors per layer.",
        ),
    ),
    Question(
        key="amp",
        prompt="With autocast to 16 bits and this batch of 4,096: what share of the peak of 2.6 GiB remains?",
        choices=(
            Choice(key="a", text="about half", below=0.6, feedback="Only some of the activations shrink to half."),
            Choice(key="b", text="two thirds to 90 %", below=0.9, feedback="Which part of the memory is largest here?"),
            Choice(key="c", text="90 % or more", feedback="Most of this memory is not activations."),
        ),
        expected="c",
        explanation="Weights, gradients and Adam's state stay in float32. Activations shrink, but bfloat16 copies of "
        "the "
        "weights are added. The total falls only by as much as activations contribute to it.",
        hints=(
            "Which of the four parts can autocast reduce?",
            "Compare activations with weights and optimizer state.",
            "Parameters and optimizer state, 1.5 of 2.6 GiB, do not change.",
        ),
    ),
)

_OOM = (
    Question(
        key="later",
        prompt="What makes the memory grow from step to step in this loop?",
        choices=(
            Choice(key="a", text="losses: it gets one more loss per step", feedback="These losses are detached."),
            Choice(key="b", text="history: it gets one more loss per step"),
            Choice(key="c", text="tokens: a new tensor per step", feedback="The new tensor replaces the old one."),
            Choice(key="d", text="the optimizer", feedback="Its state is complete after the first step."),
        ),
        right="b",
        explanation="backward() is never called on the losses in history. So each of them keeps its autograd graph, "
        "and "
        "the graph keeps the activations.",
        hints=(
            "What does the loop still need from a step when the next one has started?",
            "Which list grows: to which one does the loop append?",
            "losses holds sums of loss.detach(); the validation loss still has its graph.",
        ),
    ),
)

_ALLOCATOR = (
    Question(
        key="pieces",
        prompt="240 features of 72 MiB (17 GiB in total) on a GPU with 22 GiB; computing each one needs 128 MiB for a "
        "moment. How does the program end?",
        choices=(
            Choice(key="a", text="it completes: 5 GiB remain free", feedback="They are free, but not contiguous."),
            Choice(
                key="b",
                text="it runs out near the end, when almost nothing is free",
                feedback="Much memory is free, but fragmented.",
            ),
            Choice(key="c", text="it runs out after about 70 % of the features, with many GiB free"),
        ),
        right="c",
        explanation="A tensor needs one contiguous block. Here every free block has 56 MiB, between two blocks in use, "
        "and the driver has less than 128 MiB left.",
        hints=(
            "Where does the allocator put the next feature, once the 128 MiB before it are free again?",
            "The size of the largest free block matters, not the total.",
            "Of a free block of 128 MiB, 72 are used for a feature: 56 remain, too few for anything that follows.",
        ),
    ),
    Question(
        key="pool",
        prompt="A step creates two new tensors of 64 MiB and frees them. After warm-up, how often per step does "
        "PyTorch "
        "call cudaMalloc?",
        choices=(
            Choice(key="a", text="never", below=0.5),
            Choice(key="b", text="once or twice", below=2.5, feedback="PyTorch caches freed memory and reuses it."),
            Choice(key="c", text="four times or more", feedback="PyTorch caches freed memory and reuses it."),
        ),
        expected="a",
        explanation="PyTorch's caching allocator already is a memory pool. It calls the driver only if no free block "
        "fits.",
        hints=(
            "What happens to the memory of a tensor that is freed?",
            "num_device_alloc in torch.cuda.memory_stats() counts the calls to the driver.",
            "torch.cuda.empty_cache() discards the pool.",
        ),
    ),
    Question(
        key="inplace",
        prompt="Four layers of Linear and ReLU. How much less memory do they save for backward with "
        "nn.ReLU(inplace=True)?",
        choices=(
            Choice(key="a", text="no less", below=0.05),
            Choice(
                key="b", text="about a fifth less", below=0.35, feedback="Count the tensors saved between two layers."
            ),
            Choice(key="c", text="about half", feedback="Count the tensors saved between two layers."),
        ),
        expected="a",
        explanation="In both cases one tensor is saved between two layers: the output of ReLU, which is also the input "
        "of "
        "the next Linear.",
        hints=(
            "What do Linear and ReLU save for backward?",
            "Count the bytes saved for backward, not the bytes allocated.",
            "ReLU saves its output, and the next Linear saves its input: this is the same tensor.",
        ),
    ),
)

_SAVED = (
    Question(
        key="lists",
        prompt="After backward(), you append the training loss itself to a list, without detach(). By how much does "
        "the "
        "memory grow per step?",
        choices=(
            Choice(key="a", text="not at all", below=1, feedback="The number itself needs memory."),
            Choice(key="b", text="by one number: 4 bytes here, 512 on a GPU (its smallest allocation)", below=10_000),
            Choice(key="c", text="by all activations of the step", feedback="backward() has freed them."),
        ),
        expected="b",
        explanation="A graph keeps its activations until backward() has used them. After that, the number "
        "remains on the GPU, and the graph's nodes, small objects without tensors, in the memory of the host. A "
        "validation loss, on which nobody calls backward(), keeps them for as long as the list exists.",
        hints=(
            "What frees the activations?",
            "Look at the growth of allocated memory per step, in bytes.",
            "The loop called backward() on this loss, but not on the losses in history in the previous program.",
        ),
    ),
    Question(
        key="eval",
        prompt="You call model.eval() before validation. How much of what training saves for backward is still saved?",
        choices=(
            Choice(
                key="a", text="nothing", below=0.05, feedback="eval() only affects dropout and batch normalisation."
            ),
            Choice(key="b", text="half", below=0.95, feedback="eval() only affects dropout and batch normalisation."),
            Choice(key="c", text="all of it"),
        ),
        expected="c",
        explanation="eval() changes the behaviour of dropout and batch normalisation. Only no_grad() and "
        "inference_mode() "
        "tell PyTorch that there will be no backward().",
        hints=(
            "Could anyone still call backward() after eval()?",
            "Compare the bytes saved for backward, with eval() and without.",
            "with torch.inference_mode(): around the validation.",
        ),
    ),
)

_READ = (
    Question(
        key="three",
        prompt="Which of the three numbers does torch.cuda.empty_cache() change?",
        choices=(
            Choice(key="a", text="all three fall", feedback="No tensor is freed."),
            Choice(key="b", text="used and reserved fall, allocated does not change"),
            Choice(
                key="c", text="reserved falls, used does not change", feedback="The memory is returned to the driver."
            ),
        ),
        right="b",
        explanation="PyTorch caches the memory of freed tensors, and nvidia-smi counts it as used. empty_cache() "
        "returns "
        "it to the driver. The next step has to allocate it again.",
        hints=(
            "Who holds the memory that no tensor uses any more?",
            "torch.cuda.memory_reserved() minus torch.cuda.memory_allocated().",
            "empty_cache() only affects memory that is reserved and not allocated.",
        ),
    ),
    Question(
        key="stage",
        prompt="With 256 samples instead of 4,096: in which phase of the step is the peak now?",
        choices=(
            Choice(key="a", text="forward", feedback="With a small batch, activations are small."),
            Choice(key="b", text="backward", feedback="With a small batch, activations are small."),
            Choice(key="c", text="the optimizer step"),
        ),
        right="c",
        explanation="In backward, each layer now frees 8 MiB of activations and allocates 64 MiB of gradients, so the "
        "memory rises. In the optimizer step all gradients are there, and Adam's default implementation makes copies "
        "as large as the weights.",
        hints=(
            "In which phase are all gradients in memory?",
            "Compare what a layer frees in backward with the gradient that it allocates.",
            "2 x 4 MiB freed, 64 MiB allocated.",
        ),
    ),
    Question(
        key="transfer",
        prompt="Another job fails after some hours, each time in a different step. At the start of every step, 6 GiB "
        "are "
        "allocated. 21 of 22 GiB are reserved. Its texts differ in length. What is the cause, and what do you try "
        "first?",
        choices=(
            Choice(
                key="a",
                text="a leak: detach what is collected in lists",
                feedback="A leak would raise allocated memory.",
            ),
            Choice(
                key="b",
                text="fragmentation: round lengths up to a few sizes, or use expandable segments; also check the "
                "longest text",
            ),
            Choice(key="c", text="too many weights: use another optimizer", feedback="Then the first step would fail."),
            Choice(key="d", text="another process: find it", feedback="Reserved memory belongs to this process."),
        ),
        right="b",
        explanation="Allocated memory does not grow, and much is reserved but not allocated: free blocks of the wrong "
        "sizes, left by many different lengths. A single very long text can cause this too; then allocated memory "
        "peaks in that step.",
        hints=(
            "Start at the top of the decision tree: does the first step fail?",
            "Look at the growth of allocated memory, and at reserved minus allocated.",
            "6 GiB allocated, 21 GiB reserved.",
        ),
    ),
)

LESSON = Lesson(
    id="09_memory_anatomy_and_oom",
    title="Memory: anatomy and running out",
    question="what fills the GPU's memory, and what is the cheapest fix when it runs out?",
    minutes=55,
    budget_s=60,
    level=2,
    without_gpu="everything runs; GPUs are simulated, and bytes are counted from tensor sizes",
    prerequisites=("01_what_is_utilisation",),
    outcomes=(
        "calculate the peak memory of a training step by hand, to within 2 %",
        "get from an out-of-memory error to the cheapest fix, and name the counter that led there",
        "use three numbers to tell apart a leak, fragmentation and a step that is too large",
        "explain which memory nvidia-smi counts although no tensor uses it",
    ),
    symptom="torch.OutOfMemoryError, in the first step or after hours.",
    signature="The growth of allocated memory from step to step; weights, gradients and optimizer state compared with "
    "the GPU's memory; reserved minus allocated.",
    fix="The first of these that is enough: detach collected tensors, fused attention, half precision, micro-batches, "
    "activation checkpointing, smaller optimizer state.",
    limits="Weights, gradients and optimizer state alone exceed the GPU's memory: then no batch is small enough.",
    experiments=(
        LessonExperiment(number="09.1", description="peak memory guessed, and calculated by hand"),
        LessonExperiment(
            number="09.2", description="five programs that run out of memory, and the cheapest fix for each"
        ),
        LessonExperiment(number="09.3", description="losses stored with their graphs, and losses stored as numbers"),
        LessonExperiment(number="09.4", description="fragmented memory, preallocated memory, and expandable segments"),
        LessonExperiment(number="09.5", description="validation that saves activations, and validation that does not"),
        LessonExperiment(number="09.6", description="the peak in each phase of a step"),
        LessonExperiment(number="09.7", description="cudaMalloc in every step, and memory that is reused"),
        LessonExperiment(number="09.8", description="a new tensor for each operator, and in-place operators"),
        LessonExperiment(number="09.9", description="memory by image size and by sequence length"),
        LessonExperiment(
            number="09.10", description="used, reserved and allocated memory, and the differences between them"
        ),
    ),
    questions=(*_ANATOMY, *_OOM, *_ALLOCATOR, *_SAVED, *_READ),
    targets=(
        Target(
            key="cheapest",
            unit="programs that run with their cheapest fix",
            value=4,
            lower_is_better=False,
            hints=(
                "Use the decision tree for each program, with the table above: questions 2 and 3.",
                "Check the first two rows first; then try the fixes in order of cost, without those already in place.",
                "Without fused attention, the scores of one sample of 16,384 tokens take 16 GiB, and autocast runs "
                "softmax in float32.",
            ),
        ),
        Target(
            key="fewest",
            unit="fixes",
            value=2,
            hints=(
                "Is there one cause, or are there two?",
                "The three parts that do not depend on the batch exceed the GPU's memory.",
                'Start with ["state"], and read the next error.',
            ),
        ),
    ),
)
