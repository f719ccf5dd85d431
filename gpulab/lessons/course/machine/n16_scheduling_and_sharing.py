"""Lesson 16: who gets which GPU, and how much of it is used."""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_REQUESTS = (
    Question(
        key="cores",
        prompt="A job has two loader workers that need CPU time, and the batch script reserves one core. What happens?",
        choices=(
            Choice(
                key="a",
                text="Slurm gives it a second core while the node has idle ones",
                feedback="With task affinity or cgroups, a job gets only the cores that it reserved.",
            ),
            Choice(
                key="b",
                text="the second worker fails",
                feedback="Processes share a core; the operating system takes turns.",
            ),
            Choice(
                key="c",
                text="both workers share the core, and the loop waits for it",
                feedback="Two processes on one core together do the work of one core.",
            ),
        ),
        right="c",
        explanation="The limit is inherited by the workers. An epoch cannot be shorter than the CPU time of its items, "
        "divided by the cores. PyTorch counts the cores that the process may use, and warns about too many workers.",
        hints=(
            "How many processes run Python in this job, and on how many cores?",
            "Compare the columns cores, and used by workers.",
            "os.sched_getaffinity(0) in a worker returns the cores of the job.",
        ),
    ),
)
_QUEUES = (
    Question(
        key="overtake",
        prompt="The first job in the queue needs 8 GPUs, and 3 are free. Jobs behind it may start if that does not "
        "delay the first one. How does the mean waiting time of all jobs change?",
        choices=(
            Choice(
                key="a", text="to less than half", below=0.5, feedback="Small jobs fill the gaps before large ones."
            ),
            Choice(key="b", text="to 50 to 90 %", below=0.9, feedback="There are more gaps than that."),
            Choice(key="c", text="hardly", feedback="Three free GPUs would stay free until five more are."),
        ),
        expected="a",
        explanation="A queue in strict order leaves GPUs free whenever the first job needs more than there are. Most "
        "jobs are small and short. They fit into these gaps, and time limits tell the scheduler that they end in time.",
        hints=(
            "What do the three free GPUs do until five more are free?",
            "Compare the mean waits of the two runs.",
            "Three of four jobs ask for one GPU.",
        ),
    ),
    Question(
        key="fractions",
        prompt="Jobs with one GPU use 32 % of it on average. Now they request quarters of a GPU instead. Which of "
        "these falls?",
        choices=(
            Choice(
                key="a",
                text="the share of the GPUs that is reserved, and the waiting time",
                feedback="The same work is done with less that is reserved.",
            ),
            Choice(key="b", text="the work per hour", feedback="All jobs run as fast as before, by assumption."),
            Choice(
                key="c",
                text="only the waiting time of small jobs",
                feedback="Jobs with two or four GPUs wait less, too.",
            ),
        ),
        right="a",
        explanation="What is reserved and not used blocks others. The share of reserved GPU time that works rises. On "
        "real GPUs, jobs that share one may slow each other down, unless each has a part of its own (16.3, 16.4).",
        hints=(
            "What blocks a GPU for others: its use, or its reservation?",
            "Compare the columns reserved and used.",
            "used stays as it is; reserved falls.",
        ),
    ),
)
_SHARING = (
    Question(
        key="slices",
        prompt="Seven processes share a GPU by time slicing, with slices of 2 ms. A kernel of 1 ms is launched while "
        "the six others wait for the GPU, too. When does it end, at the latest?",
        choices=(
            Choice(key="a", text="after about 2 ms", feedback="Only if nobody else waits."),
            Choice(key="b", text="after about 7 ms", feedback="Others may use their whole slice, not only 1 ms."),
            Choice(
                key="c",
                text="after about 14 ms",
                feedback="Six slices of 2 ms, seven switches, and its own time.",
            ),
        ),
        right="c",
        explanation="Each process that waits gets a whole slice first. Most launches find fewer waiting, so the median "
        "is low; the tail is what a service notices.",
        hints=(
            "Who runs before this kernel?",
            "Count slices and context switches.",
            "6 * (2 + 0.2) + 0.2 + 1 ms",
        ),
    ),
    Question(
        key="profile",
        prompt="A job's tensors need at most 9.9 GB, and it runs on an H100 with 80 GB. Does it fit into an instance "
        "1g.10gb?",
        choices=(
            Choice(key="a", text="yes: 9.9 is less than 10", feedback="The name is rounded, and tensors are not all."),
            Choice(
                key="b",
                text="no",
                feedback="The instance has 9.75 GiB; CUDA's context and the allocator's reserve come in addition.",
            ),
            Choice(key="c", text="only with MPS", feedback="MPS adds no memory to the instance."),
        ),
        right="b",
        explanation="Compare what the process needs, context and reserved memory included, with the memory that "
        "nvidia-smi mig -lgip prints.",
        hints=(
            "Which memory of a process is not in tensors?",
            "Compare the peak of the tensors with the bytes needed.",
            "About 0.7 GiB are needed in addition to the tensors.",
        ),
    ),
)
RIGHT_MODES = {
    "strangers": "MIG",
    "one team, tiny kernels": "MPS",
    "notebooks, mostly idle": "time slicing",
    "virtual machines, live migration": "vGPU",
    "a VM that trains on a whole GPU": "passthrough",
}
_REASONS = {
    "strangers": "nobody may be affected by the faults or the load of others: each needs memory and SMs of its own",
    "one team, tiny kernels": "kernels that fill a tenth of the GPU should run at the same time",
    "notebooks, mostly idle": "they seldom compute at the same time, and each should get the whole GPU when it does",
    "virtual machines, live migration": "a hypervisor has to mediate the GPU to move the machine",
    "a VM that trains on a whole GPU": "nobody shares it, so nothing has to be divided",
}


