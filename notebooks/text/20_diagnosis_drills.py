# %% [markdown]
# # 20 Diagnosis drills: can you find the cause on your own?
#
# Here are twelve runs from twelve colleagues, without any hint about their problems. You look at the evidence, and name the cause, the first action, and the counter that excludes the most tempting wrong explanation. Then you see the verdict of the report.
#
# This takes 55 minutes on any laptop. You can also do it in three sessions: each of the three rounds has four independent cases. All runs were recorded on a real machine or computed for a virtual GPU; each run says which.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("20_diagnosis_drills")
L

# %% [markdown]
# ## The symptom
#
# "My job is slow." That is all the owners say, and each has given the job a name. A name is not evidence: two of them are misleading.

# %% tags=["setup"]
from IPython.display import display

from gpulab.lessons import COUNTED
from gpulab.lessons.labs.drills import decision_trees, drills, evidence
from gpulab.lessons.labs.drills.spaced_repetition import review_days
from gpulab.lessons.labs.steps import throughput

answers = {}
evidence.case_catalogue()


# %% [markdown]
# A colleague has a program for such cases. It reads the number that a monitor shows, the share of time in which the device computes, and gives advice. Like many alerts, it compares this number with a single threshold, so it has two answers.

# %% tags=["given"]
def advice_by_utilisation(number):
    """Recommend a first action from utilisation alone."""
    # <blank> start workers if the counter "busy" is below 0.5, else leave it
    # was: return drills.CASES[number - 1].action
    busy = drills.counter_values(number)["busy"]
    return "start workers" if busy < 0.5 else "leave it"
    # </blank>


advice = {case.number: advice_by_utilisation(case.number) for case in drills.CASES}

# %% [markdown]
# ### 20.1 How good is a rule of thumb?
#
# Each of the twelve runs contains one planted cause, so the right first action is known. Predict how often the program finds it.

# %% tags=["predict"]
L.predict("thumb")

# %% tags=["reveal"]
right = sum(advice[case.number] == case.action for case in drills.CASES)
L.reveal("thumb", right, "of 12")

# %% tags=["claim"]
L.claim(
    "advice from utilisation alone is right for at most 3 of the 12 runs",
    right <= 3,
    before=right,
    unit="of 12",
    source=COUNTED,
)

# %% [markdown]
# In six of the runs, the device is idle for at least half of the time, and for one of these six the advice is right. So low utilisation says that something is wrong, but not what. Replace the rule of thumb with three steps:
#
# 1. **Cause.** Where does the time of a step go? The ledger accounts for all of it.
# 2. **Rival.** Which other cause would look the same so far?
# 3. **Exclusion.** Which counter would read differently if the rival were true? If there is none, you do not know the cause yet.
#
# The next cell lists the words for all three. You need not memorise them: in JupyterLab, right-click the list and choose *Create New View for Output* to keep it open next to the notebook. Below the list is a worked example, which is not one of the twelve cases.

# %% tags=["measure"]
display(evidence.answer_terms(), evidence.case_evidence("worked_example"))

# %% [markdown]
# The worked example, step by step:
#
# **Cause.** Three quarters of a step are spent waiting for data, and there is one worker: `too_few_workers`. **Action.** `more workers`. **Rival.** `cpu_bound_loading`, where the workers are too slow because they compute too much; more workers would then compete for the same cores. **Exclusion.** `worker_cpu` is 6 %: a worker that computes would be near 100 %. The answer is `("too_few_workers", "more workers", "worker_cpu")`.
#
# Two details of the evidence are easy to misread. In the ledger, *GPU busy* includes exposed copies; the counter `busy` does not, because a copy occupies no multiprocessor. And *absent* is not zero: a CPU has no tensor cores to count.
#
# ### 20.1, round one: cases 1 to 4
#
# Run a cell to see its case; the question is below the evidence. Replace `None` with your three words, and run the cell again: it says which of them is wrong, and which counter contradicts it. Decide before you open a hint. Once all three are right, you see the verdict of the report. For each line of it, ask: would it be false if the rival were true?
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
# ### 20.1, round two: cases 5 to 8

# %% tags=["exercise"]
# <blank> case 5 in three words: ("cause", "first action", "counter")
# was: answers["case5"] = None
answers["case5"] = ("dispatch_bound", "fewer calls", "calls")
# </blank>
display(*evidence.drill_views(L, "case5", answers["case5"]))

# %% tags=["exercise"]
# <blank> case 6 in three words: ("cause", "first action", "counter")
# was: answers["case6"] = None
answers["case6"] = ("cpu_bound_loading", "cheaper items", "worker_cpu")
# </blank>
display(*evidence.drill_views(L, "case6", answers["case6"]))

# %% tags=["exercise"]
# <blank> case 7 in three words: ("cause", "first action", "counter")
# was: answers["case7"] = None
answers["case7"] = ("pageable_copies", "pin memory", "to_gpu")
# </blank>
display(*evidence.drill_views(L, "case7", answers["case7"]))

# %% tags=["exercise"]
# <blank> case 8 in three words: ("cause", "first action", "counter")
# was: answers["case8"] = None
answers["case8"] = ("unfused_optimizer", "fused optimizer", "optimizer")
# </blank>
display(*evidence.drill_views(L, "case8", answers["case8"]))

