# %% [markdown]
# # 20 Diagnosis drills: can you name the cause before anybody tells you?
#
# Twelve runs from twelve colleagues, without a word on what is wrong with them. You look at the evidence, name the cause, the first thing to do, and the counter that excludes the explanation you might have fallen for. Then the report says what it thinks. Thirty minutes, on any laptop: all runs are recorded, or were computed for a virtual GPU, and each says which.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("20_diagnosis_drills")
L

# %% [markdown]
# ## The symptom
#
# "My job is slow." That is all the owners say, and each has given the job a name. A name is no evidence: two of them mislead.

# %% tags=["setup"]
from IPython.display import display

from gpulab.lessons import COUNTED
from gpulab.lessons.labs import drill_evidence, drills, trees
from gpulab.lessons.labs.recall import Deck, days_asked

drill_evidence.catalogue()


# %% [markdown]
# A colleague has a program for such cases. It reads what a monitor shows, the share of time in which the device computes, and advises. Utilisation is one number, so its advice has two forms.

# %% tags=["given"]
def by_utilisation(number):
    """What to do first, from utilisation alone."""
    # <fix>
    # was: return drills.CASES[number - 1].action
    busy = drills.reads(number)["busy"]
    return "start workers" if busy < 0.5 else "leave it"
    # </fix>


advice = {each.number: by_utilisation(each.number) for each in drills.CASES}

# %% [markdown]
# ### 20.1 What a rule of thumb is worth
#
# Each of the twelve was made with one planted cause, so it is known what helps. Predict how often the program finds it.

# %% tags=["predict"]
L.predict("thumb")

# %% tags=["measure"]
right = [each.number for each in drills.CASES if advice[each.number] == each.action]
idle = [number for number in advice if drills.reads(number)["busy"] < 0.5]
print(f"right in cases {right}; {len(idle)} of the twelve are idle half of the time or more")

# %% tags=["reveal"]
L.reveal("thumb", len(right), "of 12")

# %% tags=["claim"]
L.claim(
    "advice from utilisation alone is right for at most three of the twelve runs",
    len(right) <= 3,
    before=12,
    after=len(right),
    unit="right",
    source=COUNTED,
)

# %% [markdown]
# Half of the runs are idle, and for one of those the advice is right. So a low figure says that something is wrong, and not what. What comes instead of the rule is a habit with three steps:
#
# 1. **Cause.** Where does a step go? The ledger splits it without a remainder.
# 2. **Rival.** Which other cause would look the same so far?
# 3. **Exclusion.** Which counter would read differently if the rival were true? If there is none, you do not know yet.
#
# The words for all three stand below: causes by gpulab's names for them, first actions, counters. Keep the list open beside you. Under it is one example, which is no case of the twelve.

# %% tags=["measure"]
display(drill_evidence.words(), drill_evidence.evidence("beside1"))
gpulab.charts.ledger(drills.beside("beside1"))

# %% [markdown]
# Read aloud:
#
# **Cause.** Three quarters of a step go to waiting for data. `worker_cpu` is not absent, so there are workers: `few_workers`. **Action.** `more workers`. **Rival.** `heavy_items`, where the workers are late because they have too much to compute; more of them would then fight for the same cores. **Exclusion.** `worker_cpu` reads 6 %: a worker that computed would read near 100 %. The answer is `("few_workers", "more workers", "worker_cpu")`.
#
# Two traps in the evidence. In the ledger *GPU busy* includes copies that nothing hides; the counter `busy` does not, because a copy keeps no multiprocessor busy. And *absent* is not zero: a CPU has no tensor cores to count.
#
# ### 20.1 Round one: cases 1 to 4

# %% tags=["measure"]
for number in (1, 2, 3, 4):
    display(drill_evidence.evidence(number))

# %% [markdown]
# Any other view is yours as well: `gpulab.charts.idle_flame(drills.case(3))`, `gpulab.charts.kernels(drills.case(4))`, `gpulab.charts.copy_rates(drills.case(2))`.
#
# What the third word has to exclude, the question says. `L.hint("case1")` gives three hints, each telling more. Once all three words of a case are right its report comes. Read the first sentence and the lines of evidence under it: which of them would be false if the rival were true?

# %% tags=["exercise"]
# <blank> for each case three words: cause, first action, excluding counter; see the lists above
# was: answers = {"case1": None, "case2": None, "case3": None, "case4": None}
answers = {
    "case1": ("starving", "start workers", "loader"),
    "case2": ("host_syncs", "fetch later", "to_host"),
    "case3": ("host_python", "move the code", "python"),
    "case4": ("no_tf32", "tensor cores", "tensor_cores"),
}
# </blank>
for key, answer in answers.items():
    display(L.check(key, answer), *drill_evidence.revealed(key, answer))

