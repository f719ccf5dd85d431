"""Lesson 04: what a large batch does to training, how to make it work, and from which size on it no longer helps."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_QUALITY = (
    Question(
        key="accuracy",
        prompt="The batch grows from 32 to 1,024 images. Learning rate and number of epochs stay the same. How much "
        "test accuracy does the model lose?",
        choices=(
            Choice(
                key="a",
                text="less than 2 points",
                below=0.02,
                feedback="It processes the same samples. How often does it update the weights?",
            ),
            Choice(key="b", text="2 to 10 points", below=0.1, feedback="It makes 64 updates instead of 2,048."),
            Choice(key="c", text="more than 10 points", feedback="It makes 64 updates instead of 2,048."),
        ),
        expected="c",
        explanation="Both runs process the same samples, but the large batch makes 1/32 of the updates, and at the "
        "same learning rate an update is not longer. The weights do not get far.",
        hints=(
            "What changes the weights: a sample or an update?",
            "Count the updates of both runs.",
            "8 epochs of 8,192 samples: 8 * 8192 / 32 and 8 * 8192 / 1024 updates.",
        ),
    ),
    Question(
        key="linear",
        prompt="The batch is 32 times as large, so you make the learning rate 32 times as large, from the first "
        "update on. What does the training loss do?",
        choices=(
            Choice(
                key="a",
                text="falls as with batch 32, in 1/32 of the updates",
                below=2,
                feedback="That assumes that the gradient hardly changes during 32 small updates. At first it changes.",
            ),
            Choice(
                key="b",
                text="rises at first, to at most 5 times its first value",
                below=5,
                feedback="The direction is right; the rise is larger.",
            ),
            Choice(
                key="c",
                text="rises to more than 5 times its first value",
                feedback="A long update overshoots the minimum along its direction, and the loss rises.",
            ),
        ),
        expected="c",
        explanation="The linear rule replaces 32 updates by one that is 32 times as long. This works while the "
        "gradient hardly changes over that distance. At the start, the loss of this network is strongly curved, so a "
        "long update overshoots.",
        hints=(
            "When is one long step the same as 32 short ones?",
            "Compare the largest loss with the first one.",
            "max(losses) / losses[0], without warm-up.",
        ),
    ),
    Question(
        key="sharp",
        prompt="Two models stop at the same training loss: one trained with batch 32, one with batch 1,024, at the "
        "same learning rate. Articles say that large batches end in sharp minima and generalise worse. By how much "
        "does the test accuracy differ here?",
        choices=(
            Choice(key="a", text="less than 2 points", below=0.02, feedback="In 04.1, it was the number of updates."),
            Choice(
                key="b",
                text="2 to 10 points",
                below=0.1,
                feedback="That would be a large effect for models of the same training loss.",
            ),
            Choice(key="c", text="more than 10 points", feedback="That was 04.1, where the training loss differed."),
        ),
        expected="a",
        explanation="The model of the large batch is more sensitive to noise on its weights, so the minimum is "
        "sharper in this sense. The test accuracy is nearly the same: on this data, sharpness explains almost nothing "
        "of what was lost in 04.1.",
        hints=(
            "What did the two runs of 04.1 differ in, apart from the batch?",
            "Compare test accuracies at the same training loss.",
            "Both models were trained until the loss on all training images was 0.2.",
        ),
    ),
    Question(
        key="noise",
        prompt="The gradient noise scale says from which batch size on the average of a batch is mostly signal. How "
        "does it change from the first update to the last one?",
        choices=(
            Choice(
                key="a",
                text="it falls",
                below=1,
                feedback="Late in training, the gradients of different samples cancel.",
            ),
            Choice(
                key="b",
                text="it grows, but less than 10 times",
                below=10,
                feedback="The direction is right.",
            ),
            Choice(
                key="c",
                text="it grows more than 10 times",
                feedback="The squared mean gradient shrinks far more than the variance.",
            ),
        ),
        expected="c",
        explanation="At the start, all samples pull the weights in a similar direction. Later, those "
        "that are still classified wrongly pull in different directions: the mean gradient becomes small, and the "
        "noise shrinks less. So a batch that is too "
        "large at the start can be right at the end.",
        hints=(
            "What happens to the mean gradient when the loss gets small?",
            "Compare the first and the last row of the table.",
            "noise scale = variance / squared norm of the mean gradient.",
        ),
    ),
)
_COST = (
    Question(
        key="fastest",
        prompt="Batch sizes from 8 to 2,048, each with a suitable learning rate. The largest one processes the most "
        "samples per second. How long does it need to reach 88 % accuracy, compared with the fastest of the five?",
        choices=(
            Choice(
                key="a",
                text="it is the fastest",
                below=1.01,
                feedback="Samples per second are not progress. How many samples does it need?",
            ),
            Choice(
                key="b",
                text="up to twice as long",
                below=2,
                feedback="Compare its number of updates with that of batch 128.",
            ),
            Choice(key="c", text="more than twice as long", feedback="It needs far more samples."),
        ),
        expected="c",
        explanation="Beyond the critical batch size, a larger batch saves hardly any updates, but each update costs "
        "more. Samples per second still rise, and the number of samples rises faster.",
        hints=(
            "Which two numbers do you multiply to get the time?",
            "Compare the updates of batch 512 and batch 2,048.",
            "time = updates * batch / samples per second.",
        ),
    ),
    Question(
        key="accumulate",
        prompt="Memory has room for 100 images. You accumulate the gradients of 11 parts, and update after 1,024 "
        "images. How does the accuracy after 8 epochs compare with that of a real batch of 1,024?",
        choices=(
            Choice(
                key="a",
                text="higher: each part is a small batch",
                feedback="The weights do not change between the parts.",
            ),
            Choice(key="b", text="equal", feedback="It is the same gradient, so it is the same update."),
            Choice(
                key="c",
                text="lower: averaging parts loses information",
                feedback="A mean of parts, weighted by their size, is the mean.",
            ),
        ),
        right="b",
        explanation="Gradient accumulation computes the gradient of the large batch in less memory. It makes as few "
        "updates as the large batch, and so loses the same accuracy.",
        hints=(
            "Between which lines of code do the weights change?",
            "Count the updates.",
            "One optimizer.step() per 1,024 images.",
        ),
    ),
    Question(
        key="adam",
        prompt="With Adam, 0.004 is a good learning rate at batch 32. Which rule gives a good one at batch 1,024?",
        choices=(
            Choice(
                key="a",
                text="the linear rule: 32 times the rate",
                feedback="Adam divides by the size of gradients. Averaging makes noisy gradients smaller, and Adam "
                "makes them larger again.",
            ),
            Choice(key="b", text="the same rate", feedback="Then 1/32 of the updates go less far."),
            Choice(
                key="c",
                text="the square root rule: 5.7 times the rate",
                feedback="It follows how noise averages out.",
            ),
        ),
        right="c",
        explanation="Adam divides the gradient by the square root of its mean square. If the gradient is mostly noise, "
        "a batch that is 32 times as large makes this divisor smaller by the square root of 32, so an update goes "
        "further along the mean gradient by this factor, even at the same rate. The square root rule adds the same "
        "factor again: together, 32.",
        hints=(
            "What does Adam divide the gradient by?",
            "How does the noise of a mean shrink with the number of samples?",
            "32 ** 0.5 is 5.7.",
        ),
    ),
    Question(
        key="busy",
        prompt="This small model leaves a large GPU idle for 90 % of a step. Batch 2,048 instead of 128 raises "
        "the samples per second more than tenfold. How much sooner does training reach 88 %?",
        choices=(
            Choice(
                key="a",
                text="ten times as soon",
                feedback="It would, if training needed no more samples than before.",
            ),
            Choice(
                key="b",
                text="less than twice as soon",
                feedback="It needs almost as many updates, and each takes about as long as before.",
            ),
            Choice(key="c", text="later", feedback="A step takes about as long as before, and it needs no more steps."),
        ),
        right="b",
        explanation="Batch 128 is already beyond the critical batch size, so more samples per update save few "
        "updates. What helps is a shorter step: fewer or cheaper launches.",
        hints=(
            "How many updates do both need?",
            "Compare step times and updates in the table.",
            "time = updates * step time.",
        ),
    ),
)
_TRANSFER = (
    Question(
        key="transfer",
        prompt="A team trains on 8 GPUs, with 256 samples per GPU and update. They move to 64 GPUs and keep 256 "
        "samples per GPU. Samples per second grow 7.5 times. They scale the learning rate with warm-up, and the loss "
        "curve is stable. Still, the target training loss is reached only 1.9 times as soon. The noise scale that they "
        "log is about 3,000. What explains this?",
        choices=(
            Choice(
                key="a",
                text="The exchange of gradients is too slow.",
                feedback="Then samples per second would not have grown 7.5 times.",
            ),
            Choice(
                key="b",
                text="The learning rate is too high.",
                feedback="The loss curve is stable, and the noise scale tells you more.",
            ),
            Choice(
                key="c",
                text="Sharp minima: the large batch generalises worse.",
                feedback="The target is a training loss, which says nothing about generalisation.",
            ),
            Choice(
                key="d",
                text="The batch of 16,384 is far above the critical batch size.",
                feedback="It was 2,048, below the noise scale; now it is more than five times the noise scale.",
            ),
        ),
        right="d",
        explanation="The number of updates falls roughly as 1 + noise scale / batch: from 2.5 to 1.2 times its "
        "minimum, while an update takes 8 / 7.5 times as long: 2.08 / 1.07 is 1.95. Use 64 GPUs with fewer "
        "samples each, for a larger model, or for several runs at once.",
        hints=(
            "Multiply: how large was the batch before, and how large is it now?",
            "Compare both with the noise scale.",
            "8 * 256 = 2,048 and 64 * 256 = 16,384.",
        ),
    ),
)

LESSON = Lesson(
    id="04_large_batches",
    title="Large batches and quality",
    question="when does a larger batch make training faster, and when only samples per second?",
    minutes=45,
    budget_s=90,
    level=2,
    without_gpu="all models train on this CPU; one experiment adds step times of a virtual GPU",
    prerequisites=("03_parallel_work_and_batch",),
    outcomes=(
        "explain by the number of updates why accuracy falls with a larger batch, and show it",
        "scale the learning rate with the batch, and choose warm-up, LARS or Adam when the linear rule fails",
        "estimate the gradient noise scale from two batch sizes, and the critical batch size from training runs",
        "choose the batch by time to accuracy instead of samples per second",
    ),
    symptom="A larger batch raised samples per second, but the model is worse after the same epochs, or needs as long "
    "as before to become as good.",
    signature="Fewer updates at the same learning rate. Beyond the critical batch size: as many updates as with a "
    "smaller batch.",
    fix="Scale the learning rate (linear for SGD, square root for Adam), with warm-up. Stay near the critical batch "
    "size, and choose by time to accuracy.",
    limits="The batch is already beyond the critical batch size: more samples per update save no updates. Then make "
    "the step shorter instead.",
    experiments=(
        LessonExperiment(number="04.1", description="batch 32 and 1,024: the same epochs, the same updates"),
        LessonExperiment(number="04.2", description="the linear rule, warm-up, and LARS"),
        LessonExperiment(number="04.3", description="sharpness by weight noise, and the gradient noise scale"),
        LessonExperiment(number="04.4", description="samples per second and time to accuracy"),
        LessonExperiment(number="04.5", description="90 % with batch 512 in few epochs"),
        LessonExperiment(number="04.6", description="gradient accumulation in unequal parts"),
        LessonExperiment(number="04.7", description="Adam: the square root rule and the linear rule"),
        LessonExperiment(number="04.8", description="an idle GPU: a larger batch or a shorter step"),
    ),
    questions=(*_QUALITY, *_COST, *_TRANSFER),
    targets=(
        Target(
            key="epochs",
            unit="epochs with batch 512 until 90 % accuracy, in the slowest of three runs",
            value=3,
            hints=(
                "How many updates has an epoch, and how far does one go?",
                "SGD at a higher rate needs a warm-up; momentum, Adam and LARS go further per update.",
                "Try Adam with 0.004 times the square root of 512 / 32, or Lars with 0.01.",
            ),
        ),
    ),
)
