# %% [markdown]
# # 20 Diagnosis drills: can you find the cause on your own?
#
# Here are runs from your colleagues, without any hint about their problems: twelve small ones, and recordings of a real H100. You look at the evidence, and name the cause, the first action, and the counter that excludes the most tempting wrong explanation. Then you see the verdict of the report. You also read the two views that everyone has without gpulab: the table of torch.profiler, and a timeline.
#
# This takes 60 minutes on any laptop; the optional part at the end takes another 40. All runs were recorded on a real machine or computed for a virtual GPU; each run says which.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("20_diagnosis_drills")
L

# %% [markdown]
# ## The symptom
#
# "My job is slow." That is all the owners say, and each has given the job a name. A name is not evidence: some of them are misleading.

# %% tags=["setup"]
import os

import torch
from IPython.display import display

from gpulab.lessons import COUNTED
from gpulab.lessons.labs.drills import (
    checklists,
    decision_trees,
    drills,
    evidence,
    profiler_tables,
    smaller_batches,
    timelines,
)
from gpulab.lessons.labs.drills.spaced_repetition import review_days
from gpulab.lessons.labs.steps import throughput

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch.profiler would report each start and stop
answers = {}
evidence.case_catalogue()


# %% [markdown]
# A colleague has a checklist for such cases: PyTorch's own [Performance Tuning Guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide). Start at the top, apply the first item that the program does not fulfil, measure, go on to the next one. `checklists.items_of_case(1)` returns what the run of case 1 leaves open, in the order of the guide, as far as a recording shows it.

# %% tags=["given"]
def first_advice(number):
    """Return the first open item of the guide for a case, or None if no item is open."""
    # <blank> the first of checklists.items_of_case(number), or None if there are none
    # was: return None
    return next(iter(checklists.items_of_case(number)), None)
    # </blank>


for number in (1, 2, 6):
    print(
        f"case {number}: open are {', '.join(checklists.items_of_case(number))}; "
        f"your first advice: {first_advice(number)}"
    )

# %% [markdown]
# ## Twelve runs
#
# ### 20.1 How good is a checklist?
#
# Each of the twelve runs contains one planted cause, so the right first action is known. Predict how often the first open item is that action. (`torch.compile` counts as right for a run with too many calls and for one with unfused operators.)

# %% tags=["predict"]
L.predict("thumb")

# %% tags=["reveal"]
right = sum(checklists.is_right(first_advice(case.number), case) for case in drills.CASES)
L.reveal("thumb", right, "of 12")

# %% tags=["claim"]
on_list = sum(
    any(checklists.is_right(item, case) for item in checklists.items_of_case(case.number)) for case in drills.CASES
)
L.claim(
    "the first open item is right for 4 of the 12 runs, and some open item for 6",
    right == 4 and on_list == 6,
    before=right,
    after=on_list,
    unit="of 12",
    names=("first item", "any item"),
    source=COUNTED,
)

# %% [markdown]
# Whoever works through the whole list has tried up to four changes per run, and still not found the right one for half of the runs. What the monitor shows does not help either. In six of the runs, the device is idle for at least half of the time, for six different reasons. So low utilisation says that something is wrong, but not what. Replace both with three steps:
#
# 1. **Cause.** Where does the time of a step go? The ledger accounts for all of it.
# 2. **Rival.** Which other cause would look the same so far?
# 3. **Exclusion.** Which counter would read differently if the rival were true? If there is none, you do not know the cause yet.
#
# The next cell lists the words for all three. You need not memorise them: in JupyterLab, right-click the list and choose *Create New View for Output* to keep it open next to the notebook. Below the list is a worked example, which is not one of the twelve cases.

# %% tags=["measure"]
display(evidence.answer_terms(recorded=True), evidence.case_evidence("worked_example"))

