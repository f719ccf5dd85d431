"""Lesson 02: how threads, warps and blocks work, and what keeps them busy."""

from __future__ import annotations

from typing import Any

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

RESIDENT_THREADS = 132 * 64 * 32  # of an H100


def _thread_problem(value: Any) -> str | None:
    if value is None:
        return "no number yet"
    if value == 132 * 64:
        return "that is the number of warps; a warp has 32 threads"
    return None if value == RESIDENT_THREADS else "multiply multiprocessors, warps of each, and threads of a warp"


_THREADS = (
    Question(
        key="guard",
        prompt="1,000 numbers, blocks of 256 threads. How many threads of the grid have no element?",
        choices=(
            Choice(key="a", text="none", below=1, feedback="1,000 is not a multiple of 256, and blocks are complete."),
            Choice(key="b", text="24", below=25, feedback="Four blocks have 1,024 threads."),
            Choice(key="c", text="232", feedback="That would be the last block only: 1,000 - 3 x 256 = 232 are used."),
        ),
        expected="b",
        explanation="Three blocks have 768 threads, which is too few. Four have 1,024: 24 threads need the guard.",
        hints=(
            "A grid has complete blocks only.",
            "Compare blocks x 256 with the number of stores to `out`.",
            "-(-1000 // 256) rounds up.",
        ),
    ),
    Question(
        key="divergence",
        prompt="Threads with an even number take one branch, threads with an odd number the other. Each branch has "
        "three lines; six more lines are common to both. What share of the 32 lanes is active on average?",
        choices=(
            Choice(
                key="a",
                text="fewer than 60 %",
                below=0.6,
                feedback="It would be half if there were only the branches, but half of the lines are common.",
            ),
            Choice(key="b", text="60 to 90 %", below=0.9, feedback="Common lines keep all lanes active."),
            Choice(key="c", text="all", feedback="In each branch, the lanes that take the other one are idle."),
        ),
        expected="b",
        explanation="Within the branches, 16 of 32 lanes are active. The lines before and after are executed by all, "
        "so the average lies between a half and one.",
        hints=(
            "What do the other 16 lanes do during a branch?",
            "Read `lanes active` in the table.",
            "Three lines of each branch run with half of the lanes, the others with all.",
        ),
    ),
    Question(
        key="barrier",
        prompt="The kernel loads a tile into shared memory, and then reads places that other threads have written. You "
        "forget the barrier between the two. What happens?",
        choices=(
            Choice(key="a", text="nothing: threads run in step", feedback="Only those of a warp do, and not always."),
            Choice(
                key="b",
                text="some results are wrong, perhaps only sometimes",
                feedback="A warp may read before another warp has written.",
            ),
            Choice(key="c", text="the launch fails with an error", feedback="No part of the hardware checks this."),
        ),
        right="b",
        explanation="Warps of a block run in any order. Without a barrier, the result depends on that order: a race.",
        hints=(
            "In which order do the two warps of a block run?",
            "Remove the barrier, and compare the results.",
            "The last threads of warp 0 read places that warp 1 writes.",
        ),
    ),
)
_WAITING = (
    Question(
        key="little",
        prompt="A multiprocessor holds 64 warps. Each loads 128 bytes, waits 400 ns, and loads again. The memory could "
        "deliver 25 bytes per nanosecond. What share of that is used?",
        choices=(
            Choice(key="a", text="less than half", below=50, feedback="64 x 128 bytes in 400 ns is more than 12."),
            Choice(key="b", text="about 80 %", below=95, feedback="64 x 128 bytes / 400 ns = 20.5 bytes per ns."),
            Choice(key="c", text="all of it", feedback="That needs 10,000 bytes in flight; 64 warps have 8,192."),
        ),
        expected="b",
        explanation="Bytes in flight = latency x bandwidth (Little's law): 400 x 25 = 10,000 bytes, or 78 warps. Only "
        "64 fit, so each needs more than one load in flight.",
        hints=(
            "How many bytes arrive in 400 ns?",
            "Compare 64 x 128 bytes with 400 ns x 25 bytes per ns.",
            "8,192 / 10,000.",
        ),
    ),
    Question(
        key="registers",
        prompt="A kernel uses 80 registers per thread; a multiprocessor has 65,536 registers and places for 64 warps. "
        "What is the highest possible occupancy?",
        choices=(
            Choice(
                key="a",
                text="less than half",
                below=0.5,
                feedback="65,536 registers are enough for 819 threads, 25 warps.",
            ),
            Choice(key="b", text="50 to 99 %", below=0.995, feedback="50 % would be 32 warps: 82,000 registers."),
            Choice(key="c", text="100 %", feedback="64 warps with 80 registers would need 164,000 registers."),
        ),
        expected="a",
        explanation="A warp needs 32 x 80 = 2,560 registers, so 25 fit. Warps are placed in groups of four: 24.",
        hints=(
            "How many registers does a warp need?",
            "65,536 / (32 x 80).",
            "25 of 64 warps, before rounding.",
        ),
    ),
    Question(
        key="random",
        prompt="You read numbers at random places of an array of 16 KiB, which fits in the L1 cache, and of one of "
        "256 MiB. How much longer does a read take? The CPU can have about ten reads under way at once.",
        choices=(
            Choice(key="a", text="no longer", below=1.2, feedback="Main memory needs a hundred times as long."),
            Choice(key="b", text="1.2 to 30 times", below=30, feedback="Overlapping hides a part of the latency."),
            Choice(
                key="c", text="more than 30 times", feedback="It would be if each read waited for the previous one."
            ),
        ),
        expected="b",
        explanation="A single read from main memory takes about 100 ns, from the L1 cache about 1 ns. Independent "
        "reads overlap, so the ratio of their rates is smaller.",
        hints=(
            "Which caches does your CPU have?",
            "Compare the first and the last point of the plot.",
            "Little's law holds for CPUs, too: ten reads in flight divide the latency by ten.",
        ),
    ),
    Question(
        key="crossover",
        prompt="You copy two n x n matrices to the GPU, multiply them, and copy the product back. From which n on is "
        "this faster than one thread of the CPU?",
        choices=(
            Choice(key="a", text="32", below=33, feedback="The copies alone take longer than the CPU's product."),
            Choice(key="b", text="64 to 1024", below=1025, feedback="The work grows with n^3, the copies with n^2."),
            Choice(key="c", text="more than 1024", feedback="A product of this size takes the CPU tens of ms."),
        ),
        expected="b",
        explanation="Each copy and each kernel costs a few microseconds, whatever its size. The larger n, the more "
        "operations there are for each byte that is copied.",
        hints=(
            "How do work and bytes grow with n?",
            "Find where the two lines cross.",
            "2 n^3 operations, 12 n^2 bytes.",
        ),
    ),
    Question(
        key="threads",
        prompt="How many threads can be resident on an H100 at once?",
        find_problem=_thread_problem,
        explanation="132 multiprocessors x 64 warps x 32 threads.",
        hints=(
            "All multiprocessors hold their maximum of warps.",
            "132, 64 and 32.",
            "132 * 64 * 32.",
        ),
    ),
)
_TRANSFER = Question(
    key="transfer",
    prompt="Nsight Compute says of a kernel: occupancy 25 %, 92 % of the memory bandwidth, 18 % of the peak of the "
    "arithmetic units. What should you do first?",
    choices=(
        Choice(key="a", text="raise the occupancy", feedback="More warps cannot get more than the memory delivers."),
        Choice(
            key="b", text="use a lower precision in the arithmetic units only", feedback="They are idle 82 % already."
        ),
        Choice(
            key="c",
            text="move fewer bytes: fuse with its neighbours, or use smaller types",
            feedback="The memory is busy, so only fewer bytes make it faster.",
        ),
        Choice(key="d", text="use larger blocks", feedback="The block size changes occupancy, not the bytes."),
    ),
    right="c",
    explanation="Enough bytes are in flight: the bandwidth is used. Occupancy has done its part at 25 %.",
    hints=(
        "Which of the three is close to its limit?",
        "92 % of the bandwidth.",
        "Fewer bytes.",
    ),
)

