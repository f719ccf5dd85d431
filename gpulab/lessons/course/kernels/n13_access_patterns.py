"""Lesson 13: which bytes a warp fetches, which it uses, and how layouts change that."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_GLOBAL = (
    Question(
        key="stride",
        prompt="32 threads read float32 numbers, 32 numbers apart from each other. How many sectors of 32 bytes does "
        "this request need?",
        choices=(
            Choice(key="a", text="4", below=5, feedback="That is for neighbours: 128 bytes in 4 sectors."),
            Choice(key="b", text="16", below=17, feedback="Each number lies in a sector of its own."),
            Choice(key="c", text="32", feedback="One for each thread: 1,024 bytes for 128 that are used."),
        ),
        expected="c",
        explanation="A sector has 8 numbers. From stride 8 on, no two threads share one, so 7/8 of the bytes that move "
        "are not used.",
        hints=(
            "How many of the numbers lie in one sector?",
            "Compare stride 4, 8 and 16 in the plot.",
            "min(32, 4 x stride).",
        ),
    ),
    Question(
        key="structs",
        prompt="A kernel reads x and one speed of each particle, 2 of 8 values. Particles are stored one after the "
        "other, 32 bytes each. How many times as many sectors does it request as with eight arrays?",
        choices=(
            Choice(key="a", text="the same", below=1.5, feedback="Between two x lie seven other values."),
            Choice(key="b", text="4 times", below=4.5, feedback="That would be so if one load fetched both values."),
            Choice(key="c", text="8 times", feedback="Each request of a warp touches 32 sectors instead of 4."),
        ),
        expected="c",
        explanation="Each of the two loads of a warp touches the sectors of 32 particles. In eight arrays, a load "
        "touches 4 sectors.",
        hints=(
            "How far apart are the x of two neighbours?",
            "Compare the sectors of `particles` in both rows of the table.",
            "32 sectors per request instead of 4, for both loads.",
        ),
    ),
    Question(
        key="aligned",
        prompt="32 threads read 32 neighbouring float32 numbers of `tensor[1:]`. How many sectors?",
        choices=(
            Choice(key="a", text="4", below=4.5, feedback="128 bytes, but they begin 4 bytes after a boundary."),
            Choice(key="b", text="5", below=6, feedback="The first and the last sector are used in part."),
            Choice(key="c", text="32", feedback="Neighbours still share sectors."),
        ),
        expected="b",
        explanation="The bytes 4 to 131 lie in the sectors 0 to 4. It is a quarter more, not a multiple.",
        hints=(
            "Where does the view begin, in bytes?",
            "Compare the places 1 and 8 in the table.",
            "Bytes 4 to 131, sectors of 32.",
        ),
    ),
    Question(
        key="channels",
        prompt="Four ConvNeXt blocks in the default format (channels first): each runs a convolution, permutes its "
        "result to channels last, and applies LayerNorm. How many tensors are copied in a forward pass?",
        choices=(
            Choice(key="a", text="none: permute only changes the view", below=1, feedback="LayerNorm needs more."),
            Choice(key="b", text="4: one for each block", below=5, feedback="LayerNorm makes its input contiguous."),
            Choice(key="c", text="8: there and back", feedback="The addition at the end can read a permuted view."),
        ),
        expected="b",
        explanation="`permute` is free, but the next layer pays: LayerNorm's kernel needs its rows contiguous, and "
        "copies the tensor. In channels_last, the permuted view is contiguous.",
        hints=(
            "Which layer needs contiguous rows?",
            "Count `aten::clone` in the events.",
            "One LayerNorm in each of four blocks.",
        ),
    ),
)
_SHARED = (
    Question(
        key="banks",
        prompt="32 threads read one column of a 32 x 32 tile of float32 numbers in shared memory. How many more passes "
        "than one does this need?",
        choices=(
            Choice(key="a", text="0", below=1, feedback="That holds for a row."),
            Choice(key="b", text="1", below=2, feedback="More than two threads want the same bank."),
            Choice(key="c", text="31", feedback="All 32 numbers lie in the same bank."),
        ),
        expected="c",
        explanation="Numbers of a column are 32 words apart, so n % 32 is the same for all of them. With rows of 33 "
        "numbers, each lies in another bank.",
        hints=(
            "In which bank does word n lie?",
            "Read the bank conflicts of `tiled`, per request.",
            "n % 32 for n = 0, 32, 64, ...",
        ),
    ),
    Question(
        key="hits",
        prompt="One kernel has an L1 hit rate of 95 %, the other of 0 %. Both compute the same product. Which one "
        "executes fewer loads from global memory?",
        choices=(
            Choice(key="a", text="the one with 95 %", feedback="Its hits are repeated loads of the same numbers."),
            Choice(key="b", text="the one with 0 %", feedback="It loads each number once, so nothing can hit."),
            Choice(key="c", text="both the same", feedback="Both need 8 KiB, but one loads them 32 times."),
        ),
        right="b",
        explanation="A hit rate is a ratio: the more unnecessary loads there are, the more of them can hit.",
        hints=(
            "What could hit if every number is loaded once?",
            "Compare the loads in the table.",
            "65,536 and 2,048 loads.",
        ),
    ),
)
_TRANSFER = Question(
    key="transfer",
    prompt="A report of a ResNet in float16 on an H100 shows kernels named nchwToNhwcKernel and nhwcToNchwKernel, "
    "together a quarter of the step. What should you try first?",
    choices=(
        Choice(
            key="a",
            text="model and images in torch.channels_last",
            feedback="cuDNN's tensor-core kernels want NHWC, and these kernels convert to it and back.",
        ),
        Choice(key="b", text="a larger batch", feedback="It has as many conversions for each image."),
        Choice(key="c", text="contiguous() after each layer", feedback="That adds copies, and changes no format."),
        Choice(key="d", text="pinned memory", feedback="It concerns copies between host and GPU."),
    ),
    right="a",
    explanation="The names say what the kernels do: they convert the layout around each convolution.",
    hints=(
        "Read the names of the kernels.",
        "Which format does cuDNN compute in?",
        "NHWC is channels_last.",
    ),
)

LESSON = Lesson(
    id="13_access_patterns",
    title="Access patterns",
    question="which bytes does a warp fetch, and which does it use?",
    minutes=45,
    level=3,
    without_gpu="kernels run in a simulator that counts sectors and bank conflicts exactly; no times of a GPU",
    prerequisites=("02_gpu_architecture_and_cuda",),
    outcomes=(
        "compute the sectors of a request from stride and alignment",
        "choose a layout so that neighbouring threads read neighbouring numbers",
        "write a tile in shared memory without bank conflicts",
        "find hidden copies of tensors, and remove them with channels_last",
    ),
    symptom="A kernel reaches a small part of the bandwidth, or copies appear that nobody wrote.",
    signature="More than 4 sectors per request for float32, bank conflicts, `aten::clone` or layout kernels.",
    fix="A layout in which neighbouring threads read neighbouring numbers; tiles in shared memory, padded; "
    "channels_last for convolutions.",
    limits="A kernel that moves each byte once, at full bandwidth, gains nothing. A kernel that uses whole structs can "
    "keep them.",
    experiments=(
        LessonExperiment(number="13.1", description="loads with strides from 1 to 32"),
        LessonExperiment(number="13.2", description="an array of structs, and a struct of arrays"),
        LessonExperiment(number="13.3", description="a transpose: naive, by tiles, and by padded tiles"),
        LessonExperiment(number="13.4", description="a product with a high hit rate, and one with none"),
        LessonExperiment(number="13.5", description="a stencil from global memory, and from a tile"),
        LessonExperiment(number="13.6", description="a view that begins within a sector"),
        LessonExperiment(number="13.7", description="ConvNeXt blocks in the default format and in channels_last"),
    ),
    questions=(*_GLOBAL, *_SHARED, _TRANSFER),
    targets=(
        Target(
            key="loads",
            unit="loads from global memory",
            value=1300,
            hints=(
                "Which numbers do the threads at the edge of a block need in addition?",
                "16 x 16 numbers and 4 edges of 16, for each of 4 blocks.",
                "if ty == 0: tile[0, tx + 1] = values[y, x + 1], and three more.",
            ),
        ),
    ),
)