# %% [markdown]
# The worked example, step by step:
#
# **Cause.** Three quarters of a step are spent waiting for data, and there is one worker: `too_few_workers`. **Action.** `more workers`. **Rival.** `cpu_bound_loading`, where the workers are too slow because they compute too much; more workers would then compete for the same cores. **Exclusion.** `worker_cpu` is 6 %: a worker that computes would be near 100 %. The answer is `("too_few_workers", "more workers", "worker_cpu")`.
#
# Three details of the evidence are easy to misread. In the ledger, *GPU busy* includes exposed copies; the counter `busy` does not, because a copy occupies no multiprocessor. The ledger shows a typical step, a counter the share of all complete steps: the two differ if steps differ. And *absent* is not zero: a CPU has no tensor cores to count.
#
# ### 20.1, round one: cases 1 to 4
#
# Run a cell to see its case; the question is below the evidence. Replace `None` with your three words, and run the cell again: it says which of them is wrong, and which counter contradicts it. Decide before you open a hint. Once all three are right, you see the first finding of the report. For each line of it, ask: would it be false if the rival were true?
#
# You can also use other views, such as `gpulab.charts.idle_flame(drills.case(3))` or `gpulab.charts.kernels(drills.case(4))`.

# %% tags=["exercise"]
# <blank> case 1 in three words: ("cause", "first action", "counter")
# was: answers["case1"] = None
answers["case1"] = ("no_workers", "start workers", "loader")
# </blank>
display(*evidence.drill_views(L, "case1", answers["case1"]))

# %% tags=["exercise"]
# <blank> case 2 in three words: ("cause", "first action", "counter")
# was: answers["case2"] = None
answers["case2"] = ("host_syncs", "fetch later", "to_host")
# </blank>
display(*evidence.drill_views(L, "case2", answers["case2"]))

# %% tags=["exercise"]
# <blank> case 3 in three words: ("cause", "first action", "counter")
# was: answers["case3"] = None
answers["case3"] = ("host_python", "move the code", "python")
# </blank>
display(*evidence.drill_views(L, "case3", answers["case3"]))

# %% tags=["exercise"]
# <blank> case 4 in three words: ("cause", "first action", "counter")
# was: answers["case4"] = None
answers["case4"] = ("no_tf32", "tensor cores", "tensor_cores")
# </blank>
display(*evidence.drill_views(L, "case4", answers["case4"]))

# %% [markdown]
# ### 20.2 Three questions from memory
#
# These are three of seven common questions, which usually get a general answer. Here, a run has to support each answer. The questions come between the rounds and not all at once, because you remember longer what you recall after some other work than what you read twice in a row. Run the cell to see them.

# %% tags=["check"]
# <blank> a letter for each question
# was: recalled = {"faq1": None, "faq2": None, "faq3": None}
recalled = {"faq1": "b", "faq2": "c", "faq3": "a"}
# </blank>
for key, answer in recalled.items():
    display(L.check(key, answer))

# %% [markdown]
# ## Read what every PyTorch user has
#
# ### 20.3 The table of torch.profiler
#
# `key_averages()` sums the events of a profile by name. A colleague trains a model of eight linear layers, and asks why a step takes longer than expected. Profile three steps of the loop on your CPU.

# %% tags=["measure"]
model = profiler_tables.stacked_model()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    profiler_tables.colleague_loop(model, steps=3)
# <blank> print the eight rows with the most time without children: sort_by "self_cpu_time_total", row_limit 8
# was: print(len(profiler.events()), "events")
print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=32))
# </blank>

# %% [markdown]
# *Self CPU* is the time of an operator without the operators that it calls, *CPU total* is with them. So the totals of nested operators overlap, and only the self times add up.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("table", answer)

# %% tags=["claim"]
calls = {row.key: row.count for row in profiler.key_averages()}
# <blank> calls of aten::addmm per layer and step: eight layers, three steps
# was: per_layer = calls["aten::gelu_backward"] / (8 * 3)
per_layer = calls["aten::addmm"] / (8 * 3)
# </blank>
L.claim(
    "in each step, each layer computes its forward pass twice and its backward pass once",
    per_layer == 2 and calls["aten::gelu"] == 2 * calls["aten::gelu_backward"],
    before=per_layer,
    unit="forward passes per layer and step",
    source=COUNTED,
)

# %% [markdown]
# The times of this table change from run to run, the counts do not. On a GPU, the table has columns for both sides. The next one shows one step that was recorded on a real H100: gpulab stored the events, and PyTorch's own code computes the table from them; we left out some columns. First sort it by GPU time, as most people do.

