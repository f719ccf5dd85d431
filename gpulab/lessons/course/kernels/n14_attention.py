"""Lesson 14: what attention stores, which kernel computes it, and a key-value cache."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_MAKERS = {
    "scores": "the product makes the scores, but its backward pass needs only query and key.",
    "product": "the last product saves its inputs: one of them is this tensor, but who made it?",
}


def _maker_problem(value: Any) -> str | None:
    if value is None:
        return "no answer yet."
    if value == "softmax":
        return None
    return _MAKERS.get(value, 'write "scores", "softmax" or "product".')


_MEMORY = (
    Question(
        key="largest",
        prompt="A block of a transformer (width 256, 4 heads) saves some twenty tensors for the backward pass of 4,096 "
        "tokens. What share of the saved bytes is the largest one?",
        choices=(
            Choice(key="a", text="less than a tenth", below=0.1, feedback="One of them has 4 x 4,096 x 4,096 numbers."),
            Choice(key="b", text="a tenth to a half", below=0.5, feedback="It is larger than all others together."),
            Choice(key="c", text="more than half", feedback="Only this one grows with the square of the length."),
        ),
        expected="c",
        explanation="256 MiB are 4 heads x 4,096 x 4,096 numbers of 4 bytes. All others have 4,096 rows of at most "
        "1,024 numbers.",
        hints=(
            "Which tensor has a number for each pair of tokens?",
            "Read the first row of the table.",
            "4 x 4,096 x 4,096 x 4 bytes.",
        ),
    ),
    Question(
        key="maker",
        prompt="Which operation makes the tensor that is saved?",
        find_problem=_maker_problem,
        explanation="The backward pass of softmax needs its own result, and the last product needs the same tensor.",
        hints=(
            "Think of the derivative of each of the three operators.",
            "Which one saves its own result?",
            "softmax'(x) is computed from softmax(x).",
        ),
    ),
    Question(
        key="fused",
        prompt="With 512 tokens, textbook attention saves 11 MiB: query, key and value of 1 MiB each, and 8 MiB for "
        "the result of softmax. What share of that does a fused kernel save?",
        choices=(
            Choice(key="a", text="less than 30 %", below=0.3, feedback="It saves its inputs and its result: 4 MiB."),
            Choice(key="b", text="30 to 50 %", below=0.5, feedback="Query, key, value and result, 1 MiB each."),
            Choice(key="c", text="more than half", feedback="The result of softmax, 8 MiB, is not saved."),
        ),
        expected="b",
        explanation="Four tensors of 1 MiB and one number per row, from which the backward pass computes the scores "
        "again.",
        hints=(
            "What does the backward pass need if it computes the scores again?",
            "Compare the two lines that the cell prints.",
            "4 MiB of 11.",
        ),
    ),
    Question(
        key="length",
        prompt="Fused attention stores some bytes for the backward pass. With which power of the sequence length do "
        "they grow?",
        choices=(
            Choice(key="a", text="0: it is constant", below=0.5, feedback="Its inputs and its result grow."),
            Choice(key="b", text="1", below=1.5, feedback="Twice the tokens, twice the rows."),
            Choice(key="c", text="2", feedback="That is the textbook version: a number for each pair."),
        ),
        expected="b",
        explanation="All saved tensors have a row for each token. The arithmetic still grows with the square: every "
        "pair is computed.",
        hints=(
            "Which shapes are saved?",
            "Read the printed powers.",
            "tokens x head size, four times.",
        ),
    ),
)
_KERNELS = (
    Question(
        key="refused",
        prompt="Four calls of SDPA: causal, with dropout, with three dimensions, and with a query whose last dimension "
        "is not contiguous. How many does the flash kernel of the CPU refuse?",
        choices=(
            Choice(key="a", text="none", below=1, feedback="SDPA accepts all, but not with every kernel."),
            Choice(key="b", text="one", below=2, feedback="Try each one with only the flash kernel allowed."),
            Choice(key="c", text="three", feedback="Only the causal one is fine."),
        ),
        expected="c",
        explanation="Each kernel supports some combinations of shapes, types and options. If none of the fused ones "
        "fits, SDPA uses plain operators, without a message.",
        hints=(
            "Which of them does a kernel have to support explicitly?",
            "Read the reasons that the cell prints.",
            "Causal runs.",
        ),
    ),
    Question(
        key="cache",
        prompt="You generate 48 tokens after a prompt of 4. How much less do the linear layers compute with a cache?",
        choices=(
            Choice(
                key="a", text="less than 5 times", below=5, feedback="Without a cache, the 48th token runs 51 tokens."
            ),
            Choice(key="b", text="5 to 20 times less", below=20, feedback="Sum up 4 + 5 + ... + 51 tokens."),
            Choice(key="c", text="more than 20 times less", feedback="1,320 tokens are run instead of 51."),
        ),
        expected="c",
        explanation="Without a cache, 4 + 5 + ... + 51 = 1,320 tokens run through the layers; with it, 51.",
        hints=(
            "How many tokens run through the layers for the last new token?",
            "Divide the two FLOP counts.",
            "1,320 / 51.",
        ),
    ),
    Question(
        key="window",
        prompt="2,048 tokens, each of which sees itself and the 255 before it. Pairs are computed in blocks of "
        "128 x 128. What share of the blocks can be skipped?",
        choices=(
            Choice(key="a", text="half", below=0.6, feedback="That is what the causal rule alone skips."),
            Choice(key="b", text="60 to 90 %", below=0.9, feedback="Three of 16 blocks in most rows are computed."),
            Choice(key="c", text="more than 90 %", feedback="A window of 256 touches up to three blocks."),
        ),
        expected="b",
        explanation="Of 16 x 16 blocks, each row needs at most 3: 45 of 256.",
        hints=(
            "How many blocks does one row of blocks touch?",
            "Read the printed share.",
            "1 + 2 + 14 x 3 = 45 of 256.",
        ),
    ),
)
_TRANSFER = Question(
    key="transfer",
    prompt="After an update, a model on an H100 needs four times the memory, and its report shows a softmax kernel "
    "between two matrix products instead of flash_fwd. Which of these changes explains it?",
    choices=(
        Choice(key="a", text="the batch was halved", feedback="That needs less memory, and changes no kernel."),
        Choice(key="b", text="the learning rate was raised", feedback="It has no effect on kernels."),
        Choice(key="c", text="is_causal=True replaced a mask", feedback="That makes the flash kernel possible."),
        Choice(
            key="d",
            text="the model returns its attention weights, to plot them",
            feedback="A fused kernel never stores the weights, so the library computes them with separate operators.",
        ),
    ),
    right="d",
    explanation="Softmax between two products is the plain version, which stores all scores. In Transformers, it is "
    'attn_implementation="eager", which output_attentions=True needs.',
    hints=(
        "Which version has a softmax kernel of its own?",
        "Which change asks for something that a fused kernel does not store?",
        "The attention weights.",
    ),
)

LESSON = Lesson(
    id="14_attention",
    title="Attention",
    question="what does it store, and which kernel computes it?",
    minutes=50,
    level=2,
    without_gpu="everything runs on the CPU, with PyTorch's own fused kernel; only CUDA's kernels have other rules",
    prerequisites=("09_memory_anatomy_and_oom",),
    outcomes=(
        "find the tensor that fills the memory of a block, and the operator that saves it",
        "replace attention by one fused call, and say what that changes with the sequence length",
        "find out which kernel ran, and why another one refused",
        "write a key-value cache, and compute its size",
    ),
    symptom="Memory grows with the square of the sequence length, or generation gets slower with each token.",
    signature="A saved tensor of heads x tokens x tokens; a softmax kernel between two products.",
    fix="scaled_dot_product_attention with arguments that the flash kernel takes; a key-value cache with few heads; a "
    "window for long sequences.",
    limits="Short sequences: the scores are small. The arithmetic of long ones stays, unless tokens attend to fewer "
    "others.",
    experiments=(
        LessonExperiment(number="14.1", description="the tensor that fills the memory of a block"),
        LessonExperiment(number="14.2", description="attention as separate operators, and as one fused call"),
        LessonExperiment(number="14.3", description="sequences from 128 to 2,048 tokens: memory and arithmetic"),
        LessonExperiment(number="14.4", description="calls that the flash kernel refuses, and their repair"),
        LessonExperiment(number="14.5", description="generation without a cache, and with one"),
        LessonExperiment(number="14.6", description="a causal mask, and a window with FlexAttention"),
        LessonExperiment(number="14.7", description="a cache for 32 heads, and for 8"),
    ),
    questions=(*_MEMORY, *_KERNELS, _TRANSFER),
    targets=(
        Target(
            key="repaired",
            unit="calls that the flash kernel takes",
            value=3,
            lower_is_better=False,
            hints=(
                "The reason printed for each call says what the kernel does not support.",
                "In evaluation, no element is dropped. q[0][None] has a batch dimension again. "
                "stride() of a tensor shows which dimension is contiguous.",
                '"strided": partial(sdpa, strided.contiguous(), k, v)',
            ),
        ),
        Target(
            key="flops",
            unit="MFLOP in linear layers",
            value=12,
            hints=(
                "What of an earlier token does a later one need?",
                "Keys and values: append the new ones to the cache along dimension 2.",
                'cache["key"] = torch.cat([cache["key"], key], dim=2) if "key" in cache else key',
            ),
        ),
    ),
)
