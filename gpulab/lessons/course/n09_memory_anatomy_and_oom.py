"""Lesson 09: what lies in a GPU's memory, when most of it does, and the cheapest way out where it runs out."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

_ANATOMY = (
    Question(
        key="weights",
        ask="A model of one billion weights in float32, trained with Adam: how much memory is taken before the first "
        "sample is?",
        choices=(
            Choice(key="a", text="4 GB: a weight is four bytes", told="That is the weights alone."),
            Choice(key="b", text="8 GB: weights and gradients", told="Adam keeps numbers of its own as well."),
            Choice(key="c", text="16 GB: weights, gradients, and two more numbers for each"),
            Choice(key="d", text="it depends on the batch", told="These four do not change with the batch."),
        ),
        right="c",
        because="Four numbers of four bytes for each weight: itself, its gradient, and Adam's two running means.",
        hints=(
            "Count what is stored once for each weight.",
            "Adam keeps a mean of the gradients, and one of their squares.",
            "4 numbers x 4 bytes x 1,000,000,000.",
        ),
    ),
    Question(
        key="amp",
        ask="Autocast to bfloat16 is said to halve memory. Of this program's peak, at this batch, how much is left?",
        choices=(
            Choice(key="a", text="about half", below=0.6, told="Only some activations are kept in half the bytes."),
            Choice(key="b", text="two thirds to three quarters", below=0.8, told="Look at who holds the peak here."),
            Choice(key="c", text="nine tenths or more", told="Most of what lies there is not activations."),
        ),
        because="Weights, gradients and Adam's numbers stay in float32; activations fall, and copies of the weights "
        "in bfloat16 come on top. How much the whole falls depends on how much of it was activations.",
        hints=(
            "Which parts of the table does autocast touch?",
            "Compare activations with weights, gradients and optimizer state.",
            "The rows parameters and optimizer are the same in both tables.",
        ),
    ),
    Question(
        key="meet",
        ask="Which of these are in memory together when most is?",
        choices=(
            Choice(key="a", text="all four parts in full", told="Then the sum would be right; it is a fifth too high."),
            Choice(key="b", text="weights, optimizer state and activations, but hardly a gradient"),
            Choice(key="c", text="weights, gradients and optimizer state", told="That is the moment of the update."),
        ),
        right="b",
        because="Backward begins with all activations there and no gradient; each layer then gives back its "
        "activations as it makes its gradient.",
        hints=(
            "The table by phase has a row for backward.",
            "Compare gradients in the row backward with gradients in the row optimizer.",
            "backward: gradients 164 KiB, those of the last layer.",
        ),
    ),
)

_OOM = (
    Question(
        key="later",
        ask="A program trains for more than twenty steps and then runs out of memory. What do you look at first?",
        choices=(
            Choice(key="a", text="a smaller batch", told="It would fail later, and still fail."),
            Choice(key="b", text="how memory in use changes from step to step"),
            Choice(key="c", text="the size of the model", told="The same model fitted twenty times."),
            Choice(key="d", text="a larger GPU", told="It would fail later, and still fail."),
        ),
        right="b",
        because="What fits once fits again, unless something is kept. A slope above zero says that it is.",
        hints=(
            "What differs between step 1 and step 20?",
            "Memory in use where each step begins.",
            "The line in the report that names who holds most.",
        ),
    ),
    Question(
        key="counter",
        ask="Two programs fail in their first step. Which counter tells too many weights from too many activations?",
        choices=(
            Choice(key="a", text="the size that was asked for last", told="The last request is only the last straw."),
            Choice(
                key="b", text="weights, gradients and optimizer state, worked out by hand, against the card's memory"
            ),
            Choice(key="c", text="memory in use in nvidia-smi", told="It is full in both cases."),
            Choice(key="d", text="GPU utilisation", told="It says nothing about memory."),
        ),
        right="b",
        because="If these three alone are more than the card, no smaller batch can help; if not, they are not the "
        "reason. Any other of these counters reads the same in both cases.",
        hints=(
            "One of the two does not change with the batch.",
            "Four numbers for each weight.",
            "states against what the card has, in the table.",
        ),
    ),
)

_HELD = (
    Question(
        key="pieces",
        ask="PyTorch holds more than 9 GiB that no tensor uses, and a request for 128 MiB fails. Why?",
        choices=(
            Choice(key="a", text="the free memory is not in one piece"),
            Choice(key="b", text="the tensors leak", told="A leak is in use; this memory is free."),
            Choice(key="c", text="another process has it", told="Then PyTorch could not count it as its own."),
        ),
        right="a",
        because="A tensor needs one piece. Here each free piece is 56 MiB, between two that are in use, and the driver "
        "has less than 128 MiB left.",
        hints=(
            "The error tells what is in use, and what is reserved but not in use.",
            "The largest free piece, not the sum of all.",
            "128 MiB were there, 72 of them are kept: 56 are left.",
        ),
    ),
    Question(
        key="pool",
        ask="A step makes two new tensors of 64 MiB and drops them. Once warm, how often a step does PyTorch ask the "
        "driver for memory?",
        choices=(
            Choice(key="a", text="never", below=0.5),
            Choice(
                key="b", text="once or twice", below=2.5, told="PyTorch keeps what is dropped, and gives it out again."
            ),
            Choice(key="c", text="four times or more", told="PyTorch keeps what is dropped, and gives it out again."),
        ),
        because="PyTorch's allocator is a memory pool already. It asks the driver only for what no free piece fits.",
        hints=(
            "What happens to memory that a tensor gives back?",
            "num_device_alloc in torch.cuda.memory_stats() counts calls to the driver.",
            "torch.cuda.empty_cache() is the line that throws the pool away.",
        ),
    ),
    Question(
        key="inplace",
        ask="relu(2 * x + 1) for an x of 4 MiB makes three tensors. How much is allocated if all but the first step "
        "works in place?",
        choices=(
            Choice(key="a", text="12 MiB", told="That is with a new tensor for each operator."),
            Choice(key="b", text="8 MiB", told="Two of the three write where the first one wrote."),
            Choice(key="c", text="4 MiB"),
        ),
        right="c",
        because="One new tensor, for 2 * x, as x itself must stay; the other two write into it.",
        hints=(
            "Which operators make a new tensor?",
            "Count allocated bytes, not the peak.",
            "add_ and relu_ end in an underscore: they write into what they are given.",
        ),
    ),
)

_KEPT = (
    Question(
        key="lists",
        ask="Two lists collect losses as they come: one the training loss after backward(), one a validation loss "
        "that nobody calls backward() on. Which list makes memory grow by the activations?",
        choices=(
            Choice(key="a", text="both", told="backward() lets go of what it used."),
            Choice(key="b", text="only the one with the validation losses"),
            Choice(key="c", text="neither: a loss is one number", told="A loss can hold on to all that led to it."),
        ),
        right="b",
        because="A loss keeps its graph, and the graph keeps the activations until backward() has used them. After "
        "backward() only the number is left, 512 bytes as memory is given out.",
        hints=(
            "What lets go of activations?",
            "By how many bytes memory in use rises from step to step.",
            "backward() is called on one of the two losses only.",
        ),
    ),
    Question(
        key="side",
        ask="Images of twice the side, through the same convolutions: how much more is kept for backward?",
        choices=(
            Choice(key="a", text="1.4 times", below=1.7, told="Every layer keeps a value for each pixel."),
            Choice(key="b", text="twice", below=3.0, told="Twice the side is four times the pixels."),
            Choice(key="c", text="four times", below=6.0),
            Choice(key="d", text="eight times", told="The channels stay the same."),
        ),
        because="Memory goes with the number of pixels: with the square of the side.",
        hints=(
            "How many pixels more?",
            "Bytes kept for backward, at two sides.",
            "128 x 128 becomes 256 x 256.",
        ),
    ),
    Question(
        key="eval",
        ask="Before validation you call model.eval(). How much of what training keeps for backward is still kept?",
        choices=(
            Choice(key="a", text="nothing", below=0.05, told="eval() is about dropout and batch normalisation."),
            Choice(key="b", text="half", below=0.95, told="eval() is about dropout and batch normalisation."),
            Choice(key="c", text="all of it"),
        ),
        because="eval() changes what dropout and batch normalisation do. Only no_grad() and inference_mode() say that "
        "no backward() will come.",
        hints=(
            "Who could still call backward() after eval()?",
            "Bytes kept for backward, with and without.",
            "with torch.inference_mode(): around the validation.",
        ),
    ),
)

_READ = (
    Question(
        key="three",
        ask="nvidia-smi shows more than PyTorch reserves, and that is more than tensors take. What lies between "
        "reserved and allocated?",
        choices=(
            Choice(key="a", text="the CUDA context", told="That lies outside of what PyTorch reserves."),
            Choice(key="b", text="free memory that PyTorch keeps for its next tensors"),
            Choice(key="c", text="a leak", told="What leaks is allocated."),
        ),
        right="b",
        because="What tensors gave back stays with PyTorch. nvidia-smi counts it as used, and the CUDA context too.",
        hints=(
            "Who holds memory that no tensor uses any more?",
            "torch.cuda.memory_reserved() less memory_allocated().",
            "empty_cache() makes this difference small.",
        ),
    ),
    Question(
        key="stage",
        ask="The same model with a small batch: in which part of the step is the peak?",
        choices=(
            Choice(key="a", text="forward", told="Activations are few with a small batch."),
            Choice(key="b", text="backward", told="Activations are few with a small batch."),
            Choice(key="c", text="the optimizer's update"),
        ),
        right="c",
        because="All gradients are there then, and Adam's usual form works on temporary copies as large as the "
        "weights.",
        hints=(
            "Which part has all gradients in memory?",
            "The peaks by phase.",
            "The row optimizer: temporaries.",
        ),
    ),
    Question(
        key="transfer",
        ask="Another job fails after some hours, never in the same step. Where each step begins, 6 GiB are allocated, "
        "always. 21 of 22 GiB are reserved. Its texts have many lengths. Which is it, and what is tried first?",
        choices=(
            Choice(key="a", text="a leak: detach what is collected", told="A leak would rise in allocated."),
            Choice(
                key="b",
                text="fragments: lengths rounded up to a few sizes, or expandable segments; and a look at the "
                "longest text",
            ),
            Choice(key="c", text="too many weights: another optimizer", told="Then the first step would have failed."),
            Choice(key="d", text="another process: find it", told="Reserved is this process's own."),
        ),
        right="b",
        because="No slope, and much that is reserved without being allocated: pieces of the wrong sizes, left by many "
        "different lengths. One very long text can do it too: then the peak of allocated is high in that step.",
        hints=(
            "Start at the top of the tree: does the first step fail?",
            "Slope of allocated; reserved less allocated.",
            "6 GiB allocated, 21 GiB reserved.",
        ),
    ),
)

LESSON = Lesson(
    id="09_memory_anatomy_and_oom",
    title="Memory: anatomy and running out",
    question="what fills the GPU's memory, and what is the cheapest way out?",
    minutes=55,
    budget_s=60,
    level=2,
    without_gpu="everything runs; cards are played, and bytes are counted on sizes",
    before=("01_what_is_utilisation",),
    outcomes=(
        "work out the peak of a training step by hand, within 2 %",
        "walk from an out-of-memory error to the cheapest remedy, and say which counter led there",
        "tell a leak, fragments and a step that is too large apart by three numbers",
        "say what nvidia-smi counts that no tensor uses",
    ),
    symptom="torch.OutOfMemoryError, in the first step or after hours.",
    signature="The slope of memory in use from step to step; weights, gradients and optimizer state against the card; "
    "reserved less allocated.",
    fix="The first of these that fits: detach what is collected, half precision, fused attention, the batch in parts, "
    "activations computed again, fewer optimizer numbers.",
    not_when="Weights, gradients and optimizer state alone are more than the card: then nothing about the batch helps.",
    experiments=(
        Experiment(number="09.1", shows="memory guessed against memory taken apart by hand"),
        Experiment(number="09.2", shows="five programs that run out, and the cheapest remedy of each"),
        Experiment(number="09.3", shows="memory in pieces against room made first, and segments that grow"),
        Experiment(number="09.4", shows="memory asked for in every step against memory kept"),
        Experiment(number="09.5", shows="a new tensor for each operator against one that is written over"),
        Experiment(number="09.6", shows="losses kept with their graphs against losses kept as numbers"),
        Experiment(number="09.7", shows="memory against the side of images and the length of sequences"),
        Experiment(number="09.8", shows="validation that keeps activations against one that keeps none"),
        Experiment(number="09.9", shows="used, reserved and allocated, and what lies between them"),
        Experiment(number="09.10", shows="the peak of each part of a step, and which part has the highest"),
    ),
    questions=(*_ANATOMY, *_OOM, *_HELD, *_KEPT, *_READ),
    pars=(
        Par(
            key="cheapest",
            what="programs that run with their cheapest remedy",
            par=4,
            lower_is_better=False,
            hints=(
                "Walk the tree for each, with the facts printed above.",
                "states against the card first; then the order of the remedies.",
                'One of them is "fused": the one whose formula of attention is written out.',
            ),
        ),
        Par(
            key="fewest",
            what="remedies",
            par=2,
            hints=(
                "Is there one reason, or are there two?",
                "The three parts that do not depend on the batch are more than the card.",
                'Begin with ["state"] and see what the error says then.',
            ),
        ),
    ),
)