# %% tags=["measure"]
step_ms, kernel_ms = profiler_tables.step_times_ms("h100_09")
print(f"one step: {step_ms:.1f} ms with the profiler, of which kernels run for {kernel_ms:.1f} ms\n")
print(profiler_tables.recorded_table("h100_09", sort_by="self_cuda_time_total", rows=5))

# %% tags=["measure"]
# <blank> the same table, sorted by "cpu_time_total"
# was: print("sort by cpu_time_total")
print(profiler_tables.recorded_table("h100_09", sort_by="cpu_time_total"))
# </blank>

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("sorted", answer)

# %% tags=["claim"]
optimizer_ms = profiler_tables.cpu_total_ms("h100_09", "Optimizer.step")
# <blank> how many tensors the optimizer updates: the number of calls of "aten::sqrt", by profiler_tables.calls_of
# was: tensors = 1
tensors = profiler_tables.calls_of("h100_09", "aten::sqrt")
# </blank>
L.claim(
    "the optimizer updates 160 tensors one by one and takes more than half of the step on the CPU, while kernels run "
    "for less than a tenth of the step",
    tensors == 160 and optimizer_ms > 0.5 * step_ms and kernel_ms < 0.1 * step_ms,
    before=optimizer_ms,
    after=kernel_ms,
    unit="ms per step",
    names=("optimizer on the CPU", "all kernels"),
    source=drills.named_run("h100_09"),
)

# %% [markdown]
# A profiler makes many short calls slower: without it, this step takes 41 ms. A table has no time axis, so it cannot show who waits for whom. For that you need a timeline.
#
# ### 20.4 A timeline
#
# Nsight Systems draws a row for each CPU thread, for the calls of the CUDA API, and for the work on the GPU. Here are four steps of a real H100 with the same rows, drawn as text from the events that gpulab recorded. Each character is a slot of the step. The legend is below the last one.

# %% tags=["measure"]
for letter, name in timelines.TIMELINES.items():
    print(f"{letter}: {timelines.text_timeline(name, legend=letter == 'D')}\n")

# %% tags=["check"]
for cause, meaning in timelines.TIMELINE_CAUSES.items():
    print(f"{cause}: {meaning}")
# <blank> {"A": cause, "B": cause, "C": cause, "D": cause}, with the causes above
# was: seen = None
seen = {"A": "dispatch_bound", "B": "host_syncs", "C": "cpu_tensor_creation", "D": "pageable_copies"}
# </blank>
L.check("timelines", seen)

# %% tags=["claim"]
L.claim(
    "for all four recordings, the cause that you read from the timeline is the first finding of the report",
    seen == timelines.causes_by_report(),
    source=drills.named_run("h100_13"),
)

# %% [markdown]
# Timelines are most useful for distributed training, because a rank shows only its own side. The next one has two ranks, recorded on a CPU with gloo: both during one step.

# %% tags=["measure"]
print(timelines.text_timeline("ranks_0", others=("ranks_1",)))

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("ranks", answer)

# %% [markdown]
# ## A real GPU
#
# ### 20.5, round two: cases 13 to 16
#
# These four were recorded on an H100. The words are those of the list in 20.1. In at least one of them, there is nothing to fix.

# %% tags=["exercise"]
# <blank> case 13 in three words: ("cause", "first action", "counter")
# was: answers["case13"] = None
answers["case13"] = ("layout_conversions", "channels last", "layout")
# </blank>
display(*evidence.drill_views(L, "case13", answers["case13"]))

# %% tags=["exercise"]
# <blank> case 14 in three words: ("cause", "first action", "counter")
# was: answers["case14"] = None
answers["case14"] = ("allocator_thrash", "keep the cache", "alloc")
# </blank>
display(*evidence.drill_views(L, "case14", answers["case14"]))

# %% tags=["exercise"]
# <blank> case 15 in three words: ("cause", "first action", "counter")
# was: answers["case15"] = None
answers["case15"] = ("slow_storage", "fewer bytes", "blocked")
# </blank>
display(*evidence.drill_views(L, "case15", answers["case15"]))