# %% [markdown]
# ### 20.2 Three questions from memory
#
# Everybody asks these seven questions, and usually gets them answered in general. Here each answer has to stand up to a run. They come between the rounds and not all at once: what is recalled after some other work is kept longer than what is read twice in a row.

# %% tags=["check"]
# <blank> a letter for each
# was: recalled = {"faq1": None, "faq2": None, "faq3": None}
recalled = {"faq1": "b", "faq2": "c", "faq3": "a"}
# </blank>
for key, answer in recalled.items():
    display(L.check(key, answer))

# %% [markdown]
# ### 20.1 Round two: cases 5 to 8

# %% tags=["measure"]
for number in (5, 6, 7, 8):
    display(drill_evidence.evidence(number))

# %% tags=["exercise"]
# <blank> three words for each case
# was: more = {"case5": None, "case6": None, "case7": None, "case8": None}
more = {
    "case5": ("dispatch_bound", "fewer calls", "calls"),
    "case6": ("heavy_items", "cheaper items", "worker_cpu"),
    "case7": ("pageable_copies", "pin memory", "to_gpu"),
    "case8": ("slow_optimizer", "fused optimizer", "optimizer"),
}
# </blank>
answers |= more
for key, answer in more.items():
    display(L.check(key, answer), *drill_evidence.revealed(key, answer))

# %% [markdown]
# ### 20.1 A better rule, and where it still fails
#
# "Wait for data: add workers" is better than the first rule, because it looks at what the loop does. Cases 1 and 6 both wait for data. Each run can be replayed with four workers: `gpulab.whatif` says what a step would then take.

# %% tags=["predict"]
L.predict("workers")

# %% tags=["measure"]
# <fix>
# was: asked = {1: drills.case(1), 6: drills.case(1), 3: drills.case(1)}
asked = {1: drills.case(1), 6: drills.case(6), 3: drills.case(3)}
# </fix>
times_as_fast = {}
for number, run in asked.items():
    told = gpulab.whatif(run, "workers=4").prediction
    times_as_fast[number] = told.step_ns / told.likely_ns
    print(f"case {number}: {told.step_ns / 1e6:.1f} -> {told.best_ns / 1e6:.1f}-{told.worst_ns / 1e6:.1f} ms")

# %% tags=["reveal"]
L.reveal("workers")

# %% tags=["claim"]
L.claim(
    "four workers are predicted to make case 1 at least three times as fast, and cases 3 and 6 less than 1.2 times",
    times_as_fast[1] >= 3 and times_as_fast[3] < 1.2 and times_as_fast[6] < 1.2,
    before=times_as_fast[1],
    after=times_as_fast[6],
    unit="times as fast",
    source=drills.case(1),
)

# %% [markdown]
# The remedy that is recommended most often does nothing in two of three runs that look made for it. Case 3 is called `slow_dataloader`, and its DataLoader takes one part in a hundred of a step.
#
# ### 20.1 Round three: cases 9 to 12
#
# In these four the device is busy nearly all the time. A monitor shows nothing to do. At least one of them needs nothing, indeed.

# %% tags=["measure"]
for number in (9, 10, 11, 12):
    display(drill_evidence.evidence(number))

# %% tags=["exercise"]
# <blank> three words for each case
# was: last = {"case9": None, "case10": None, "case11": None, "case12": None}
last = {
    "case9": ("small_batch", "larger batch", "filled"),
    "case10": ("memory_growth", "keep numbers", "growth"),
    "case11": ("device_bound", "leave it", "tensor_cores"),
    "case12": ("unfused", "one operator", "matrix"),
}
# </blank>
answers |= last
for key, answer in last.items():
    display(L.check(key, answer), *drill_evidence.revealed(key, answer))

# %% tags=["score"]
L.score("words", drills.right_picks(answers))

# %% [markdown]
# ### 20.1 Was it really that?
#
# A planted cause is known, so the reports can be marked too. First: is the cause that was planted the one named first? Then the counter-test, the same training with the cause taken out: is it gone?

# %% tags=["claim"]
# <fix>
# was: handed_in = [drills.mended(each.number) for each in drills.CASES]
handed_in = [drills.case(each.number) for each in drills.CASES]
# </fix>
named = [gpulab.diagnose(run).first for run in handed_in]
found = sum(first is not None and first.rule == each.cause for first, each in zip(named, drills.CASES, strict=True))
L.claim(
    "the cause that was planted is named first in all twelve runs",
    found == 12,
    before=len(right),
    after=found,
    unit="right",
    source=COUNTED,
)