LESSON = Lesson(
    id="02_gpu_architecture_and_cuda",
    title="GPU architecture and CUDA",
    question="what do thousands of threads do at once?",
    minutes=50,
    level=2,
    without_gpu="kernels run in a simulator that counts; the times of copies and products come from a virtual H100",
    prerequisites=("01_what_is_utilisation",),
    outcomes=(
        "write a kernel with a grid, a guard, shared memory and a barrier",
        "say how many lanes of a warp a branch leaves idle, and regroup the work",
        "compute how many warps hide the latency of memory, and what limits their number",
        "say when moving work to the GPU pays",
    ),
    symptom="Kernels run, but reach a small part of the bandwidth and of the arithmetic rate.",
    signature="Few warps (occupancy, small grids), idle lanes (divergence), many loads for each result.",
    fix="One thread per element with a guard, the same branch for a whole warp, tiles in shared memory, several loads "
    "in flight.",
    limits="A kernel at 90 % of the bandwidth is done: only fewer bytes help. Libraries and compilers write most "
    "kernels better than by hand.",
    experiments=(
        LessonExperiment(number="02.1", description="one thread in a loop, and one thread per element with a guard"),
        LessonExperiment(number="02.2", description="two branches within a warp, and one for each warp"),
        LessonExperiment(number="02.3", description="warps that hide the latency of memory, by Little's law"),
        LessonExperiment(number="02.4", description="occupancy by block size, limited by registers"),
        LessonExperiment(number="02.5", description="a filter from global memory, and from shared and constant memory"),
        LessonExperiment(number="02.6", description="a product on the CPU, and on the GPU with its copies, by size"),
        LessonExperiment(number="02.7", description="random reads from caches and from memory"),
        LessonExperiment(number="02.8", description="a CPU core and a multiprocessor in numbers"),
        LessonExperiment(number="02.9", description="copies and kernels in one stream, and in three"),
    ),
    questions=(*_THREADS, *_WAITING, _TRANSFER),
    targets=(
        Target(
            key="loads",
            unit="loads from global memory",
            value=300,
            hints=(
                "Which numbers do two neighbouring threads both read?",
                "Count the loads of `signal` and of `weights` in the table.",
                "Read tile[lane + k] and table[k] in the loop; 72 numbers for each of 4 blocks make 288 loads.",
            ),
        ),
    ),
)