# %% tags=["exercise"]
# <blank> case 16 in three words: ("cause", "first action", "counter")
# was: answers["case16"] = None
answers["case16"] = ("device_bound", "leave it", "copies")
# </blank>
display(*evidence.drill_views(L, "case16", answers["case16"]))

# %% tags=["score"]
L.score("recorded", drills.count_correct_words(answers, drills.RECORDED_CASES))

# %% [markdown]
# For cases 13 and 14, the same loop was recorded with the first action, and nothing else changed.

# %% tags=["claim"]
measured = {}
for number in (13, 14):
    # <blank> step time of the case, and of its fixed version: throughput.step_ms(run), drills.fixed_case(number)
    # was: before_ms, after_ms = throughput.step_ms(drills.case(number)), throughput.step_ms(drills.case(number))
    before_ms, after_ms = throughput.step_ms(drills.case(number)), throughput.step_ms(drills.fixed_case(number))
    # </blank>
    measured[number] = before_ms / after_ms
    print(f"case {number}: {before_ms:.2f} -> {after_ms:.2f} ms per step")
L.claim(
    "on the H100, the first action makes cases 13 and 14 at least 1.25 times as fast",
    min(measured.values()) >= 1.25,
    before=measured[13],
    after=measured[14],
    unit="times as fast",
    names=("case 13", "case 14"),
    source=drills.case(13),
)

# %% [markdown]
# ### 20.5 continued: a decision tree on runs that it never saw
#
# A decision tree does what you did in your head: it reads one counter after the other. We wrote the tree below with the twelve cases at hand, so it is no surprise that it is right for them. The fair test is on other runs: the recordings of a real H100, of which 13 have a known cause that concerns speed or memory growth.

# %% tags=["measure"]
print(decision_trees.walk(decision_trees.UTILISATION, drills.counter_values(8)))

# %% tags=["predict"]
L.predict("unseen")

# %% tags=["claim"]
# <blank> begin at the root of the tree, not at its second branch
# was: tree = decision_trees.UTILISATION.no
tree = decision_trees.UTILISATION
# </blank>
causes = [decision_trees.walk(tree, drills.counter_values(case.number)).leaf.name for case in drills.CASES]
right = sum(cause == case.cause for cause, case in zip(causes, drills.CASES, strict=True))
unseen = decision_trees.walk_recordings(tree)
for name, (cause, known) in unseen.items():
    print(f"{name}: {known}" + ("" if cause == known else f", but the tree says {cause}"))
right_unseen = sum(cause == known for cause, known in unseen.values())
L.claim(
    "the tree finds the cause of all 12 cases that it was written for, but of at most 10 of 13 recordings of an H100",
    right == 12 and right_unseen <= 10,
    before=right / 12,
    after=right_unseen / len(unseen),
    unit="%",
    names=("12 cases", "13 recordings"),
    source=drills.named_run("h100_01"),
)

# %% tags=["reveal"]
L.reveal("unseen", right_unseen, "of 13")

# %% [markdown]
# A tree, like any checklist, names one of the causes that its author knew. That is why the third word of your answers matters: a counter that would read differently tells you when the cause is none of those that you had in mind.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 20.1, round three: cases 5 to 8
#
# Read the list of words and the worked example in 20.1 first. From here on, the evidence of a case is shown until your answer is right; `evidence.case_evidence(5)` shows it again.

# %% tags=["exercise"]
# <blank> case 5 in three words: ("cause", "first action", "counter")
# was: answers["case5"] = None
answers["case5"] = ("dispatch_bound", "fewer calls", "calls")
# </blank>
display(*evidence.drill_views(L, "case5", answers["case5"], brief=True))

# %% tags=["exercise"]
# <blank> case 6 in three words: ("cause", "first action", "counter")
# was: answers["case6"] = None
answers["case6"] = ("cpu_bound_loading", "cheaper items", "worker_cpu")
# </blank>
display(*evidence.drill_views(L, "case6", answers["case6"], brief=True))

