"""Lesson 17: which tool shows what, what it costs, and when an alert should wake somebody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

# For each question: the tool (a choice of the question "tools"), and why another one does not answer it.
TOOL_MATCHES: dict[str, tuple[str, str]] = {
    "Is anybody using GPU 3 now?": ("c", "one look at the readings and processes of the driver is enough"),
    "Which operator of my model takes the most time?": ("e", "only a profiler inside PyTorch knows operators"),
    "Which CUDA, NVTX and OS calls of which process overlap?": (
        "a",
        "this needs a timeline of the whole system, also of what is not PyTorch",
    ),
    "Why is this one kernel slow?": ("f", "this needs the hardware counters of a single kernel"),
    "Which of our 200 GPUs were idle last month?": ("b", "this needs readings of all GPUs that somebody stores"),
    "Did memory grow while the loss fell, in any of 50 runs?": (
        "d",
        "this needs system metrics and training metrics of the same run side by side",
    ),
}


def check_tools(answer: Any) -> str | None:
    """Return the problem with these matches of questions and tools; None if all are right."""
    if not isinstance(answer, Mapping):
        return "give a dict with a letter for each of the six questions"
    if missing := [question for question in TOOL_MATCHES if not str(answer.get(question) or "").strip()]:
        return f"there is no letter yet for {missing[0]!r}, and {len(missing) - 1} more"
    wrong = [name for name, (letter, _) in TOOL_MATCHES.items() if str(answer[name]).strip().lower() != letter]
    if not wrong:
        return None
    right = len(TOOL_MATCHES) - len(wrong)
    return f"{right} of {len(TOOL_MATCHES)} are right. Check {wrong[0]!r} again: {TOOL_MATCHES[wrong[0]][1]}"


_TOOLS = (
    Question(
        key="column",
        prompt="The table of torch.profiler has a column with the memory that each operator allocated. You add up its "
        "positive entries for eight training steps. How does the sum compare with the peak memory?",
        choices=(
            Choice(key="a", text="about the same", below=1.5, feedback="Only if no memory were freed and used again."),
            Choice(key="b", text="two to five times as much", below=5, feedback="Count the steps."),
            Choice(
                key="c",
                text="more than five times as much",
                feedback="Every step allocates its activations and gradients again.",
            ),
        ),
        expected="c",
        explanation="The column adds up what each call allocates. Most of it is freed soon, and allocated again in the "
        "next step. The peak is what is in use at the same time.",
        hints=(
            "Is an allocation that was freed still in the sum?",
            "Compare the sum for one step with that for eight.",
            "Each step allocates about its peak again; eight steps were recorded.",
        ),
    ),
    Question(
        key="memory",
        prompt="nvidia-smi shows 10.5 GiB for a training. max_memory_allocated() says 1.5 GiB. No other process is on "
        "the GPU. What is the rest?",
        choices=(
            Choice(key="a", text="a memory leak", feedback="A leak would be allocated, and counted by PyTorch."),
            Choice(
                key="b",
                text="mostly memory that PyTorch keeps for later tensors, and the CUDA context",
                feedback="PyTorch returns freed memory to its own cache, not to the driver.",
            ),
            Choice(
                key="c", text="mostly the CUDA context", feedback="It takes less than 1 GiB in all these recordings."
            ),
        ),
        right="b",
        explanation="The caching allocator keeps what it once took: max_memory_reserved. NVML sees that, plus the CUDA "
        "context with its libraries. Only max_memory_allocated says what your tensors need.",
        hints=(
            "What does PyTorch do with the memory of a tensor that is freed?",
            "Compare the columns of recording h100_14.",
            "NVML minus reserved is nearly the same in every row.",
        ),
    ),
    Question(
        key="tools",
        prompt="Match each question with the tool that answers it at the lowest cost.",
        choices=(
            Choice(key="a", text="Nsight Systems (nsys)"),
            Choice(key="b", text="DCGM exporter with Prometheus, or gpulab watch on each machine"),
            Choice(key="c", text="nvidia-smi, nvitop, gpustat"),
            Choice(key="d", text="an experiment tracker with system metrics: W&B, MLflow"),
            Choice(key="e", text="torch.profiler, or gpulab"),
            Choice(key="f", text="Nsight Compute (ncu)"),
        ),
        find_problem=check_tools,
        explanation="Six of six. Monitors answer who and when, timelines answer why, kernel profilers answer how a "
        "single kernel uses the hardware.",
        hints=(
            "Sort the questions first: now, one run, one kernel, many runs, many machines.",
            "Which tools know PyTorch's operators? Which store readings for weeks?",
            "nsys is for the whole system, ncu for one kernel.",
        ),
    ),
    Question(
        key="overhead",
        prompt="A training step of small operators takes less than a millisecond. The profiler records operators, "
        "stacks, shapes and memory. How much more CPU time does a step take?",
        choices=(
            Choice(key="a", text="less than 10 %", below=0.1, feedback="That is possible if operators are large."),
            Choice(key="b", text="10 to 50 %", below=0.5, feedback="Each operator takes only a few microseconds."),
            Choice(
                key="c",
                text="more than 50 %",
                feedback="The profiler's work for each operator is about as long as the operator itself.",
            ),
        ),
        expected="c",
        explanation="A profiler works for each event: it reads the clock twice and stores a record, and for stacks and "
        "shapes a few more. Short operators have many events per second.",
        hints=(
            "How long does one small operator take, and how long does it take to record it?",
            "Compare the bars of small and of large operators.",
            "More than 400 operator calls are recorded in a step of less than 1 ms.",
        ),
    ),
)
_TIMELINES = (
    Question(
        key="gaps",
        prompt="In two recordings, kernels run 20 % and 22 % of the time. In one, the GPU waits for copies; in the "
        "other, for launches of many small kernels. Can a monitor that reads utilisation tell them apart?",
        choices=(
            Choice(key="a", text="yes: 20 % is one, 22 % the other", feedback="Both causes can give any utilisation."),
            Choice(
                key="b",
                text="no: you need the events in the gaps",
                feedback="Utilisation says that the GPU waits, not for what.",
            ),
            Choice(
                key="c",
                text="yes, with more readings per second",
                feedback="More readings give a better mean of the same number.",
            ),
        ),
        right="b",
        explanation="The cause of a gap is what happens in it: a copy, a call, a DataLoader that works, or nothing. "
        "Only a timeline has these events.",
        hints=(
            "What does utilisation measure?",
            "Compare 'kernels run' and 'median kernel' of h100_01 and h100_13.",
            "The rows of `candidates` are events that a monitor does not see.",
        ),
    ),
    Question(
        key="signatures",
        prompt="A dashboard says: utilisation below 50 % means slow data loading, else all is well. In how many of 14 "
        "recordings with a planted cause is that right?",
        choices=(
            Choice(
                key="a", text="4 or fewer", below=5, feedback="It is also right for jobs that the GPU really limits."
            ),
            Choice(key="b", text="5 to 8", below=9, feedback="Two wait for data, and four are limited by the device."),
            Choice(key="c", text="9 or more", feedback="Copies, launches, Python and memory look the same to it."),
        ),
        expected="b",
        explanation="Low utilisation has many causes, and slow loading is one of them. High utilisation does not say "
        "that all is well, either: memory that grows is invisible.",
        hints=(
            "Which causes make a GPU wait?",
            "Look at the columns data and device of the first table.",
            "The numbers on the diagonal are the right answers.",
        ),
    ),
)
_WATCHING = (
    Question(
        key="alarms",
        prompt="A GPU is read every 10 s for a week. An alarm begins with each reading below 30 % that follows a "
        "higher one, while memory is held. There are seven real problems. How many alarms?",
        choices=(
            Choice(key="a", text="fewer than 20", below=20, feedback="Every checkpoint is a reading below 30 %."),
            Choice(key="b", text="20 to 200", below=200, feedback="Pauses come more often than once an hour."),
            Choice(
                key="c",
                text="more than 200",
                feedback="Checkpoints and validation alone are several pauses per hour.",
            ),
        ),
        expected="c",
        explanation="Jobs pause all the time for good reasons. A window of several minutes ignores short pauses; "
        "hysteresis ignores values that wander around the limit.",
        hints=(
            "How often does a training write a checkpoint or validate?",
            "Compare the columns false and repeated.",
            "Three or four pauses per hour, in a week of 168 hours.",
        ),
    ),
    Question(
        key="nights",
        prompt="The last table shows a mean utilisation of 32 % for GPU 1 and of 63 % for GPU 0. What is wrong with "
        "GPU 1?",
        choices=(
            Choice(key="a", text="its jobs are slow", feedback="It may be at full speed whenever it works."),
            Choice(
                key="b",
                text="it was idle at certain hours",
                feedback="That is one possibility. Does the mean say so?",
            ),
            Choice(
                key="c",
                text="the mean does not say: look at the hours, and at whether a process held the GPU",
                feedback="32 % all the time and 64 % half of the time have the same mean.",
            ),
        ),
        right="c",
        explanation="The mean of a week mixes slow jobs, idle nights and free time between jobs. They need different "
        "actions: a profiler, a queue, or nothing.",
        hints=(
            "Find two different weeks with the same mean.",
            "Group by hour of the day.",
            "held_idle separates a GPU that is held and idle from one that is free.",
        ),
    ),
    Question(
        key="docker",
        prompt="Which column of `docker stats` shows how busy the GPU of a container is?",
        choices=(
            Choice(key="a", text="CPUPerc", feedback="That is the CPU time of the container."),
            Choice(
                key="b",
                text="GPUPerc, with the NVIDIA container toolkit",
                feedback="There is no such column. The toolkit gives a container access to GPUs; it counts nothing.",
            ),
            Choice(key="c", text="none", feedback="Its columns are CPU, memory, network, block I/O and processes."),
        ),
        right="c",
        explanation="docker stats shows what cgroups count (CPU, memory, block I/O, processes) and the network "
        "traffic. For the GPU, ask the driver: nvidia-smi in the container, or an exporter on the host.",
        hints=(
            "Where does docker stats get its numbers from?",
            "Read the list of its fields.",
            "No field has GPU in its name.",
        ),
    ),
    Question(
        key="tracker",
        prompt="A training loop keeps another 40 MiB of host memory in every step. You log only the loss. When do you "
        "notice?",
        choices=(
            Choice(key="a", text="when the loss stops falling", feedback="The loss does not depend on it."),
            Choice(
                key="b",
                text="when the process is killed",
                feedback="Until then, nothing that you log changes.",
            ),
            Choice(key="c", text="when steps become slower", feedback="They do not, until the machine swaps."),
        ),
        right="b",
        explanation="40 MiB per step are 39 GiB after 1,000 steps. A line of memory beside the loss shows it at once.",
        hints=(
            "What does the fault change, apart from memory?",
            "Look at both columns of the table.",
            "The loss falls as usual while the memory grows by 40 MiB per step.",
        ),
    ),
)
_TRANSFER = (
    Question(
        key="transfer",
        prompt="At night, an alert says: utilisation of GPU 2 below 30 % for 10 min while memory is held. The loss in "
        "the tracker still falls, but only half as fast per hour as yesterday. What do you do first?",
        choices=(
            Choice(
                key="a",
                text="nsys for the whole night",
                feedback="A trace of hours is too large to open, and the cause is in each step.",
            ),
            Choice(
                key="b",
                text="raise the limit of the alert: the job works",
                feedback="It works at half its speed. The alert is right.",
            ),
            Choice(
                key="c",
                text="profile a few steps with gpulab or torch.profiler, and read what fills the gaps",
                feedback="A few steps show the cause, and the job can go on.",
            ),
            Choice(
                key="d",
                text="ncu for the kernel that takes the most time",
                feedback="Kernels are not the problem if the GPU waits.",
            ),
        ),
        right="c",
        explanation="The monitor says that the GPU waits. A timeline of a few steps says for what: then you know "
        "whether the file server, the loader or the code is to blame.",
        hints=(
            "Is the question now that, why, or how a kernel uses the hardware?",
            "Which tool shows the events in the gaps at the lowest cost?",
            "17.2: a few steps are enough; 17.3: the gaps name the cause.",
        ),
    ),
)

LESSON = Lesson(
    id="17_monitoring_and_tools",
    title="Monitoring and tools",
    question="which tool shows what, and when should it wake you?",
    minutes=60,
    budget_s=90,
    level=2,
    without_gpu="profilers run live on the CPU; GPU readings are recordings of an H100",
    prerequisites=("01_what_is_utilisation",),
    outcomes=(
        "choose the tool for a question, and check that two tools mean the same number",
        "measure what a profiler costs, and profile a few steps only",
        "query a trace with pandas, and say what fills the gaps of a GPU",
        "write an alert with a window and hysteresis, and test it against false alarms",
    ),
    symptom="The monitor shows a GPU that waits, and nobody knows why, or nobody looks.",
    signature="What fills the time without kernels: copies, launches, the DataLoader, Python.",
    fix="A monitor with an alert that has a window and hysteresis; then a profile of a few steps, and a query of its "
    "gaps.",
    limits="A tool that changes what it measures: a profiler in a loop of small operators.",
    experiments=(
        LessonExperiment(number="17.1", description="one run in several tools: step time and memory"),
        LessonExperiment(number="17.2", description="the overhead of a profiler, with and without stacks"),
        LessonExperiment(number="17.3", description="a query that names what fills the gaps of a timeline"),
        LessonExperiment(number="17.4", description="threshold, window and hysteresis on a week of readings"),
        LessonExperiment(number="17.5", description="a pattern of idle nights in the history of a week"),
        LessonExperiment(number="17.6", description="five signatures against utilisation: a confusion table"),
        LessonExperiment(number="17.7", description="containers, docker stats and a page for Prometheus"),
        LessonExperiment(number="17.8", description="system metrics beside the loss, aligned"),
        LessonExperiment(number="17.9", description="the status of GPUs in code, with and without a driver"),
    ),
    questions=(*_TOOLS, *_TIMELINES, *_WATCHING, *_TRANSFER),
    targets=(
        Target(
            key="alert",
            unit="minutes of worst delay, without a false alarm",
            value=10,
            hints=(
                "Which pauses cause the false alarms: how long are they?",
                "With window_means, a pause of seven minutes counts for longer windows, too. With window_fifths it "
                "does not.",
                "window_fifths(week, 10 * 60), with 0.3 and 0.5.",
            ),
        ),
    ),
)