# %% tags=["claim"]
flawed = [each for each in drills.CASES if each.cause != "device_bound"]
# <fix>
# was: afterwards = {each.number: drills.case(each.number) for each in flawed}
afterwards = {each.number: drills.mended(each.number) for each in flawed}
# </fix>
left = [
    each.number
    for each in flawed
    if each.cause in {finding.rule for finding in gpulab.diagnose(afterwards[each.number]).findings}
]
L.claim(
    "of the eleven mended runs none has its cause left",
    not left,
    before=11,
    after=len(left),
    unit="left",
    source=COUNTED,
)

# %% [markdown]
# What the right first action gave is known as well: the two runs of a pair are one loop, with one thing changed. Two of the mended runs do more samples in a step (case 9 takes 128 times as many sequences, case 5 262,144 times as many rows), so samples per second are compared. For cases 1, 3, 6, 8 and 10 both times were recorded on the CPU that their reports name; the others are virtual, so they say what a model of the GPU expects.

# %% tags=["claim"]
gains = {}
for each in flawed:
    was, now = drills.step_ms(drills.case(each.number)), drills.step_ms(afterwards[each.number])
    gains[each.number] = each.more_samples * was / now
    print(f"case {each.number:2}, {each.action:15} {was:5.1f} -> {now:5.1f} ms a step, {gains[each.number]:,.1f} times")
L.claim(
    "ten of the eleven remedies give at least half as many samples per second again; mending the leak gives no speed",
    sum(gain >= 1.5 for gain in gains.values()) == 10 and 0.9 < gains[10] < 1.1,
    before=11,
    after=sum(gain >= 1.5 for gain in gains.values()),
    unit="faster",
    source="recorded on AMD EPYC, 2026-11-22, and virtual H100 SXM, estimated",
)

# %% [markdown]
# The leak of case 10 is the honest exception: its step is as fast before as after. It would have ended the job some 16,000 steps later all the same, which no measurement of speed can show.
#
# Last the third word, the one that people leave out. For each case there is a run with the rival cause. A counter that excludes the rival has to read differently there: twice as much, or half.

# %% tags=["claim"]
apart = {}
for each in drills.CASES:
    # <fix>
    # was: counter = "busy"
    counter = each.excluded_by[0]
    # </fix>
    here, there = drills.reads(each.number)[counter], drills.reads(each.rival_file)[counter]
    apart[each.number] = drills.told_apart(here, there)
    shown = drills.COUNTERS[counter].told
    print(f"case {each.number:2}: {counter} reads {shown(here)}; under {each.rival} it reads {shown(there)}")
L.claim(
    "in all twelve cases the excluding counter reads at least twice as much in one of the two runs as in the other",
    sum(apart.values()) == 12,
    after=sum(apart.values()),
    unit="of 12",
    source=COUNTED,
)

# %% [markdown]
# ### 20.2 The other four from memory
#
# Answers fade. The cheapest way to keep them is to be asked again after a growing gap: a question that is known comes back after 1, 3, 7 and 21 days, one that was missed comes back tomorrow. The last lines say when.

# %% tags=["check"]
# <blank> a letter for each
# was: recalled |= {"faq4": None, "faq5": None, "faq6": None, "faq7": None}
recalled |= {"faq4": "c", "faq5": "b", "faq6": "a", "faq7": "b"}
# </blank>
deck = Deck()
for key, answer in recalled.items():
    if key in ("faq4", "faq5", "faq6", "faq7"):
        display(L.check(key, answer))
    deck = deck.answered(key, answer == L.lesson.asked(key).right, day=0)
print("due tomorrow:", ", ".join(deck.due(1)))
print("a question that is always known is asked on days", ", ".join(map(str, days_asked(30))), "of thirty")

# %% [markdown]
# ### 20.3 Walk the tree of memory
#
# "Out of memory: make the batch smaller" is one remedy for everything. The tree asks first: when did it fail, and what held the memory? Three runs failed on a virtual T4, and case 10 is on its way there. `memory_facts` reads the answers from a run.

# %% tags=["exercise"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("oom", answer)

# %% tags=["claim"]
failing = {name: drills.beside(name) for name in ("memory1", "memory2", "memory3")} | {"case 10": drills.case(10)}
# <fix>
# was: walks = {name: trees.walk(trees.OUT_OF_MEMORY.yes, {"others": False, "states": False}) for name in failing}
walks = {name: trees.walk(trees.OUT_OF_MEMORY, trees.memory_facts(run)) for name, run in failing.items()}
# </fix>
for name, walked in walks.items():
    print(f"{name}\n{walked}\n")
reached = [walked.leaf.name for walked in walks.values()]
L.claim(
    "four runs short of memory lead to four leaves, and a smaller batch stands at one of them",
    reached == ["activations", "states", "long_sample", "leak"],
    before=reached.count("activations"),
    after=len(set(reached)),
    unit="leaves",
    source=COUNTED,
)