# %% [markdown]
# ### 20.1 continued: a better rule of thumb, and where it fails
#
# "Low GPU utilisation, slow loader: add workers" is a better rule, because it looks at what the loop does. It seems to fit three of the runs so far: cases 1 and 6 wait for data, and the owner of case 3 blames the loader. You can replay each of them with four workers: `gpulab.whatif` predicts the new step time.

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
# ### 20.1, round three: cases 9 to 12
#
# In these four cases, the device is busy almost all the time, and a monitor shows no problem. In at least one of them, there is indeed nothing to fix.

# %% tags=["exercise"]
# <blank> case 9 in three words: ("cause", "first action", "counter")
# was: answers["case9"] = None
answers["case9"] = ("small_batch", "larger batch", "filled")
# </blank>
display(*evidence.drill_views(L, "case9", answers["case9"]))

# %% tags=["exercise"]
# <blank> case 10 in three words: ("cause", "first action", "counter")
# was: answers["case10"] = None
answers["case10"] = ("memory_growth", "keep numbers", "growth")
# </blank>
display(*evidence.drill_views(L, "case10", answers["case10"]))

# %% tags=["exercise"]
# <blank> case 11 in three words: ("cause", "first action", "counter")
# was: answers["case11"] = None
answers["case11"] = ("device_bound", "leave it", "tensor_cores")
# </blank>
display(*evidence.drill_views(L, "case11", answers["case11"]))

# %% tags=["exercise"]
# <blank> case 12 in three words: ("cause", "first action", "counter")
# was: answers["case12"] = None
answers["case12"] = ("unfused_elementwise", "one operator", "matrix")
# </blank>
display(*evidence.drill_views(L, "case12", answers["case12"]))

# %% tags=["score"]
L.score("words", drills.count_correct_words(answers))

# %% [markdown]
# ### 20.1 continued: the gain of the first action
#
# For each case there is a fixed version: the same loop with one change. Two of the fixed versions use more samples per step, so the comparison uses samples per second. For cases 1, 3, 6, 8 and 10, both times were recorded on the CPU named in their reports. The other cases are virtual, so their times are estimates from a model of the GPU.

# %% tags=["claim"]
gains = {}
for case in drills.CASES:
    if case.cause == "device_bound":
        continue  # there is nothing to fix, so there is no fixed version
    run = drills.case(case.number)
    # <blank> the fixed version of the case
    # was: before_ms, after_ms = throughput.step_ms(run), throughput.step_ms(run)
    before_ms, after_ms = throughput.step_ms(run), throughput.step_ms(drills.fixed_case(case.number))
    # </blank>
    gains[case.number] = case.sample_factor * before_ms / after_ms
    note = f", with {case.sample_factor:,} times the samples per step" if case.sample_factor > 1 else ""
    gain = f"{gains[case.number]:8,.1f} times as fast{note}"
    print(f"case {case.number:2}, {case.action:15} {before_ms:5.1f} -> {after_ms:5.1f} ms per step, {gain}")
faster = sum(gain >= 1.5 for gain in gains.values())
L.claim(
    "10 of the 11 first actions raise the samples per second by at least 50 %; fixing the leak changes no speed",
    faster == 10 and 0.9 < gains[10] < 1.1,
    before=faster,
    unit="of 11",
    source="recorded on AMD EPYC, 2026-11-22, and virtual H100 SXM, estimated",
)

# %% [markdown]
# Two lines need an explanation. The number of case 5 is not an error, but you will not see one like it in your own jobs: its step has a single row, and takes no longer with 262,144 rows, because all of its time goes into launches. The leak of case 10 is the exception: its step time does not change. But the leak would have ended the job about 16,000 steps later, and no measurement of speed shows that.
#
# Finally, look at the third word, which people often leave out. For each case there is a run with the rival cause. A counter that excludes the rival has to read differently in that run: at least twice as much, or at most half.

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
# ### 20.3 A decision tree for out-of-memory errors
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
# ### 20.3 continued: a decision tree for utilisation
#
# The second tree does what you did in your head twelve times: it reads one counter after the other. The next cell applies it to case 8, then to all twelve cases. Be careful: we wrote this tree with the twelve cases at hand, so it is no surprise that it is right for them. That is why the cell also applies it to a run that it was not made for: the worked example above.

# %% tags=["claim"]
# <blank> begin at the root of the tree, not at its second branch
# was: tree = decision_trees.UTILISATION.no
tree = decision_trees.UTILISATION
# </blank>
print(decision_trees.walk(tree, drills.counter_values(8)))
causes = [decision_trees.walk(tree, drills.counter_values(case.number)).leaf.name for case in drills.CASES]
right = sum(cause == case.cause for cause, case in zip(causes, drills.CASES, strict=True))
L.claim(
    "the decision tree finds the cause of all 12 cases, and of a thirteenth run",
    right == 12 and decision_trees.walk(tree, drills.counter_values("worked_example")).leaf.name == "too_few_workers",
    before=right,
    unit="of 12",
    source=COUNTED,
)

# %% [markdown]
# ## Exercise: a decision tree of your own
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