def check_modes(answer: object) -> str | None:
    """Return what is wrong with a mode for each situation."""
    if not isinstance(answer, Mapping):
        return "the answer is a dictionary: a mode for each situation"
    modes = {mode.lower() for mode in RIGHT_MODES.values()}
    for situation, mode in RIGHT_MODES.items():
        chosen = str(answer.get(situation) or "").strip().lower()
        if chosen not in modes:
            return f"{situation}: choose one of {', '.join(RIGHT_MODES.values())}"
        if chosen != mode.lower():
            return f"{situation}: {_REASONS[situation]}"
    return None


_OPERATION = (
    Question(
        key="hysteresis",
        prompt="A controller gives each team as many GPUs as it needed in the last ten minutes. A second version takes "
        "GPUs away only if they were not needed for an hour. How many changes does it make, compared with the first?",
        choices=(
            Choice(key="a", text="less than a quarter", below=0.25, feedback="Most changes undo the one before."),
            Choice(key="b", text="about half", below=0.75, feedback="It is far less: noise goes up and down all day."),
            Choice(key="c", text="about as many", feedback="Then the need would change in one direction for hours."),
        ),
        expected="a",
        explanation="A reading goes up and down around a level, and each crossing of a whole number is a change. Two "
        "thresholds, and a delay before taking away, follow the level and ignore the noise.",
        hints=(
            "How often does the need cross a whole number although its level stays the same?",
            "Compare the columns of changes.",
            "Growing at once and shrinking late leaves only changes of the level.",
        ),
    ),
    Question(
        key="idle",
        prompt="A rule stops processes that hold memory and have computed nothing for 30 minutes. Which processes "
        "does it stop, besides those that were left behind?",
        choices=(
            Choice(key="a", text="none", feedback="Pauses of half an hour are ordinary."),
            Choice(
                key="b",
                text="a validation on the CPU, a server between requests, a session during a break",
                feedback="All of them work again later.",
            ),
            Choice(key="c", text="every training job", feedback="Those compute in almost every minute."),
        ),
        right="b",
        explanation="Choose the limit from the pauses that occur: here up to 92 minutes in batch jobs and services. "
        "Interactive sessions pause for hours, so their owners need a way to announce it.",
        hints=(
            "Which programs compute nothing for half an hour, and go on?",
            "Look at the processes that a limit of 30 minutes stops wrongly.",
            "finetune.py validates for 45 minutes.",
        ),
    ),
    Question(
        key="modes",
        prompt="Which mode suits each situation?",
        find_problem=check_modes,
        explanation="Isolation decides first: hard (MIG, passthrough), mediated by a hypervisor (vGPU), or none beyond "
        "separate processes (MPS, time slicing). Then ask whether jobs compute at the same time.",
        hints=(
            "Does somebody need protection from the others? Is there a hypervisor?",
            "Do their kernels run at the same time, and how much of the GPU does each fill?",
            "One mode for each situation; each occurs once.",
        ),
    ),
    Question(
        key="shares",
        prompt="Seven virtual machines share a GPU by time-sliced vGPUs with fixed shares. One of them is switched "
        "off. What happens to the kernels of the six others?",
        choices=(
            Choice(key="a", text="they end sooner", feedback="With best effort they would: the others get its turns."),
            Choice(key="b", text="they take exactly as long", feedback="Its slots stay empty."),
            Choice(key="c", text="they take longer", feedback="Nothing is added to what they wait for."),
        ),
        right="b",
        explanation="A fixed share belongs to a machine, whether it uses it or not. So nobody is affected by a "
        "neighbour, and nobody profits from an idle one.",
        hints=(
            "Who gets the slots of a machine that is off?",
            "Compare the last two rows of the table.",
            "The kernel columns of both rows are equal.",
        ),
    ),
    Question(
        key="transfer",
        prompt="A cluster reports: 94 % of GPU time reserved, 31 % used, a mean wait of 9 h. Most jobs have one GPU, "
        "a time limit of 7 days and end after 3 h. What do you try first?",
        choices=(
            Choice(
                key="a",
                text="buy GPUs: the cluster is full",
                feedback="It is reserved. Two thirds of what is reserved does nothing.",
            ),
            Choice(
                key="b",
                text="time slicing for all jobs",
                feedback="It gives no memory limits, and slows down those that do use their GPU.",
            ),
            Choice(
                key="c",
                text="strict order of submission, to be fair",
                feedback="Then gaps before large jobs stay empty.",
            ),
            Choice(
                key="d",
                text="realistic time limits, so that backfill works, and parts of a GPU for small jobs",
                feedback="The scheduler cannot fill gaps with jobs that claim to run for 7 days.",
            ),
        ),
        right="d",
        explanation="Reserved and used are different numbers. Backfill needs realistic time limits, and small jobs "
        "need small requests. Neither needs new hardware.",
        hints=(
            "Compare what is reserved with what is used.",
            "What does a scheduler know about a job with a limit of 7 days?",
            "Nothing with that limit fits into a gap of some hours.",
        ),
    ),
)