# %% tags=["exercise"]
# <blank> case 7 in three words: ("cause", "first action", "counter")
# was: answers["case7"] = None
answers["case7"] = ("pageable_copies", "pin memory", "to_gpu")
# </blank>
display(*evidence.drill_views(L, "case7", answers["case7"], brief=True))

# %% tags=["exercise"]
# <blank> case 8 in three words: ("cause", "first action", "counter")
# was: answers["case8"] = None
answers["case8"] = ("unfused_optimizer", "fused optimizer", "optimizer")
# </blank>
display(*evidence.drill_views(L, "case8", answers["case8"], brief=True))

# %% [markdown]
# ### 20.1 continued: a better rule of thumb, and where it fails
#
# "Low GPU utilisation, slow loader: add workers" is a better rule, because it looks at what the loop does. It seems to fit three of the runs: cases 1 and 6 wait for data, and the owner of case 3 blames the loader. You can replay each of them with four workers: `gpulab.whatif` predicts the new step time.

# %% tags=["predict"]
L.predict("workers")

# %% tags=["measure"]
# <blank> the recorded runs of cases 1, 3 and 6
# was: replayed = {1: drills.case(1), 6: drills.case(1), 3: drills.case(1)}
replayed = {1: drills.case(1), 3: drills.case(3), 6: drills.case(6)}
# </blank>
speedup = {}
for number, run in replayed.items():
    prediction = gpulab.whatif(run, "workers=4").prediction
    speedup[number] = prediction.step_ns / prediction.likely_ns
    before_ms, best_ms, worst_ms = (ns / 1e6 for ns in (prediction.step_ns, prediction.best_ns, prediction.worst_ns))
    print(f"case {number}: {before_ms:.1f} -> {best_ms:.1f}-{worst_ms:.1f} ms")

# %% tags=["reveal"]
L.reveal("workers")

# %% tags=["claim"]
L.claim(
    "four workers are predicted to make case 1 at least three times as fast, and cases 3 and 6 less than 1.2 times",
    speedup[1] >= 3 and speedup[3] < 1.2 and speedup[6] < 1.2,
    before=speedup[1],
    unit="times as fast in case 1",
    source=drills.case(1),
)

# %% [markdown]
# The most popular fix has no effect in two of the three runs that it seems to fit.
#
# ### 20.1, round four: cases 9 to 12
#
# In these four cases, the device is busy almost all the time, and a monitor shows no problem. In at least one of them, there is indeed nothing to fix. The score below counts the words of cases 1 to 12.

# %% tags=["exercise"]
# <blank> case 9 in three words: ("cause", "first action", "counter")
# was: answers["case9"] = None
answers["case9"] = ("small_batch", "larger batch", "filled")
# </blank>
display(*evidence.drill_views(L, "case9", answers["case9"], brief=True))

# %% tags=["exercise"]
# <blank> case 10 in three words: ("cause", "first action", "counter")
# was: answers["case10"] = None
answers["case10"] = ("memory_growth", "keep numbers", "growth")
# </blank>
display(*evidence.drill_views(L, "case10", answers["case10"], brief=True))

# %% tags=["exercise"]
# <blank> case 11 in three words: ("cause", "first action", "counter")
# was: answers["case11"] = None
answers["case11"] = ("device_bound", "leave it", "tensor_cores")
# </blank>
display(*evidence.drill_views(L, "case11", answers["case11"], brief=True))

# %% tags=["exercise"]
# <blank> case 12 in three words: ("cause", "first action", "counter")
# was: answers["case12"] = None
answers["case12"] = ("unfused_elementwise", "one operator", "matrix")
# </blank>
display(*evidence.drill_views(L, "case12", answers["case12"], brief=True))

# %% tags=["score"]
L.score("words", drills.count_correct_words(answers))

# %% [markdown]
# ### 20.1 continued: the gain of the first action
#
# For each case there is a fixed version: the same loop with one change. For five cases, both versions were recorded on the CPU named in their reports; cases 13 and 14 were in 20.5. (The other fixed versions are virtual: `throughput.step_ms(drills.fixed_case(4))`.)