# %% [markdown]
# ### 20.3 Make your own tree of utilisation
#
# A triage is a function: it asks for counters, one by one, and returns a cause. `read("busy")` gives a counter of the run at hand, as a share of one or in bytes, and 0.0 where it is absent. Two things count: all twelve causes right, and few counters read. The tree `trees.UTILISATION` needs 52 for the twelve; reading all of them for each would be 156.
#
# Be warned: whoever writes such a tree with the twelve at hand, as we did, has it right for the twelve. So it is also asked about a run that it was not made for, the one that was read aloud above.

# %% tags=["exercise"]
# <blank> def triage(read): ... return a cause; begin with the counter that divides the twelve best
# was: triage = None
def triage(read):
    if read("busy") < 0.5:
        if read("loader") > 0.25:
            computing = read("worker_cpu")
            return "heavy_items" if computing > 0.5 else "few_workers" if computing else "starving"
        if read("copies") > 0.25:
            return "host_syncs" if read("to_host") else "pageable_copies"
        return "dispatch_bound" if read("calls") > 0.5 else "host_python"
    if read("growth") > 512 * 1024:
        return "memory_growth"
    if read("optimizer") > 0.2:
        return "slow_optimizer"
    if read("matrix") < 0.5:
        return "unfused"
    if read("tensor_cores") < 0.5:
        return "no_tf32"
    return "small_batch" if read("filled") < 0.7 else "device_bound"


# </blank>
done = drills.triaged(triage)
if done:
    print(f"{done.right} of 12 causes right; {done.counters_read} counters read")

# %% tags=["score"]
L.score("reads", done.counters_read if done and done.right == 12 else None)

# %% tags=["claim"]
unseen = drills.reads("beside1")
thirteenth = triage(lambda name: unseen[name] or 0.0) if triage else None
L.claim(
    "a triage by counters names all twelve causes, and that of a thirteenth run",
    done is not None and done.right == 12 and thirteenth == "few_workers",
    before=len(right),
    after=done.right if done else 0,
    unit="of 12",
    source=COUNTED,
)

# %% [markdown]
# ### 20.2 Do the seven answers stand up to the runs?
#
# An answer that is known by heart is worth what it is borne out by. One line for each of the seven.

# %% tags=["claim"]
# <fix>
# was: told = {number: drills.counters(drills.mended(number)) for number in range(1, 13)}
told = {number: drills.reads(number) for number in range(1, 13)}
# </fix>
cause = {each.number: each.cause for each in drills.CASES}
alike = [told[number]["busy"] for number in (2, 3, 6)]
idle_cases = [number for number in told if told[number]["busy"] < 0.5]
card_bytes = drills.beside("memory2").failure.capacity_bytes
states_bytes = trees.states_bytes(drills.beside("memory2"))
borne_out = {
    "1 busy alike, tensor cores unused or used": abs(told[4]["busy"] - told[11]["busy"]) < 0.05
    and told[4]["tensor_cores"] == 0 < told[11]["tensor_cores"],
    "2 utilisation alike, three causes": max(alike) - min(alike) < 0.1 and len({cause[n] for n in (2, 3, 6)}) == 3,
    "3 products five times as fast; waiting not": gains[4] > 5 and told[1]["busy"] < 0.2,
    "4 samples tenfold, utilisation hardly higher": gains[9] > 10 and told[9]["busy"] > 0.8,
    "5 idle runs, six causes": len({cause[n] for n in idle_cases}) == 6,
    "6 out of memory, three leaves": len({walks[name].leaf.name for name in ("memory1", "memory2", "memory3")}) == 3,
    "7 states exceed the card, a quarter of them does not": states_bytes > card_bytes > states_bytes / 4,
}
for answer, true in borne_out.items():
    print("yes" if true else "no ", answer)
L.claim(
    "each of the seven answers is borne out by a run of this notebook",
    sum(borne_out.values()) == 7,
    after=sum(borne_out.values()),
    unit="of 7",
    source=COUNTED,
)

# %% [markdown]
# ## Transfer
#
# Another kind of job, with the same three steps.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## What next
#
# - Put `%%gpuprofile` on a slow loop of your own. Before you read the first sentence of the report, look at the bar under it, and say cause, action and excluding counter aloud.
# - `%gpuwhy NAME` tells for each cause what it is confused with: `%gpuwhy heavy_items`, `%gpuwhy small_batch`.
# - What was missed above: [05 Data loading](05_data_loading.ipynb), [07 Host to device](07_host_to_device.ipynb), [08 Mixed precision](08_mixed_precision.ipynb), [09 Memory](09_memory_anatomy_and_oom.ipynb).

# %% tags=["card"]
L.card()