LESSON = Lesson(
    id="16_scheduling_and_sharing",
    title="Scheduling and sharing",
    question="who gets which GPU, and how much of it is used?",
    minutes=55,
    budget_s=90,
    level=2,
    without_gpu="queues, requests and rules are counted here; sharing and MIG are modelled",
    prerequisites=("01_what_is_utilisation", "05_data_loading"),
    outcomes=(
        "write a request for Slurm or Kubernetes that matches what the program uses",
        "say when a job may overtake another one, and what time limits are for",
        "choose between time slicing, MPS and MIG, and choose a MIG profile",
        "write a rule for idle GPUs that stops no process that will work again",
    ),
    symptom="All GPUs are taken and people wait, but the meters show idle GPUs.",
    signature="GPU time that is reserved and not used: by job, by user, by hour.",
    fix="Requests that match the use, realistic time limits, parts of a GPU for small jobs, a rule for idle processes.",
    limits="If the reserved GPUs are also used, only more GPUs or faster programs help.",
    experiments=(
        LessonExperiment(number="16.1", description="a batch script and a pod with 8 GPUs and one core, right-sized"),
        LessonExperiment(number="16.2", description="a queue: strict order, backfill, parts of a GPU"),
        LessonExperiment(number="16.3", description="seven small jobs: in turn, time slicing, MPS, MIG"),
        LessonExperiment(number="16.4", description="MIG profiles by memory and multiprocessors"),
        LessonExperiment(number="16.5", description="idle GPUs: a report, and a reaper"),
        LessonExperiment(number="16.6", description="which way to share: five situations; vGPUs with fixed shares"),
        LessonExperiment(number="16.7", description="allocation by live need, with hysteresis"),
    ),
    questions=(*_REQUESTS, *_QUEUES, *_SHARING, *_OPERATION),
    targets=(
        Target(
            key="waiting",
            unit="minutes mean wait, and no wait of more than 16 h",
            value=60,
            hints=(
                "Short jobs first lowers the mean wait, but a long job may wait forever.",
                "Start from job.limit_min, and let a job move forward while it waits.",
                "job.limit_min minus the minutes that it has waited.",
            ),
        ),
    ),
)