# %% tags=["claim"]
gains = {}
for number in (1, 3, 6, 8, 10):
    run = drills.case(number)
    # <blank> the fixed version of the case
    # was: before_ms, after_ms = throughput.step_ms(run), throughput.step_ms(run)
    before_ms, after_ms = throughput.step_ms(run), throughput.step_ms(drills.fixed_case(number))
    # </blank>
    gains[number] = before_ms / after_ms
    action = drills.CASES[number - 1].action
    print(
        f"case {number:2}, {action:15} {before_ms:5.1f} -> {after_ms:5.1f} ms per step, "
        f"{gains[number]:.1f} times as fast"
    )
L.claim(
    "four of the five first actions make a step at least 1.5 times as fast; fixing the leak does not change the speed",
    all(gains[number] >= 1.5 for number in (1, 3, 6, 8)) and 0.9 < gains[10] < 1.1,
    before=gains[8],
    after=gains[1],
    unit="times as fast",
    names=("the smallest gain", "the largest"),
    source=drills.case(1),
)

# %% [markdown]
# The leak of case 10 would have ended the job about 16,000 steps later, and no measurement of speed shows that.
#
# Now look at the third word, which people often leave out. For each case there is a run with the rival cause. A counter that excludes the rival has to read differently in that run: at least twice as much, or at most half.

# %% tags=["claim"]
differs = {}
for case in drills.CASES:
    # <blank> the counter that excludes the rival: case.excluded_by[0]
    # was: counter = "busy"
    counter = case.excluded_by[0]
    # </blank>
    in_case, in_rival = drills.counter_values(case.number)[counter], drills.counter_values(case.rival_file)[counter]
    differs[case.number] = drills.clearly_different(in_case, in_rival)
    formatted = drills.RUN_COUNTERS[counter].format
    print(f"case {case.number:2}: {counter} is {formatted(in_case)}; with {case.rival} it is {formatted(in_rival)}")
L.claim(
    "in all 12 cases the excluding counter differs by at least a factor of two between the case and its rival",
    sum(differs.values()) == 12,
    before=sum(differs.values()),
    unit="of 12",
    source=COUNTED,
)

# %% [markdown]
# ### 20.2 The other four from memory
#
# People forget answers. You remember them if you recall them after growing intervals: tomorrow, then after 3, 7 and 21 days. gpulab does not remind you; the last line lists the days to put in your calendar. On these days, you only have to run the two cells with questions.

# %% tags=["check"]
# <blank> a letter for each question
# was: recalled = {"faq4": None, "faq5": None, "faq6": None, "faq7": None}
recalled = {"faq4": "c", "faq5": "b", "faq6": "a", "faq7": "b"}
# </blank>
for key, answer in recalled.items():
    display(L.check(key, answer))
days = ", ".join(map(str, review_days(40)[1:]))
print(f"ask yourself again in {days} days; repeat the questions that you missed tomorrow")

# %% [markdown]
# ### 20.6 A decision tree for out-of-memory errors
#
# "Out of memory: reduce the batch size" is one fix for everything. A decision tree first asks two questions: when did the run fail, and what used the memory? Three runs failed on a virtual T4, and case 10 would fail later. Diagnose one of the three, the run memory2, before the tree does.

# %% tags=["exercise"]
# <blank> "a", "b" or "c"; run the cell once to see the question
# was: answer = None
answer = "b"
# </blank>
L.check("oom", answer)

# %% tags=["claim"]
failing = {name: drills.named_run(name) for name in ("memory1", "memory2", "memory3")} | {"case 10": drills.case(10)}
# <blank> the facts of each failing run: decision_trees.memory_facts(run)
# was: facts = {name: decision_trees.memory_facts(drills.case(10)) for name in failing}
facts = {name: decision_trees.memory_facts(run) for name, run in failing.items()}
# </blank>
paths = {name: decision_trees.walk(decision_trees.OUT_OF_MEMORY, facts[name]) for name in failing}
for name, path in paths.items():
    print(f"{name}\n{path}\n")
reached = [path.leaf.name for path in paths.values()]
L.claim(
    "the tree leads four runs with memory problems to 4 different causes, and suggests a smaller batch for only one "
    "of them",
    reached == ["activations", "states", "long_sample", "leak"],
    before=len(set(reached)),
    unit="causes",
    source=COUNTED,
)

