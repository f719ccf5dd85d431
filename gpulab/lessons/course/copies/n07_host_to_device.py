"""Lesson 07: copies from host memory to the GPU, and what makes the host wait for the GPU."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

LESSON = Lesson(
    id="07_host_to_device",
    title="Host to device",
    question="is the GPU computing, or waiting for copies?",
    minutes=45,
    budget_s=60,
    level=2,
    without_gpu="a virtual H100 estimates copy times; counts, orders and sums are the same on every machine",
    prerequisites=("01_what_is_utilisation",),
    outcomes=(
        "read from a report whether copies slow a loop down, and whether they come from pageable or pinned memory",
        "choose where to pin a batch, and predict the time of a copy from its size",
        "overlap copies with compute, and predict the step time: the longer of the two",
        "find the lines of a loop that make the host wait, and read values only as often as necessary",
        "fetch results without blocking, and know when it is safe to read them",
    ),
    symptom="The GPU computes for a small part of each step; H2D copies, or waits for the GPU, fill the rest.",
    signature="Copies that overlap with no kernel, their GB/s, and Pageable or Pinned in their names; for waits, the "
    "number of cudaStreamSynchronize calls per step.",
    fix="Pin memory in the DataLoader, prefetch batches on a separate stream, send a few large copies, and read values "
    "rarely.",
    limits="The copies are hidden or short: then pinning gains nothing. If copying takes longer than computing, only "
    "fewer bytes help.",
    experiments=(
        LessonExperiment(number="07.1", description="copies from pageable and from pinned memory, from 4 KB to 1 GB"),
        LessonExperiment(number="07.2", description="a batch pinned in the loop, and one pinned by the loader"),
        LessonExperiment(number="07.3", description="copy and compute one after the other, and overlapped"),
        LessonExperiment(number="07.4", description="a value read in every step, and in every hundredth step"),
        LessonExperiment(number="07.5", description="a thousand small copies, and two packed ones"),
        LessonExperiment(number="07.6", description="results read too early, and after a synchronisation"),
        LessonExperiment(
            number="07.7", description="a PCIe link with a quarter of its lanes, and a process on the wrong socket"
        ),
    ),
    questions=(
        Question(
            key="share",
            prompt="In each step, a batch of 134 MB is copied to the GPU. The GPU multiplies it by an 8192 x 8192 "
            "matrix "
            "and computes the gradients. What share of a step does the copy take?",
            choices=(
                Choice(
                    key="a",
                    text="less than a fifth",
                    below=0.2,
                    feedback="The matrix product is large, but the GPU is very fast at it.",
                ),
                Choice(
                    key="b",
                    text="about half",
                    below=0.6,
                    feedback="It takes more: the link is far slower than the GPU.",
                ),
                Choice(
                    key="c", text="most of it", feedback="A GPU computes much faster than the link delivers numbers."
                ),
            ),
            expected="c",
            explanation="In the time the link needs for one number from pageable memory, the GPU could do about a "
            "hundred "
            "thousand multiplications; here it does 16,384 per number.",
            hints=(
                "Compare two times: bytes divided by bytes per second, and operations divided by operations per "
                "second.",
                "See 'exposed copies' under 'Where the step time goes' in the report.",
                "134 MB at 7 GB/s take 19 ms; 2.2 TFLOP at half of a peak of 990 TFLOP/s take 4.4 ms.",
            ),
        ),
        Question(
            key="knee",
            prompt="A copy has a fixed start-up time, plus a time per byte. What is the smallest copy from pinned "
            "memory "
            "that reaches half of the link's best rate?",
            choices=(
                Choice(key="a", text="4 KB", below=20e3, feedback="4 KB take the link less than 0.1 us."),
                Choice(
                    key="b",
                    text="64 KB to 16 MB",
                    below=20e6,
                    feedback="In this range, the start-up takes as long as the transfer.",
                ),
                Choice(
                    key="c",
                    text="64 MB or more",
                    feedback="64 MB take more than 1 ms to transfer, and a few us to start.",
                ),
            ),
            expected="b",
            explanation="A copy reaches half of the best rate when the start-up takes as long as the transfer. The "
            "start-up takes 10 to 20 us, in which a link of 50 GB/s transfers 0.5 to 1 MB. The sizes in this table "
            "differ by factors of four.",
            hints=(
                "For which size does the start-up of a copy take as long as the transfer?",
                "Multiply the time of the smallest copy by the rate of the largest.",
                "In the table: the first row whose pinned rate is at least half of the last one.",
            ),
        ),
        Question(
            key="pin",
            prompt="Batches come from a DataLoader with one worker. Which code brings them to the GPU fastest, as "
            "measured in the training loop?",
            choices=(
                Choice(
                    key="a",
                    text='x.to("cuda")',
                    feedback="The driver copies the batch through its own pinned buffer, and the loop waits for it.",
                ),
                Choice(
                    key="b",
                    text='x.pin_memory().to("cuda", non_blocking=True)',
                    feedback="The loop itself pins the batch, and waits for that.",
                ),
                Choice(
                    key="c", text="pin_memory=True in the DataLoader, then x.to(..., non_blocking=True) in the loop"
                ),
            ),
            right="c",
            explanation="Pinning is itself a copy, within host memory. It is best made by a thread next to the loop, "
            "before the loop asks for the batch.",
            hints=(
                "Who makes the copy into pinned memory, and who waits for it?",
                "Compare the two columns of main-thread time: pinning, and the copy call itself.",
                "inputs = inputs.pin_memory() runs in the loop, between two steps.",
            ),
        ),
        Question(
            key="turns",
            prompt="A pinned copy takes 2.7 ms, and the compute of a step takes 3.5 ms. How long is a step if the next "
            "batch is copied on a separate stream?",
            choices=(
                Choice(key="a", text="6.2 ms: the sum", feedback="That is a loop on one stream, without overlap."),
                Choice(
                    key="b",
                    text="3.5 ms: the longer of the two",
                    feedback="The shorter one overlaps with the longer one.",
                ),
                Choice(key="c", text="0.8 ms: the difference", feedback="Both still have to be done."),
            ),
            right="b",
            explanation="Two operations that overlap completely take as long as the longer one. The loop waits only "
            "for "
            "the very first copy, because there is no compute yet to overlap with.",
            hints=(
                "Draw two lanes: one for copies, one for kernels.",
                "Compare the step time with the copy time, and with the step time for a batch that is already on the "
                "GPU.",
                "batch, next_batch = next_batch, copy_next() starts the next copy before the compute of this batch.",
            ),
        ),
        Question(
            key="waits",
            prompt="The tensor loss is on the GPU. Which of these lines make the host wait: print(loss), if loss > 10, "
            "losses.append(loss.detach())?",
            choices=(
                Choice(key="a", text="none of them: only .item() waits", feedback="print and if read the value too."),
                Choice(key="b", text="print and if", feedback="Both need the value immediately."),
                Choice(key="c", text="all three", feedback="detach() only creates another reference to the tensor."),
            ),
            right="b",
            explanation="Code that needs the value waits until it is computed. Code that only passes the tensor on "
            "does "
            "not.",
            hints=(
                "Which of these lines need the value?",
                "Count the synchronisations inside each line's range.",
                "losses.append(loss.detach()) stores a tensor, not a number.",
            ),
        ),
        Question(
            key="cost",
            prompt="A loop reads the loss in every step instead of every hundredth step. In which case does it become "
            "more than 10 % slower?",
            choices=(
                Choice(
                    key="a",
                    text="always: every step now waits",
                    feedback="A wait costs nothing while the GPU keeps working.",
                ),
                Choice(
                    key="b",
                    text="never: the GPU does the same work",
                    feedback="The GPU is idle while the host does its own work after the wait.",
                ),
                Choice(
                    key="c",
                    text="if the host has 2 ms of its own work per step",
                    feedback="These 2 ms no longer overlap with the GPU.",
                ),
            ),
            right="c",
            explanation="If the host has nothing else to do, it launches the next kernels a few dozen us after the "
            "wait. "
            "But work that the host did while the GPU was busy now runs while the GPU is idle.",
            hints=(
                "What did the host do while the GPU was computing, before it had to wait?",
                "Compare the step times with and without reads, for each host.",
                "loss.item() comes before the 2 ms of host work: during these, the GPU has nothing to do.",
            ),
        ),
        Question(
            key="race",
            prompt="results.to('cpu', non_blocking=True) returns immediately; the copy runs later, in stream order. "
            "What "
            "does the next line read from the CPU tensor?",
            choices=(
                Choice(
                    key="a", text="an error, because the copy has not finished", feedback="Nothing checks for that."
                ),
                Choice(
                    key="b",
                    text="the right values: reading waits for the copy",
                    feedback="The CPU does not know about the copy.",
                ),
                Choice(key="c", text="old values, all or some of them, and no error"),
            ),
            right="c",
            explanation="The GPU writes to host memory on its own, and the CPU reads whatever is there. Only a "
            "synchronisation tells the CPU that the copy has finished.",
            hints=(
                "Who writes to the buffer, and who knows when that is finished?",
                "Count the wrong values for several queue lengths before the copy.",
                "The line after gpu.fetch(...) reads immediately.",
            ),
        ),
        Question(
            key="slot",
            prompt="On which machine would it help to bind the process to other cores?",
            choices=(
                Choice(
                    key="a",
                    text="machine a",
                    feedback="it runs on cores 0-15, and cores 0-31 are on the side of GPU 0.",
                ),
                Choice(
                    key="b",
                    text="machine b",
                    feedback="its cores are right. Its link has 4 lanes of 16, which gives a quarter of the rate. "
                    "Another "
                    "slot or reseating the card may fix that; code cannot.",
                ),
                Choice(
                    key="c",
                    text="machine c",
                    feedback="It runs on cores 32-47, and cores 0-31 are on the side of GPU 0.",
                ),
            ),
            right="c",
            explanation="Every byte first crosses the link between the sockets. Machine b has a different fault: 4 "
            "lanes "
            "of 16, a quarter of the rate. Another slot or reseating the card fixes that, not code.",
            hints=(
                "Two things can be wrong: the width of the link, and the socket on which the process runs.",
                "Compare the cores of the process with the CPU Affinity of GPU 0.",
                "The last line printed for a machine lists the cores of its process.",
            ),
        ),
        Question(
            key="transfer",
            prompt="Why do this run's copies not overlap with its kernels, and what would you fix first?",
            choices=(
                Choice(
                    key="a",
                    text="pageable memory: pin in the DataLoader",
                    feedback="the name of the copies says Pinned.",
                ),
                Choice(key="b", text="a slow link: check its lanes", feedback="49 GB/s is the rate of sixteen lanes."),
                Choice(key="c", text="reads that block the host: read the metrics only every hundred steps"),
                Choice(
                    key="d",
                    text="no separate stream for the copies",
                    feedback="they have stream 13 to themselves.",
                ),
            ),
            right="c",
            explanation="The host is blocked in .item() until the GPU has finished, and only then starts the next "
            "copy: "
            "there are no kernels left to overlap with. If the link were slow, the GB/s would be low; if the memory "
            "were pageable, the name would say Pageable.",
            hints=(
                "For each explanation: which of these counters would read differently?",
                "Compare the 5 synchronisations with the one copy per step.",
                "'cudaStreamSynchronize, inside aten::item' shows who waits.",
            ),
        ),
    ),
    targets=(
        Target(
            key="copies",
            unit="copies to the GPU",
            value=2,
            hints=(
                "How many data types are there? One copy for each is enough.",
                "Each call of .to(device) is a copy: call it on one long tensor.",
                "torch.cat joins many tensors; .split(sizes) separates them again on the GPU, without a copy.",
            ),
        ),
    ),
)
