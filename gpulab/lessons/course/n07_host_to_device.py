"""Lesson 07: the way of a batch from the host's memory to the GPU, and what it makes the loop wait for."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Experiment, Lesson, Par, Question

LESSON = Lesson(
    id="07_host_to_device",
    title="Host to device",
    question="is the GPU computing, or being copied to?",
    minutes=45,
    budget_s=60,
    level=2,
    without_gpu="copies are priced for a virtual H100; counts, orders and sums are the same everywhere",
    before=("01_what_is_utilisation",),
    outcomes=(
        "say from a report whether copies cost a loop time, and from which memory they come",
        "choose where a batch is pinned, and predict what a copy takes from its bytes",
        "hide copies behind compute, and say beforehand what is left: the longer of the two",
        "find the lines of a loop that make the host wait, and read values once where once is enough",
        "fetch results without waiting, and know when they may be read",
    ),
    symptom="The GPU computes for a small part of each step; copies to it, or waits for it, fill the rest.",
    signature="Copies with no kernel beside them, their GB/s, and Pageable or Pinned in their names; for waits, the "
    "number of cudaStreamSynchronize calls in a step.",
    fix="Pin in the loader, copy ahead on a stream of its own, send few large pieces, and read values seldom.",
    not_when="The copies are hidden or short: then pinning gains nothing. Where copying outlasts computing, only fewer "
    "bytes help.",
    experiments=(
        Experiment(number="07.1", shows="pageable against pinned memory, from 4 KB to 1 GB"),
        Experiment(number="07.2", shows="a batch pinned in the loop against one pinned by the loader"),
        Experiment(number="07.3", shows="copying and computing in turn against copying ahead"),
        Experiment(number="07.4", shows="a value read in every step against one read in every hundredth"),
        Experiment(number="07.5", shows="a thousand small copies against a few packed ones"),
        Experiment(number="07.6", shows="results read too early against results read after a wait"),
        Experiment(number="07.7", shows="a link with a quarter of its lanes, and a process on the wrong socket"),
    ),
    questions=(
        Question(
            key="share",
            ask="A batch of 134 MB goes to the GPU in each step. The GPU multiplies it by an 8192 x 8192 matrix, and "
            "goes back through that for the gradients. Which share of a step is the copy?",
            choices=(
                Choice(key="a", text="under a fifth", below=0.2, told="A big matrix feels like the most work."),
                Choice(key="b", text="about half", below=0.6, told="It is more: the link is far slower than the GPU."),
                Choice(key="c", text="most of it", told="A GPU multiplies faster than a link brings numbers."),
            ),
            because="While one number comes over the link from such memory, the GPU could multiply about a hundred "
            "thousand times; here each number is multiplied 16,384 times.",
            hints=(
                "Compare two times: bytes over bytes a second, and operations over operations a second.",
                "The report's line 'exposed copies', in the table of where a step goes, will tell.",
                "134 MB over 6 GB/s are 22 ms; 2.2 million million operations at half of a peak of 990 are 4.4 ms.",
            ),
        ),
        Question(
            key="knee",
            ask="A copy costs a fixed time to start, and then time for each byte. From pinned memory, which is the "
            "smallest copy that reaches half of the link's best rate?",
            choices=(
                Choice(key="a", text="one of 4 KB", below=20e3, told="4 KB need less than 0.1 us of the link's time."),
                Choice(key="b", text="one of 64 KB to 16 MB", below=20e6, told="There starting and moving balance."),
                Choice(key="c", text="one of 64 MB or more", told="64 MB take over 1 ms, and starting a few us."),
            ),
            because="Half of the best rate is where starting takes as long as moving. A start takes ten to twenty us, "
            "in which 50 GB/s move 0.5 to 1 MB; the steps of this table are a factor of four apart.",
            hints=(
                "Where does starting a copy take as long as moving its bytes?",
                "Multiply the time of the smallest copy by the rate of the largest.",
                "In the table: the first line whose pinned column is at least half of its last.",
            ),
        ),
        Question(
            key="pin",
            ask="Batches come from a DataLoader with a worker. Which way brings them to the GPU fastest, as the loop "
            "sees it?",
            choices=(
                Choice(key="a", text='x.to("cuda")', told="The driver copies it through its own buffer meanwhile."),
                Choice(key="b", text='x.pin_memory().to("cuda", non_blocking=True)', told="The loop pins, and waits."),
                Choice(key="c", text="the loader with pin_memory=True, then x.to(..., non_blocking=True)"),
            ),
            right="c",
            because="Pinning is itself a copy in the host's memory. Somebody must make it: best a thread beside the "
            "loop, before the loop asks.",
            hints=(
                "Who makes the copy into pinned memory, and who waits for it?",
                "Compare the columns 'pinning' and 'held': both are the main thread's time.",
                "The line x = x.pin_memory() runs in the loop, between two steps.",
            ),
        ),
        Question(
            key="turns",
            ask="A pinned copy takes 2.7 ms and the compute of a step 3.5 ms. With the next batch copied on a stream "
            "of its own, how long is a step?",
            choices=(
                Choice(key="a", text="6.2 ms: the sum", told="That is taking turns, as on one stream."),
                Choice(key="b", text="3.5 ms: the longer of the two", told="The shorter hides behind the longer."),
                Choice(key="c", text="0.8 ms: the difference", told="Both must still be done."),
            ),
            right="b",
            because="Two that work at the same time take as long as the slower. Only the very first copy is waited "
            "for, as nothing was there to hide it.",
            hints=(
                "Draw two lanes, one for copies and one for kernels.",
                "Compare the step with the copy, and with the step of a batch that lies on the GPU already.",
                "The line batch, following = following, copied() calls for the next copy before this compute.",
            ),
        ),
        Question(
            key="waits",
            ask="The tensor loss lies on the GPU. Which of these lines makes the host wait: print(loss), if loss > 10, "
            "losses.append(loss.detach())?",
            choices=(
                Choice(key="a", text="none of them: only .item() waits", told="print and if read the value too."),
                Choice(key="b", text="print and if", told="Both need the number now."),
                Choice(key="c", text="all three", told="detach() gives another name to what is there already."),
            ),
            right="b",
            because="What needs the number waits until it is computed. What hands on the tensor does not.",
            hints=(
                "Which of these needs to know the number?",
                "Count the synchronisations inside each line's range.",
                "The line losses.append(loss.detach()) keeps a tensor, not a number.",
            ),
        ),
        Question(
            key="cost",
            ask="The loss is read in each step, instead of once in a hundred. Which loop takes over a tenth longer?",
            choices=(
                Choice(key="a", text="both: each step now waits", told="A wait for work that goes on is not lost."),
                Choice(
                    key="b",
                    text="neither: the GPU does the same work",
                    told="It stands still while the host does its own, if that comes after the wait.",
                ),
                Choice(key="c", text="the one whose host has 2 ms of work of its own", told="These come on top now."),
            ),
            right="c",
            because="A wait is short where nothing else is to be done: the next work is there a few dozen us later. "
            "But what the host did beside the GPU, it now does while the GPU waits.",
            hints=(
                "What did the host do while the GPU was computing, before it had to wait?",
                "Compare the time of a step with and without reads, for each host.",
                "The line loss.item() stands before the two milliseconds: the GPU has nothing to do in them.",
            ),
        ),
        Question(
            key="race",
            ask="results.to('cpu', non_blocking=True) returns at once; the copy is made when its turn comes. What does "
            "the next line find in the tensor?",
            choices=(
                Choice(key="a", text="an error, as the copy is not done", told="Nothing looks whether it is done."),
                Choice(key="b", text="the right values: reading waits", told="The CPU does not know of the copy."),
                Choice(key="c", text="what was there before, in whole or in part, and no error"),
            ),
            right="c",
            because="The GPU writes to host memory on its own, and the CPU reads whatever is there. Only a wait tells "
            "it when.",
            hints=(
                "Who writes the buffer, and who knows when that is done?",
                "Count the wrong values at several lengths of the queue in front of the copy.",
                "The line after gpu.fetch(...) reads at once.",
            ),
        ),
        Question(
            key="slot",
            ask="On which machine would it help to bind the process to other cores?",
            choices=(
                Choice(key="a", text="machine a", told="It runs on cores 0-15, and GPU 0 has 0-31 on its side."),
                Choice(
                    key="b",
                    text="machine b",
                    told="Its cores are right. It has 4 lanes of 16, a quarter of the rate, which another slot or a "
                    "card seated anew can mend, and no line of code.",
                ),
                Choice(key="c", text="machine c", told="It runs on cores 32-47, and GPU 0 has 0-31 on its side."),
            ),
            right="c",
            because="Each byte goes through the link between the sockets first. Machine b has another fault: 4 lanes "
            "of 16, a quarter of the rate. That is mended by another slot or a card seated anew, not by code.",
            hints=(
                "Two things can be wrong: how wide the link is, and on which side the process runs.",
                "Compare the cores of the process with the CPU Affinity of GPU 0.",
                "The last line of a machine's print names the cores of its process.",
            ),
        ),
        Question(
            key="transfer",
            ask="What keeps this run's copy from hiding behind its kernels, and what would you do first?",
            choices=(
                Choice(key="a", text="pageable memory: pin in the loader", told="The copies' name says Pinned."),
                Choice(key="b", text="a slow link: look at its lanes", told="49 GB/s is what sixteen lanes give."),
                Choice(key="c", text="reads hold the host back: read the metrics once in many steps"),
                Choice(key="d", text="the copies lack a stream of their own", told="They are on stream 13, alone."),
            ),
            right="c",
            because="The host stands in .item() until the GPU is done, and only then calls for the next copy: nothing "
            "is left for it to hide behind. Were it the link, GB/s would be low; were it the memory, the name would "
            "say Pageable.",
            hints=(
                "Ask of each explanation which of these counters would read differently.",
                "Compare the 5 synchronisations with the one copy of a step.",
                "The line 'cudaStreamSynchronize, inside aten::item' tells who waits.",
            ),
        ),
    ),
    pars=(
        Par(
            key="copies",
            what="copies to the GPU",
            par=2,
            hints=(
                "How many types of number are there? One copy for each is enough.",
                "Each call of .to(device) is a copy: call it on one long tensor.",
                "torch.cat makes one tensor of many; .split(sizes) gives them back on the GPU, without a copy.",
            ),
        ),
    ),
)
