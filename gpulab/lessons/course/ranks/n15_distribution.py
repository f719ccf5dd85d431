"""Lesson 15: what several GPUs cost, and when they help."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_COSTS = (
    Question(
        key="small",
        prompt="Two ranks all-reduce 4 KiB, and then 64 KiB, 16 times as much. How much longer does the second take?",
        choices=(
            Choice(
                key="a",
                text="about as long: less than 3 times",
                below=3,
                feedback="Both are so small that the latency of the messages decides.",
            ),
            Choice(key="b", text="3 to 12 times", below=12, feedback="Only if the bytes took most of the time."),
            Choice(key="c", text="16 times", feedback="That holds for large messages, which the bandwidth limits."),
        ),
        expected="a",
        explanation="A message costs a latency and its bytes over the bandwidth. For small ones the latency is nearly "
        "all of it, so a few large all-reduces are better than many small ones.",
        hints=(
            "Which part of the cost does not depend on the size?",
            "Look at the left end of the measured line.",
            "Divide the measured times of 65,536 and 4,096 bytes.",
        ),
    ),
    Question(
        key="scaling",
        prompt="A step computes for 100 ms on one GPU. With 64 ranks, the ring all-reduce of the gradients takes about "
        "67 ms. How efficient are 64 ranks if the global batch stays the same (strong scaling)?",
        choices=(
            Choice(key="a", text="about 60 %", feedback="That is weak scaling: 100 ms of compute, 67 ms of exchange."),
            Choice(key="b", text="about 25 %", feedback="Each rank computes for 100 / 64 ms only."),
            Choice(key="c", text="less than 3 %", feedback="1.6 ms of compute, and still 67 ms of exchange."),
        ),
        right="c",
        explanation="Strong scaling divides the arithmetic by the ranks. The gradients have the size of the model, "
        "whatever the batch is, so the exchange does not shrink.",
        hints=(
            "Which of the two parts of a step does a smaller batch per rank shorten?",
            "Divide 100 ms by 64, and compare with the exchange.",
            "1.6 / (1.6 + 66.8) is 2.3 %.",
        ),
    ),
    Question(
        key="buckets",
        prompt="A model has 8 MiB of gradients, and `bucket_cap_mb=25`. What share of the gradients is ready when the "
        "first all-reduce starts?",
        choices=(
            Choice(key="a", text="an eighth", below=0.2, feedback="That needs a bucket per layer."),
            Choice(key="b", text="about half", below=0.75, feedback="A bucket is sent when it is full, or at the end."),
            Choice(key="c", text="all of them", feedback="They fit into one bucket, which is full at the end only."),
        ),
        expected="c",
        explanation="A model that is smaller than a bucket has one bucket, which is complete with the last gradient. "
        "Then no backward pass is left to hide the all-reduce.",
        hints=(
            "How many buckets of 25 MiB do 8 MiB of gradients fill?",
            "See the last column of the table.",
            "One bucket, complete at the end.",
        ),
    ),
    Question(
        key="compress",
        prompt="The largest weight has 256 x 256 numbers. PowerSGD of rank 2 sends two matrices of 256 x 2 for it. "
        "What share of the bytes of all gradients is sent?",
        choices=(
            Choice(key="a", text="less than 5 %", below=0.05, feedback="1,024 numbers instead of 65,536 for it."),
            Choice(key="b", text="5 to 30 %", below=0.3, feedback="That needs a much higher rank."),
            Choice(key="c", text="about half", feedback="That is float16."),
        ),
        expected="a",
        explanation="A matrix of m x n becomes (m + n) x rank numbers. What the thin product leaves out is added to "
        "the next gradient (error feedback), so it is late rather than lost.",
        hints=(
            "How many numbers do two matrices of 256 x 2 have?",
            "Compare the bytes of the last steps.",
            "1,024 of 65,536 for the large weight, and a little for the others.",
        ),
    ),
    Question(
        key="slow",
        prompt="One of four ranks needs 80 ms longer for its work. In which rank's recording does the all-reduce take "
        "the most time?",
        choices=(
            Choice(key="a", text="in that of the slow rank", feedback="It arrives last, so it waits for nobody."),
            Choice(key="b", text="in those of the three others", feedback="They wait in the all-reduce."),
            Choice(key="c", text="equal in all four", feedback="All leave together, but do not arrive together."),
        ),
        right="b",
        explanation="An all-reduce ends on all ranks at about the same time, when the last one has arrived and the "
        "data are exchanged. The time before is waiting, but profilers count it as communication.",
        hints=(
            "When can an all-reduce end?",
            "Compare when ranks arrive and when they leave.",
            "The last rank to arrive does not wait.",
        ),
    ),
    Question(
        key="accumulate",
        prompt="Four micro-batches are accumulated with DDP, without `no_sync()`. How many all-reduces does an update "
        "of this small model make?",
        choices=(
            Choice(key="a", text="1", below=2, feedback="DDP does not know which backward pass is the last."),
            Choice(key="b", text="4", below=5, feedback="One in each backward pass."),
            Choice(key="c", text="16", feedback="The model fits into one bucket."),
        ),
        expected="b",
        explanation="DDP exchanges in each backward pass outside no_sync(). The result is the same either way, because "
        "the mean over ranks of a sum is the sum of the means.",
        hints=(
            "What starts the all-reduce of DDP?",
            "Read the score with the starter.",
            "One for each backward pass.",
        ),
    ),
)
_ORGANISATION = (
    Question(
        key="split",
        prompt="A block has 128 KiB of weights; its input and its output have 8 KiB, the hidden activations 32 KiB. "
        "Which split sends the fewest bytes per step on two ranks?",
        choices=(
            Choice(key="a", text="data parallel", feedback="It sends as many bytes as the weights have: 128 KiB."),
            Choice(key="b", text="tensor parallel", feedback="Twice the size of the input: 16 KiB."),
            Choice(key="c", text="fully sharded", feedback="It gathers the weights twice and scatters gradients once."),
        ),
        right="b",
        explanation="The split decides whether messages have the size of weights or of activations. With few rows, "
        "activations are small. Tensor parallelism sends more with each row, data parallelism does not.",
        hints=(
            "Which of them send weights or gradients, which activations?",
            "Compare the column of bytes sent per step.",
            "2 x 8 KiB, against 128 and 384 KiB.",
        ),
    ),
    Question(
        key="stale",
        prompt="A model trains for 300 updates. Each gradient was computed at the weights of 15 updates ago. How does "
        "the final loss compare with that of fresh gradients?",
        choices=(
            Choice(key="a", text="about equal", below=1.2, feedback="An age of 3 is nearly harmless here, 15 is not."),
            Choice(key="b", text="up to twice", below=2, feedback="It is more than that at this learning rate."),
            Choice(key="c", text="more than twice", feedback="Old gradients overshoot."),
        ),
        expected="c",
        explanation="A gradient describes the slope at the old weights. The more updates lie between, and the larger "
        "their steps, the less it fits. A lower learning rate makes old gradients less harmful.",
        hints=(
            "How far do the weights move in 15 updates?",
            "Compare the first and the last line of the table.",
            "0.47 against 0.07.",
        ),
    ),
    Question(
        key="order",
        prompt="Devices 0 to 3 are in one host, 4 to 7 in another. A ring has the order 0, 4, 1, 5, 2, 6, 3, 7. How "
        "many bytes does it send between the hosts, compared with the order 0 to 7?",
        choices=(
            Choice(key="a", text="equally many", below=1.5, feedback="Count how often each ring crosses."),
            Choice(key="b", text="twice as many", below=3, feedback="Two is how often the ring 0 to 7 crosses."),
            Choice(key="c", text="four times as many", feedback="8 crossings instead of 2."),
        ),
        expected="c",
        explanation="Each device of a ring sends 2 (N - 1) / N times the data to the next one. The order decides how "
        "many of these messages cross between the hosts.",
        hints=(
            "Draw both rings, and mark the arrows that go from one host to the other.",
            "Compare the third column.",
            "8 crossings against 2: from 3 to 4, and from 7 to 0.",
        ),
    ),
    Question(
        key="primitives",
        prompt="Four ranks add their tensors: by send and receive, with rank 0 as the one that adds, or by a ring "
        "all-reduce. How many bytes does rank 0 send in the first case, compared with a rank of the ring?",
        choices=(
            Choice(key="a", text="equally many", below=1.5, feedback="Rank 0 sends the whole sum to each other rank."),
            Choice(key="b", text="twice as many", below=3, feedback="3 times the data, against 2 x 3 / 4 times."),
            Choice(key="c", text="four times as many", feedback="A rank of the ring sends more than its own part."),
        ),
        expected="b",
        explanation="Rank 0 sends the data to N - 1 ranks while the links between the others are idle. In a ring, all "
        "links work at the same time, and no rank sends more than twice the data, however many ranks there are.",
        hints=(
            "To how many ranks does rank 0 send the sum?",
            "Compare the last column of the table.",
            "3 against 2 x (4 - 1) / 4 = 1.5 times the data.",
        ),
    ),
    Question(
        key="record",
        prompt="Rank 1 sleeps for 100 ms in each step. You look at the recording of rank 0 only. What does it show?",
        choices=(
            Choice(key="a", text="slow communication", feedback="Rank 0 spends its time in the all-reduce, waiting."),
            Choice(key="b", text="slow Python code", feedback="That is on rank 1."),
            Choice(key="c", text="nothing unusual", feedback="Its step is as long as that of rank 1."),
        ),
        right="a",
        explanation="The recording of a single rank cannot distinguish the exchange from waiting for another rank. "
        "Only the recordings of all ranks show who arrives last.",
        hints=(
            "Where is rank 0 while rank 1 sleeps?",
            "Read the first printed line.",
            "In the all-reduce.",
        ),
    ),
    Question(
        key="launch",
        prompt="A script calls `init_process_group('gloo')`. What happens if you start it with `python train.py`?",
        choices=(
            Choice(
                key="a", text="it trains alone, as rank 0 of 1", feedback="It does not assume that there is one rank."
            ),
            Choice(
                key="b",
                text="it waits for the other ranks",
                feedback="It would, with WORLD_SIZE=2 and an address. It knows neither.",
            ),
            Choice(key="c", text="it fails", feedback="RANK is not set: the process does not know which rank it is."),
        ),
        right="c",
        explanation="init_process_group() reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment. A "
        "launcher such as torchrun sets them in each process that it starts.",
        hints=(
            "How does a process know which rank it is?",
            "Read the last column of the table.",
            "RANK expected, but not set",
        ),
    ),
    Question(
        key="transfer",
        prompt="A model of 700 million parameters trains with DDP in float32 on 8 GPUs, each with a link of 12.5 GB/s. "
        "The backward pass takes 200 ms, a step 460 ms. No rank is late, and buckets have 25 MiB. Which change "
        "shortens the time per sample most?",
        choices=(
            Choice(
                key="a",
                text="buckets of 5 MiB",
                feedback="The link is busy for about 390 ms. Smaller buckets only let it start a few ms earlier.",
            ),
            Choice(key="b", text="static_graph=True", feedback="The bytes stay the same."),
            Choice(
                key="c",
                text="accumulate 4 micro-batches with no_sync()",
                feedback="One exchange for four times the samples: its exposed part is a quarter per sample.",
            ),
            Choice(
                key="d",
                text="16 GPUs for the same global batch",
                feedback="Then each rank computes half, but sends slightly more than before.",
            ),
        ),
        right="c",
        explanation="2 x 7/8 x 2.8 GB over 12.5 GB/s are 392 ms, longer than the backward pass, so overlap cannot "
        "hide it. Exchange less often, or fewer bytes: bf16_compress_hook halves them. The global batch grows "
        "fourfold with accumulation: check the learning rate (notebook 04).",
        hints=(
            "Calculate the ring all-reduce of 2.8 GB.",
            "Compare it with the backward pass that could hide it.",
            "392 ms against 200 ms: only fewer bytes per sample help.",
        ),
    ),
)

LESSON = Lesson(
    id="15_distribution",
    title="Distribution",
    question="what do several GPUs cost, and when do they help?",
    minutes=60,
    budget_s=90,
    level=3,
    without_gpu="ranks are real processes on this CPU, joined by gloo; 64 ranks and the overlap are models",
    prerequisites=("03_parallel_work_and_batch", "10_memory_savers"),
    outcomes=(
        "calculate the time of a ring all-reduce, and how well a job scales to 64 ranks",
        "choose buckets, compression and accumulation, and count what each one saves",
        "find the rank that makes all others wait",
        "split a layer over two ranks with the same gradients, and count the messages of four splits",
    ),
    symptom="Twice the GPUs, and hardly more samples per second.",
    signature="The time of all ranks between their arrival at a collective and its end: waiting for the last rank, or "
    "the exchange itself.",
    fix="Repair the late rank. Then overlap (buckets), exchange less often (no_sync, larger batches per rank) or fewer "
    "bytes (hooks).",
    limits="The exchange takes longer than the backward pass: overlap cannot hide it. The global batch cannot grow: "
    "strong scaling ends early.",
    experiments=(
        LessonExperiment(number="15.1", description="all-reduces of 2 and 4 ranks; weak and strong scaling to 64"),
        LessonExperiment(number="15.2", description="one bucket at the end, and buckets that overlap"),
        LessonExperiment(number="15.3", description="gradients as float32, as float16, and by PowerSGD"),
        LessonExperiment(number="15.4", description="one slow rank of four"),
        LessonExperiment(number="15.5", description="data, pipeline, tensor and fully sharded on one model"),
        LessonExperiment(number="15.6", description="accumulation without and with no_sync()"),
        LessonExperiment(number="15.7", description="a script with python alone, and with torchrun"),
        LessonExperiment(number="15.8", description="synchronous and asynchronous SGD, and a gossip ring"),
        LessonExperiment(number="15.9", description="ring, tree and hierarchy; a bad and a good order of devices"),
        LessonExperiment(
            number="15.10", description="an all-reduce from two primitives of NCCL; published rates of links"
        ),
        LessonExperiment(number="15.11", description="the recordings of two ranks, read alone and together"),
    ),
    questions=(*_COSTS, *_ORGANISATION),
    targets=(
        Target(
            key="exchanges",
            unit="all-reduces for an update of 4 micro-batches",
            value=1,
            hints=(
                "In which of the four backward passes is the exchange needed?",
                "Both the forward and the backward pass must be inside model.no_sync().",
                "with nullcontext() if is_last else model.no_sync():",
            ),
        ),
    ),
)
