"""Lesson 09: what lies in a GPU's memory, when most of it does, and the cheapest way out where it runs out."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

_ANATOMY = (
    Question(
        key="guess",
        ask="Adam, float32, weights of 512 MiB, 4,096 samples, 64 MiB for one layer's output: how much is in use when "
        "most is?",
        choices=(
            Choice(key="a", text="less than 1 GiB", below=1.0, told="The weights have company."),
            Choice(key="b", text="1 to 2 GiB", below=2.0, told="Adam's numbers alone are twice the weights."),
            Choice(key="c", text="2 to 4 GiB", below=4.0),
            Choice(key="d", text="more than 4 GiB", told="Not everything is there at the same time."),
        ),
        because="Weights and Adam's numbers are there always, 1.5 GiB. Activations come on top, 17 tensors of 64 MiB, "
        "and one for what backward hands on. Gradients come as activations go.",
        hints=(
            "List what a step keeps, and until when.",
            "Compare what there is for each weight with what there is for each sample.",
            "Three numbers for each weight are always there; forward leaves two tensors for each layer.",
        ),
    ),
    Question(
        key="amp",
        ask="Autocast to sixteen bits, at this batch of 4,096: how much is left of the peak of 2.6 GiB?",
        choices=(
            Choice(key="a", text="about half", below=0.6, told="Only some of the activations take half the bytes."),
            Choice(key="b", text="two thirds to nine tenths", below=0.9, told="Look at who holds the peak here."),
            Choice(key="c", text="nine tenths or more", told="Most of what lies there is not activations."),
        ),
        because="Weights, gradients and Adam's numbers stay in float32; activations fall, and copies of the weights "
        "in bfloat16 come on top. How much the whole falls depends on how much of it was activations.",
        hints=(
            "Which of the four parts can autocast make smaller?",
            "Compare activations with weights and optimizer state.",
            "parameters and optimizer, 1.5 of 2.6 GiB, stay as they are.",
        ),
    ),
)

_OOM = (
    Question(
        key="later",
        ask="What in this loop makes memory grow from step to step?",
        choices=(
            Choice(key="a", text="losses: a loss is appended in every step", told="What is appended is detached."),
            Choice(key="b", text="history: a loss is appended in every step"),
            Choice(key="c", text="tokens: new ones are made in every step", told="The old ones are let go for them."),
            Choice(key="d", text="the optimizer", told="It has all its numbers after the first step."),
        ),
        right="b",
        because="What history holds was never asked for a backward(). So each entry keeps its graph, and the graph "
        "keeps the activations it was computed from.",
        hints=(
            "What is still needed of a step when the next one has begun?",
            "Which of the names grows: which is appended to?",
            "total adds up loss.detach(); seen has its graph.",
        ),
    ),
)

_HELD = (
    Question(
        key="pieces",
        ask="240 features of 72 MiB, 17 GiB in all, on a card of 22 GiB; computing each needs 128 MiB for a moment. "
        "How does it end?",
        choices=(
            Choice(key="a", text="it runs: 5 GiB are to spare", told="They are there, but in pieces."),
            Choice(
                key="b", text="it runs out near the end, when hardly anything is free", told="Much was free, in pieces."
            ),
            Choice(key="c", text="it runs out half way or a little later, with many GiB free"),
        ),
        right="c",
        because="A tensor needs one piece. Here each free piece is 56 MiB, between two that are in use, and the driver "
        "has less than 128 MiB left.",
        hints=(
            "Where does the next feature go, once the 128 MiB before it are free again?",
            "The largest free piece, not the sum of all.",
            "128 MiB were there, 72 of them are kept: 56 are left, and nothing fits there.",
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
        ask="Four layers of Linear and ReLU. How much less is kept for backward with nn.ReLU(inplace=True)?",
        choices=(
            Choice(key="a", text="nothing less", below=0.05),
            Choice(key="b", text="about a fifth", below=0.35, told="Count who keeps what between two layers."),
            Choice(key="c", text="about half", told="Count who keeps what between two layers."),
        ),
        because="Between two layers one tensor is kept in both cases: what ReLU gives out, which is also what the next "
        "Linear takes in.",
        hints=(
            "What do Linear and ReLU keep for backward?",
            "Bytes kept for backward; not bytes asked for.",
            "ReLU keeps its output, and the next Linear its input: they are one tensor.",
        ),
    ),
)

_KEPT = (
    Question(
        key="lists",
        ask="You append the training loss itself to a list, without detach(), after backward(). By how much does "
        "memory grow in each step?",
        choices=(
            Choice(key="a", text="by nothing", below=1, told="The number itself has to lie somewhere."),
            Choice(key="b", text="by one number, 512 bytes as memory is given out", below=10_000),
            Choice(key="c", text="by all activations of the step", told="backward() has let go of them."),
        ),
        because="A graph keeps its activations until backward() has used them. After that only the number is left. A "
        "validation loss, of which nobody asks a backward(), keeps them as long as the list lives.",
        hints=(
            "What lets go of activations?",
            "By how many bytes memory in use rises from step to step.",
            "backward() was called on this loss; on the history of the last program it was not.",
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
        ask="What does torch.cuda.empty_cache() change of the three?",
        choices=(
            Choice(key="a", text="all three fall", told="No tensor is given up."),
            Choice(key="b", text="used and reserved fall, allocated stays"),
            Choice(key="c", text="reserved falls, used stays", told="The driver has the memory back."),
        ),
        right="b",
        because="What tensors gave up stays with PyTorch, and nvidia-smi counts it as used. empty_cache() hands it to "
        "the driver. The next step has to ask for it again.",
        hints=(
            "Who holds memory that no tensor uses any more?",
            "torch.cuda.memory_reserved() less memory_allocated().",
            "empty_cache() touches only what is reserved and not allocated.",
        ),
    ),
    Question(
        key="stage",
        ask="256 samples instead of 4,096: in which part of the step is most in use now?",
        choices=(
            Choice(key="a", text="forward", told="Activations are few with a small batch."),
            Choice(key="b", text="backward", told="Activations are few with a small batch."),
            Choice(key="c", text="the optimizer's update"),
        ),
        right="c",
        because="A layer now gives back 8 MiB of activations and makes 64 MiB of gradient, so memory rises through "
        "backward. Then the update has all gradients there, and Adam's usual form makes copies as large as the "
        "weights.",
        hints=(
            "Which part has all gradients in memory?",
            "Compare what a layer gives back in backward with the gradient that it makes.",
            "2 x 4 MiB given back, 64 MiB made.",
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
            Choice(key="c", text="too many weights: another optimizer", told="Then the first step would fail."),
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
                "Walk the tree for each, with the table above: questions 2 and 3.",
                "The first two rows first; then the order of the remedies, leaving out what is in place already.",
                "Written out, the scores of one sample of 16,384 tokens are 16 GiB, and autocast has softmax in "
                "float32.",
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
