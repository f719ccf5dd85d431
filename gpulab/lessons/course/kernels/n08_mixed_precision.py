"""Lesson 08: what half precision speeds up, what it does not, and what it breaks."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_FASTER = (
    Question(
        key="full",
        prompt="Tensor cores provide most of the computing power of an H100. nvidia-smi shows 100 % while this float32 "
        "program trains. What share of the GPU's half-precision peak does the program reach?",
        choices=(
            Choice(key="a", text="less than a tenth", below=0.1, feedback="100 % means that some kernel always ran."),
            Choice(key="b", text="a tenth to a half", below=0.5, feedback="Good half-precision code reaches that."),
            Choice(key="c", text="more than half", feedback="100 % means that a kernel always ran, not which kind."),
        ),
        expected="a",
        explanation="nvidia-smi shows the share of time in which any kernel ran. These kernels are float32 matrix "
        "products, which do not use the tensor cores.",
        hints=(
            "What is the 100 % a share of?",
            "Divide the operations of a step by its time, and compare the result with the peak.",
            "6.6 TFLOP in about 0.17 s, against a peak of 989 TFLOP/s.",
        ),
    ),
    Question(
        key="cause",
        prompt="The report names float32 matrix products as the cause. Which of its values would be different if the "
        "loop "
        "waited for data, or for kernel launches?",
        choices=(
            Choice(key="a", text="GPU idle, which is zero here", feedback="In both other cases the GPU would be idle."),
            Choice(
                key="b",
                text="unused memory, which is most of it",
                feedback="the amount of unused memory does not depend on whether the GPU waits.",
            ),
            Choice(
                key="c",
                text="the names of the largest kernels",
                feedback="the same kernels would run, with gaps between them.",
            ),
        ),
        right="a",
        explanation="A GPU that waits is idle for a part of each step, whatever it waits for. This one is never idle, "
        "so "
        "only less work or faster work can shorten the step. The kernel names then show which work: float32 products.",
        hints=(
            "Look at the two groups in the table 'Where the step time goes'.",
            "Compare GPU busy with GPU idle; waiting for data and launch calls are parts of idle.",
            "'GPU idle' is 0.",
        ),
    ),
    Question(
        key="ladder",
        prompt="According to its data sheet, an H100 multiplies matrices 14.8 times as fast in bfloat16 as in float32. "
        "Matrix products take three quarters of this step. How much faster is the whole step?",
        choices=(
            Choice(key="a", text="less than 3 times", below=3, feedback="Three quarters of the step almost disappear."),
            Choice(key="b", text="3 to 8 times", below=8, feedback="The rest of the step gains too, but far less."),
            Choice(
                key="c", text="more than 8 times", feedback="For that, the last quarter would have to gain as much."
            ),
        ),
        expected="b",
        explanation="If only the products became faster, a quarter of the step would remain, and the limit would be "
        "3.3 "
        "times. The other layers become faster too; 08.6 measures them one by one.",
        hints=(
            "Divide the step into two parts: products, and everything else.",
            "What remains of 75 % divided by 14.8? And of the other 25 % if they halve?",
            "0.75 / 14.8 + 0.25 / 2 is 0.18 of the step.",
        ),
    ),
    Question(
        key="eight",
        prompt="Batch normalisation, ReLU and pooling do little arithmetic on a lot of data. How much faster are they "
        "with 16-bit numbers?",
        choices=(
            Choice(
                key="a", text="not faster", below=1.2, feedback="They multiply no matrices, but they move fewer bytes."
            ),
            Choice(key="b", text="about twice as fast", below=2.6, feedback="Half the bytes, half the time."),
            Choice(
                key="c",
                text="eight times as fast",
                feedback="Only matrix products use tensor cores; these layers do not.",
            ),
        ),
        expected="b",
        explanation="The time of such a layer is the time to read and write its data. There are half as many bytes, "
        "and "
        "the memory bandwidth stays the same.",
        hints=(
            "What limits the speed of such a layer?",
            "Compare the bytes of one call in float32 and in bfloat16.",
            "A float32 number has 4 bytes, a 16-bit number 2, and these layers do little more than move them.",
        ),
    ),
    Question(
        key="joules",
        prompt="By the estimate, how does the energy of a step change from float32 to bfloat16?",
        choices=(
            Choice(key="a", text="it falls to less than half", below=0.5, feedback="The step is much shorter."),
            Choice(
                key="b",
                text="it falls a little",
                below=1.0,
                feedback="Even at full power, a fifth of the time needs far less energy.",
            ),
            Choice(
                key="c",
                text="it rises, because the chip works harder",
                feedback="The power limit holds for every kind of work.",
            ),
        ),
        expected="a",
        explanation="The power of a GPU is between its idle power and its power limit, whatever it computes. Both "
        "steps "
        "keep the GPU busy, so the time decides. The estimate does not know the power of tensor cores; a power meter "
        "does.",
        hints=(
            "Energy is power times time.",
            "Compare the change of the step time with the possible change of the power.",
            "The estimated power varies by less than a factor of 2; the time fell by a factor of 5.",
        ),
    ),
    Question(
        key="tiny",
        prompt="A network of six layers with widths of 16 and 32 trains on 4 samples at a time. How does autocast "
        "change "
        "the number of operators per step?",
        choices=(
            Choice(key="a", text="it falls", below=0.99, feedback="Autocast removes no operator."),
            Choice(
                key="b", text="it stays the same", below=1.05, feedback="Each weight must first be cast to 16 bits."
            ),
            Choice(key="c", text="it rises", feedback="Each cast is an operator of its own."),
        ),
        expected="c",
        explanation="Each weight is cast to 16 bits in the forward pass, and its gradient is cast back. Each cast is "
        "one "
        "more operator, and with kernels this small, the step time is launch time.",
        hints=(
            "Which data type do the weights have between steps?",
            "Count the operators named _to_copy.",
            "Every additional operator is a _to_copy.",
        ),
    ),
)
_MEMORY = (
    Question(
        key="half",
        prompt="Sixteen layers of Linear and GELU save their inputs for the backward pass. What share of these bytes "
        "remains under bfloat16 autocast?",
        choices=(
            Choice(key="a", text="less than half", below=0.4999, feedback="A 16-bit number needs 2 bytes, not fewer."),
            Choice(key="b", text="exactly half", below=0.5001, feedback="Each number takes 2 bytes instead of 4."),
            Choice(
                key="c",
                text="more than half",
                feedback="That is true if some results stay wider than 16 bits; here none does.",
            ),
        ),
        expected="b",
        explanation="Linear returns 16-bit results, and GELU uses them as they are. The number of saved values stays "
        "the "
        "same, with half the bytes each. The cast copies of the weights come on top.",
        hints=(
            "Which data type do Linear and GELU return?",
            "Compare the bytes of the tensors that have one row per sample.",
            "16 MiB before, 8 MiB after.",
        ),
    ),
    Question(
        key="batch",
        prompt="How much larger can the batch be under autocast, on a GPU with 24 GB?",
        choices=(
            Choice(key="a", text="hardly larger", below=1.1, feedback="Most of this memory holds activations."),
            Choice(
                key="b", text="1.1 to 1.9 times", below=1.9, feedback="A part of the memory per sample does not shrink."
            ),
            Choice(key="c", text="twice as large", feedback="For that, everything in the step would have to halve."),
        ),
        expected="b",
        explanation="Weights, gradients and Adam's optimizer state stay in float32, the indices that pooling saves are "
        "64-bit integers, and the inputs are float32.",
        hints=(
            "List what is in memory. Which parts become smaller?",
            "Compare the bytes per sample, and the bytes that do not depend on the batch size.",
            "200 KiB per sample become 118, not 100.",
        ),
    ),
)
_RANGE = (
    Question(
        key="zeros",
        prompt="The loss is a mean over 262,144 pixels, of which few are defects. How many of the float16 gradients "
        "with "
        "respect to the outputs are zero?",
        choices=(
            Choice(key="a", text="hardly any", below=0.1, feedback="Each is a small number divided by 262,144."),
            Choice(
                key="b", text="about half", below=0.9, feedback="All pixels without a defect have the same gradient."
            ),
            Choice(key="c", text="almost all", feedback="0.005 / 262,144 is below the smallest float16 number."),
        ),
        expected="c",
        explanation="In float16, everything below 0.00000003 becomes zero. Only the few pixels with a defect have "
        "larger "
        "gradients, so the model learns from defects and from nothing else.",
        hints=(
            "Calculate one gradient: the predicted probability, divided by the number of pixels.",
            "Compare it with the smallest float16 number, 6e-8; values above half of it round up to it.",
            "0.005 / 262,144 is 1.9e-8.",
        ),
    ),
    Question(
        key="master",
        prompt="A float16 weight of 1.0 is decreased by 0.0001 a thousand times. What is its final value?",
        choices=(
            Choice(key="a", text="0.9", below=0.91, feedback="That is the result in float32."),
            Choice(
                key="b",
                text="between 0.9 and 1.0",
                below=0.999,
                feedback="All steps have the same result as the first.",
            ),
            Choice(key="c", text="1.0", feedback="Every step is rounded away."),
        ),
        expected="c",
        explanation="Just below 1.0, float16 numbers are 0.0005 apart. A step of less than half of that is rounded "
        "back "
        "to 1.0, however often you repeat it.",
        hints=(
            "What is the next float16 number below 1.0?",
            "Compare the step, 0.0001, with half of that distance.",
            "The next number is 1 - 0.00049; 1 - 0.0001 is closer to 1.0.",
        ),
    ),
    Question(
        key="soft",
        prompt="You compute softmax of 3 and 12 as exp(x) / exp(x).sum() in float16. What is the result?",
        choices=(
            Choice(key="a", text="0.0001 and 0.9999", feedback="That is the result in float32."),
            Choice(key="b", text="0 and 1", feedback="exp(12) is 162,755, but the largest float16 number is 65,504."),
            Choice(key="c", text="0 and nan", feedback="Infinity divided by infinity is not a number."),
        ),
        right="c",
        explanation="exp(12) overflows to inf, and so does the sum. 20 / inf is 0, inf / inf is nan, and nan spreads.",
        hints=(
            "Calculate exp(12), and look up the largest float16 number.",
            "Follow inf through the sum and the division.",
            "162,755 is more than 65,504: inf, then inf / inf.",
        ),
    ),
    Question(
        key="resume",
        prompt="A float16 run resumes from a checkpoint that contains the model and the optimizer, but not the scaler. "
        "What happens?",
        choices=(
            Choice(
                key="a", text="nothing: the scaler has no state", feedback="Its state is the scale and a step counter."
            ),
            Choice(key="b", text="the scale starts again", feedback="It starts at 65,536 and has to adapt again."),
            Choice(
                key="c", text="loading raises an error", feedback="Nothing checks for a state that was never saved."
            ),
        ),
        right="b",
        explanation="The scaler finds the scale by trial and error. Without its state, the resumed run differs from "
        "the "
        "interrupted one, and no message says so.",
        hints=(
            "Print scaler.state_dict().",
            "Compare the scale at the end of both runs.",
            'The important line is scaler.load_state_dict(saved["scaler"]).',
        ),
    ),
)
_TRANSFER = (
    Question(
        key="keras",
        prompt="What takes the place of the float32 master weights under Keras' policy mixed_float16?",
        choices=(
            Choice(key="a", text="the variables, which are float32", feedback="They are cast each time they are used."),
            Choice(key="b", text="the compute dtype of the layers", feedback="that is float16."),
            Choice(
                key="c", text="the scaler around the optimizer", feedback="it protects small gradients, not weights."
            ),
        ),
        right="a",
        explanation="A policy sets two types: one for computing, one for variables. autocast does the same: the "
        "parameters keep the type in which they were created.",
        hints=(
            "To which copy of the weights does the optimizer apply its updates?",
            "A policy has compute_dtype and variable_dtype.",
            "variable_dtype is float32.",
        ),
    ),
    Question(
        key="transfer",
        prompt="A float16 run with a GradScaler worked well for 1,800 steps. Since then, the scale has halved in every "
        "step and is now 0.001; every step is skipped; the loss before scaling is nan. What is wrong, and what do you "
        "do first?",
        choices=(
            Choice(
                key="a",
                text="gradients underflow: start with a larger scale",
                feedback="underflow gives zeros, and zeros do not skip a step.",
            ),
            Choice(
                key="b",
                text="the forward pass overflows: find the first layer whose output is not finite, and run it in "
                "float32 or bfloat16",
                feedback="Scaling the loss cannot change what happened before it.",
            ),
            Choice(
                key="c",
                text="this is how dynamic scaling works: wait",
                feedback="the scale normally halves once or twice, until the gradients fit; below 1 it no longer "
                "helps.",
            ),
        ),
        right="b",
        explanation="The decisive counter is the loss before scaling, which is not finite. If only the scaled "
        "gradients "
        "overflowed, the loss itself would be finite, and the scale would settle.",
        hints=(
            "Was the loss already scaled when the first nan appeared?",
            "The loss before scaling is nan.",
            "Scaling multiplies the loss; the forward pass is finished by then.",
        ),
    ),
)

LESSON = Lesson(
    id="08_mixed_precision",
    title="Mixed precision",
    question="what does half precision speed up, and what does it break?",
    minutes=50,
    budget_s=60,
    level=2,
    without_gpu="times, kernels and energy come from a virtual GPU; bytes, gradients and scales are real, on the CPU",
    prerequisites=("01_what_is_utilisation",),
    outcomes=(
        "read from a report whether half precision can help, and say by how much it helps each kind of layer",
        "predict how much memory autocast saves, and which parts it does not reduce",
        "demonstrate underflow, overflow and lost updates by counting them, and name the fix for each",
        "write a float16 loop that can be interrupted and resumed, and say when bfloat16 makes this unnecessary",
    ),
    symptom="The GPU is never idle, but the step is slow: its matrix products run in float32.",
    signature="A timeline without gaps; matrix kernels named sgemm or f32 take most of the step, on a GPU with tensor "
    "cores.",
    fix="torch.autocast in bfloat16, or TF32 if you may change only one line; float16 with a GradScaler on GPUs before "
    "Ampere.",
    limits="The GPU waits, the layers are tiny, or the weights rather than the activations fill the memory.",
    experiments=(
        LessonExperiment(number="08.1", description="float32, TF32, bfloat16 and float16"),
        LessonExperiment(number="08.2", description="bytes saved for the backward pass, in float32 and bfloat16"),
        LessonExperiment(number="08.3", description="float16 without and with loss scaling, and how the scale adapts"),
        LessonExperiment(number="08.4", description="softmax, sum and root mean square in float16 and in float32"),
        LessonExperiment(number="08.5", description="a deprecated autocast snippet, and one that resumes correctly"),
        LessonExperiment(number="08.6", description="memory-bound layers and matrix products in half precision"),
        LessonExperiment(number="08.7", description="joules per step in float32 and bfloat16"),
        LessonExperiment(number="08.8", description="a tiny model without and with autocast"),
        LessonExperiment(number="08.9", description="the largest batch in float32 and with autocast"),
        LessonExperiment(
            number="08.10", description="direct updates of float16 weights, and updates of float32 master weights"
        ),
        LessonExperiment(number="08.11", description="autocast in PyTorch and a policy in Keras"),
    ),
    questions=(*_FASTER, *_MEMORY, *_RANGE, *_TRANSFER),
    targets=(
        Target(
            key="normalise",
            unit="32-bit numbers written",
            value=1024,
            hints=(
                "Only one number per row has to be 32 bits wide: the sum of its squares.",
                "Compare x.float(), which writes 262,144 numbers, with one norm per row, 256 numbers.",
                "torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32) sums in float32.",
            ),
        ),
    ),
)
