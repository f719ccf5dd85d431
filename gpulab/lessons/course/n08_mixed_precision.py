"""Lesson 08: what sixteen bits give, where they give nothing, and what they break."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

_FASTER = (
    Question(
        key="full",
        ask="Tensor cores are most of what an H100 can compute. nvidia-smi shows 100 % while this float32 program "
        "trains. Which share of the GPU's peak in half precision does the program reach?",
        choices=(
            Choice(key="a", text="less than a tenth", below=0.1, told="100 % says that something always ran."),
            Choice(key="b", text="a tenth to a half", below=0.5, told="That is what good half-precision code reaches."),
            Choice(key="c", text="more than half", told="100 % says that something always ran, and not what."),
        ),
        because="nvidia-smi tells in which share of the time any kernel ran. These kernels are float32 products, which "
        "leave the tensor cores alone.",
        hints=(
            "Ask what 100 % is a share of.",
            "Compare the operations of a step, over its time, with the peak.",
            "6.6 million million operations in about 0.17 s, against 989 million million a second.",
        ),
    ),
    Question(
        key="cause",
        ask="The report blames float32 matrix products. Which of its readings would be different if the loop waited "
        "for data, or for the launching of small kernels?",
        choices=(
            Choice(
                key="a",
                text="GPU idle, which is none of the step",
                told="In both rival cases the GPU would stand still.",
            ),
            Choice(
                key="b",
                text="unused memory, which is most of it",
                told="It is unused while a GPU waits, and while it works.",
            ),
            Choice(
                key="c",
                text="the names of the largest kernels",
                told="The same kernels would run, with pauses between them.",
            ),
        ),
        right="a",
        because="A GPU that waits is idle for part of each step, whatever it waits for. This one never is: only less "
        "work, or faster work, can shorten the step. The names of its kernels then tell which work: float32 products.",
        hints=(
            "Look at the two groups in the table 'Where a step goes'.",
            "Compare GPU busy with GPU idle; waiting for data and launch calls are parts of idle.",
            "The line 'GPU idle' reads 0.",
        ),
    ),
    Question(
        key="ladder",
        ask="By its data sheet an H100 multiplies matrices in bfloat16 14.8 times as fast as in float32. Three "
        "quarters of this step are matrix products. How many times as fast is the whole step?",
        choices=(
            Choice(key="a", text="less than 3 times", below=3, told="Three quarters of the step almost vanish."),
            Choice(key="b", text="3 to 8 times", below=8, told="The rest of the step gains too, but far less."),
            Choice(key="c", text="more than 8 times", told="That would need the other quarter to gain as much."),
        ),
        because="If only the products gained, a quarter of the step would stay and 3.3 times were the most. The other "
        "layers gain as well; 08.7 takes them apart.",
        hints=(
            "Split the step in two: products, and all the rest.",
            "What is left of 75 % divided by 14.8, and what of the other 25 % if it halves?",
            "0.75 / 14.8 + 0.25 / 2 is 0.18 of the step.",
        ),
    ),
    Question(
        key="eight",
        ask="Batch normalisation, ReLU and pooling do little arithmetic on much data. How many times as fast do they "
        "run on 16-bit numbers?",
        choices=(
            Choice(key="a", text="as fast as before", below=1.2, told="They multiply no matrices, but bytes count."),
            Choice(key="b", text="about twice as fast", below=2.6, told="Half the bytes, half the time."),
            Choice(key="c", text="eight times as fast", told="Tensor cores multiply matrices; these do not."),
        ),
        because="Such a layer takes as long as its bytes take to travel. There are half as many of them, and memory "
        "is no faster than before.",
        hints=(
            "Ask what such a layer waits for.",
            "Compare the bytes of a call in float32 and in bfloat16.",
            "A batch of float32 numbers is 4 bytes each, of 16-bit numbers 2; they do little else than carry them.",
        ),
    ),
    Question(
        key="joules",
        ask="What does the estimate say of the energy of a step in bfloat16, against one in float32?",
        choices=(
            Choice(key="a", text="it falls to less than half", below=0.5, told="The step is over far sooner."),
            Choice(
                key="b", text="it falls a little", below=1.0, told="At full power, too, less time takes less energy."
            ),
            Choice(key="c", text="it rises, as the chip works harder", told="No board may draw more than its limit."),
        ),
        because="A board draws between its idle power and its limit, whatever it computes. Both steps keep it busy, so "
        "here time decides. The estimate knows nothing of what tensor cores draw; a power meter does.",
        hints=(
            "Energy is power times time.",
            "Compare how much the time of a step changed with how much power could change.",
            "Between half of the range to the limit and all of it lies a factor below 2; the time fell by 5.",
        ),
    ),
    Question(
        key="tiny",
        ask="A network of six layers, 16 and 32 wide, learns from 4 samples at a time. What does autocast do to the "
        "number of operators in its step?",
        choices=(
            Choice(key="a", text="fewer than before", below=0.99, told="No operator is left out."),
            Choice(key="b", text="the same number", below=1.05, told="Each weight must become 16 bits wide first."),
            Choice(key="c", text="more than before", told="Each change of type is an operator of its own."),
        ),
        because="Each weight is cast to 16 bits going forward, and its gradient is cast back. Each cast is one more "
        "call, and a step of tiny kernels consists of calls.",
        hints=(
            "Think of the type that the weights have between steps.",
            "Count the operators named _to_copy.",
            "Every one of the operators added is a _to_copy.",
        ),
    ),
)
_MEMORY = (
    Question(
        key="half",
        ask="Sixteen layers of Linear and GELU keep their inputs for the backward pass. Which share of these bytes is "
        "left under bfloat16 autocast?",
        choices=(
            Choice(key="a", text="less than half", below=0.4999, told="No 16-bit number takes less than 2 bytes."),
            Choice(key="b", text="exactly half", below=0.5001, told="Each number takes 2 bytes instead of 4."),
            Choice(key="c", text="more than half", told="So it is where some results stay wide; here none does."),
        ),
        because="Linear gives 16-bit results, and GELU takes them as they come. For each number that was "
        "kept before one is kept now, in half the bytes. The casts of the weights come on top.",
        hints=(
            "Ask in which type Linear and GELU give their results.",
            "Compare the bytes of what has one row for each sample.",
            "16 MiB before, 8 MiB after.",
        ),
    ),
    Question(
        key="batch",
        ask="On a GPU with 24 GB, how many times as large may the batch be under autocast?",
        choices=(
            Choice(key="a", text="hardly larger", below=1.1, told="Most of this memory holds activations."),
            Choice(key="b", text="1.1 to 1.9 times", below=1.9, told="Part of what a sample needs does not shrink."),
            Choice(key="c", text="twice", told="That takes a step in which everything halves."),
        ),
        because="Weights, gradients and the states of Adam stay in float32, the places that pooling remembers are "
        "64-bit whole numbers, and the inputs arrive in float32.",
        hints=(
            "List what is in memory, and which of it becomes narrower.",
            "Compare bytes for each sample, and bytes in use whatever the batch.",
            "200 KiB a sample become 118, not 100.",
        ),
    ),
)
_RANGE = (
    Question(
        key="zeros",
        ask="The loss is a mean over 262,144 pixels, few of which are defects. Of the float16 gradients that flow "
        "back from it, how many are zero?",
        choices=(
            Choice(key="a", text="hardly any", below=0.1, told="Each is a small number over 262,144."),
            Choice(key="b", text="about half", below=0.9, told="All pixels without a defect have the same fate."),
            Choice(key="c", text="nearly all", told="0.005 / 262,144 is below the least that float16 holds."),
        ),
        because="What is below 0.00000003 becomes zero in float16. Only the few pixels with a defect have gradients "
        "above that, so the model hears of defects and of nothing else.",
        hints=(
            "Work out one gradient: what the model expects, over the number of pixels.",
            "Compare it with the least number that float16 holds, 6e-8, half of which is rounded up to it.",
            "0.005 / 262,144 is 1.9e-8.",
        ),
    ),
    Question(
        key="master",
        ask="A float16 weight of 1.0 is made smaller by 0.0001, a thousand times. Where does it end?",
        choices=(
            Choice(key="a", text="at 0.9", below=0.91, told="So it does in float32."),
            Choice(key="b", text="somewhere between", below=0.999, told="The first step decides all of them."),
            Choice(key="c", text="at 1.0", told="Each step is rounded away."),
        ),
        because="Just below 1.0 the numbers of float16 lie 0.0005 apart. A step of less than half of that leads back "
        "to where it began, however often it is taken.",
        hints=(
            "Ask which float16 number comes next below 1.0.",
            "Compare the step, 0.0001, with half of that distance.",
            "1 - 0.00049 is the next one; 0.0001 is nearer to 1.0.",
        ),
    ),
    Question(
        key="soft",
        ask="softmax of 3 and 12, written as exp(x) / exp(x).sum() in float16: what comes out?",
        choices=(
            Choice(key="a", text="0.0001 and 0.9999", told="So it does in float32."),
            Choice(key="b", text="0 and 1", told="exp(12) is 162,755, and float16 ends at 65,504."),
            Choice(key="c", text="0 and nan", told="infinity over infinity is no number."),
        ),
        right="c",
        because="exp(12) becomes inf, and so does the sum. 20 / inf is 0, inf / inf is nan, and nan spreads.",
        hints=(
            "Work out exp(12), and look up the largest float16.",
            "Follow inf through the sum and the division.",
            "162,755 is more than 65,504: inf, then inf / inf.",
        ),
    ),
    Question(
        key="resume",
        ask="A float16 run is resumed from a checkpoint that holds model and optimizer, but not the scaler. "
        "What happens?",
        choices=(
            Choice(
                key="a", text="nothing: the scaler holds no state", told="It holds the scale, and how long it held."
            ),
            Choice(key="b", text="the scale starts over", told="At 65,536, until it has found its place again."),
            Choice(key="c", text="loading it raises an error", told="Nothing misses what was never saved."),
        ),
        right="b",
        because="The scale is found by trial. Without its state the resumed run is not the run that was interrupted, "
        "and says nothing of it.",
        hints=(
            "Print scaler.state_dict().",
            "Compare the scale at the end of both runs.",
            'The line that matters is scaler.load_state_dict(saved["scaler"]).',
        ),
    ),
)
_TRANSFER = (
    Question(
        key="keras",
        ask="Under Keras' policy mixed_float16, what plays the part of the float32 master copy?",
        choices=(
            Choice(key="a", text="the variables, whose type is float32", told="They are cast for each use."),
            Choice(key="b", text="the compute type of the layers", told="That one is float16."),
            Choice(key="c", text="the scaler around the optimizer", told="It keeps small gradients, not weights."),
        ),
        right="a",
        because="A policy names two types: one to compute in, one to keep variables in. autocast does the same, with "
        "parameters that simply stay as they were made.",
        hints=(
            "Ask what the optimizer's steps are added to.",
            "A policy has compute_dtype and variable_dtype.",
            "variable_dtype is float32.",
        ),
    ),
    Question(
        key="transfer",
        ask="A float16 run with a GradScaler was well for 1,800 steps. Since then the scale has halved in every step "
        "and reads 0.001; every step is skipped; the loss, before it is scaled, reads nan. What is it, and what first?",
        choices=(
            Choice(key="a", text="gradients underflow: begin with a larger scale",
                   told="Underflow gives zeros, and no step is skipped for zeros."),
            Choice(key="b", text="the forward pass overflows: find the first layer whose result is not finite, and "
                   "run it in float32 or bfloat16", told="No factor on the loss reaches what went before it."),
            Choice(key="c", text="this is how dynamic scaling works: wait", told="It halves once or twice, until the "
                   "gradients fit; below 1 it cannot help any more."),
        ),
        right="b",
        because="The counter that tells: the loss before scaling is not finite. If only scaled gradients overflowed, "
        "the loss itself would read well, and the scale would come to rest.",
        hints=(
            "Ask whether the scale was already in play where the first nan arose.",
            "The loss before scaling reads nan.",
            "Scaling multiplies the loss; the forward pass is over by then.",
        ),
    ),
)  # fmt: skip

LESSON = Lesson(
    id="08_mixed_precision",
    title="Mixed precision",
    question="what do sixteen bits give, and what do they break?",
    minutes=50,
    budget_s=60,
    level=2,
    without_gpu="times, kernels and energy come from a virtual GPU; bytes, gradients and scales are real, on the CPU",
    before=("01_what_is_utilisation",),
    outcomes=(
        "say from a report whether half precision can help, and by how much it helps each kind of layer",
        "predict what autocast frees of the memory, and what it does not",
        "show underflow, overflow and lost updates by counting them, and name the remedy for each",
        "write a float16 loop that can be interrupted and resumed, and know when bfloat16 spares you that",
    ),
    symptom="The GPU is never idle, and still the step is slow: its products are computed in float32.",
    signature="A full timeline; matrix kernels named sgemm or f32, most of the step, while the GPU has tensor cores.",
    fix="torch.autocast in bfloat16, or TF32 where a line is all you may change; float16 with a GradScaler on GPUs "
    "before Ampere.",
    not_when="The GPU waits, the layers are tiny, or the weights rather than the activations fill the memory.",
    experiments=(
        Experiment(number="08.1", shows="float32, TF32, bfloat16 and float16 against one another"),
        Experiment(number="08.2", shows="bytes kept for backward in float32 against bfloat16"),
        Experiment(number="08.3", shows="float16 without and with loss scaling, and how the scale finds its place"),
        Experiment(number="08.4", shows="float16 weights that are updated directly against a float32 master copy"),
        Experiment(number="08.5", shows="softmax, sum and norm in float16 against float32 where it matters"),
        Experiment(number="08.6", shows="the snippet of an article against one that warns of nothing and resumes"),
        Experiment(number="08.7", shows="memory-bound layers against matrix products in half precision"),
        Experiment(number="08.8", shows="the largest batch in float32 against autocast"),
        Experiment(number="08.9", shows="a tiny model without and with autocast"),
        Experiment(number="08.10", shows="joules of a step in float32 against bfloat16"),
        Experiment(number="08.11", shows="autocast in PyTorch against a policy in Keras"),
    ),
    questions=(*_FASTER, *_MEMORY, *_RANGE, *_TRANSFER),
    pars=(
        Par(
            key="normalise",
            what="numbers of 32 bits written",
            par=1024,
            hints=(
                "Only one number of each row has to be wide: the one that sums the squares.",
                "Compare what x.float() writes, 262,144 numbers, with one norm a row, 256.",
                "torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32) sums in float32 by itself.",
            ),
        ),
    ),
)