# %% [markdown]
# The tree suggests a smaller batch for one of the four. Would it have helped the others? Run it: `smaller_batches.fits([512])` is the loop of memory1 on a virtual T4 with steps of 512 thousand samples, `fits([16, 16, 512])` is the one of memory3.

# %% tags=["predict"]
L.predict("halved")

# %% tags=["claim"]
# <blank> fits with half of the batch: memory1, and memory3 with all of its steps halved
# was: halved = {"memory1": True, "memory3": True}
halved = {"memory1": smaller_batches.fits([256]), "memory3": smaller_batches.fits([8, 8, 256])}
# </blank>
quarter = {"memory1": smaller_batches.fits([128]), "memory3, long step only": smaller_batches.fits([16, 16, 128])}
print(f"half of the batch fits: {halved}; a quarter: {quarter}")
L.claim(
    "half of the batch is still too much for memory1 and memory3; a quarter fits, and for memory3 it is enough to cut "
    "the long step",
    not any(halved.values()) and all(quarter.values()),
    before=sum(halved.values()),
    after=sum(quarter.values()),
    unit="runs that fit",
    names=("half", "a quarter"),
    source="virtual T4, memory counted exactly",
)

# %% tags=["reveal"]
L.reveal("halved", sum(halved.values()), "of 2")

# %% [markdown]
# Halving once, the usual reflex, rescues neither of them. A quarter rescues memory1. It would rescue memory3, too, but at the price of all the steps that had no problem; limiting the length of the long sample costs nothing there. In memory2, the samples take 48 MiB of the 14.1 GiB in use, so no batch is small enough. In case 10, memory grows with each step: a smaller batch only delays the error.

# %% [markdown]
# ### Exercise: a decision tree of your own
#
# Write your tree as a function. It reads counters one by one, for example with `read("busy")`, and returns a cause. `read` returns a share as a fraction (0 to 1), a size in bytes, and 0.0 for an absent counter. First get all twelve cases right; then reduce the number of counters that it reads. The tree above reads 52 counters for the twelve cases; reading all of them every time would be 156. This table shows all counters:

# %% tags=["given"]
evidence.counter_table()


# %% tags=["exercise"]
# <blank> def triage(read): ... return a cause; start with the counter that divides the twelve cases best
# was: triage = None
def triage(read):
    if read("busy") < 0.5:
        if read("loader") > 0.25:
            worker_cpu = read("worker_cpu")
            return "cpu_bound_loading" if worker_cpu > 0.5 else "too_few_workers" if worker_cpu else "no_workers"
        if read("copies") > 0.25:
            return "host_syncs" if read("to_host") else "pageable_copies"
        return "dispatch_bound" if read("calls") > 0.5 else "host_python"
    if read("growth") > 512 * 1024:
        return "memory_growth"
    if read("optimizer") > 0.2:
        return "unfused_optimizer"
    if read("matrix") < 0.5:
        return "unfused_elementwise"
    if read("tensor_cores") < 0.5:
        return "no_tf32"
    return "small_batch" if read("filled") < 0.7 else "device_bound"


# </blank>
result = drills.score_triage(triage)
print(result or "triage is not written yet")
L.score("reads", result.counters_read if result and result.correct == 12 else None)

# %% [markdown]
# ## Transfer
#
# Apply the same three steps to another kind of job. Run the cell to see it.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Next steps
#
# - Put `%%gpuprofile` on a slow loop of your own. Before you read the first sentence of the report, look at the bar below it, and say the cause, the action and the excluding counter aloud.
# - `%gpuwhy NAME` explains how gpulab detects a cause, and which other causes look similar: `%gpuwhy cpu_bound_loading`, `%gpuwhy small_batch`.
# - If you missed something above, see [05 Data loading](05_data_loading.ipynb), [07 Host to device](07_host_to_device.ipynb), [08 Mixed precision](08_mixed_precision.ipynb), [09 Memory](09_memory_anatomy_and_oom.ipynb).

# %% tags=["card"]
L.card()
