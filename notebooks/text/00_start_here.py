# %% [markdown]
# # 00 Start here: why is the GPU idle?
#
# You train a small image classifier, see that it is slow, let gpulab say why, apply the fix it names, and check its prediction against what you measure. Twenty minutes, on any laptop; with a CUDA GPU it uses that. Nothing is downloaded.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("00_start_here")
L

# %% [markdown]
# ## Before you measure: can you trust a clock?
#
# ### 00.1 A clock that is stopped too early
#
# A GPU works through a queue. A call puts work into it and returns; the work is done later. Any queue shows what that does to a stopwatch, so here is one on the CPU: a thread that works through what it is handed.

# %% tags=["setup"]
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

queue = ThreadPoolExecutor(max_workers=1)


def launch():
    """Hand 20 ms of work to the queue, as a CUDA call does."""
    return queue.submit(time.sleep, 0.02)


# %% tags=["predict"]
L.predict("time")

# %% tags=["measure"]
def timed(wait):
    """Milliseconds of one launch, by a clock that waits for the work or does not."""
    began = time.perf_counter()
    work = launch()
    if wait:
        work.result()
    spent_ms = 1000 * (time.perf_counter() - began)
    work.result()
    return spent_ms


timed(wait=True)  # the first call also starts the thread: no part of what comes after
# <fix>
# was: too_early_ms = median(timed(wait=True) for _ in range(20))
too_early_ms = median(timed(wait=False) for _ in range(20))
# </fix>
waited_ms = median(timed(wait=True) for _ in range(20))
print(f"stopped at once: {too_early_ms:.3f} ms; after the work: {waited_ms:.1f} ms")

# %% tags=["reveal"]
L.reveal("time", too_early_ms / waited_ms, "%")

# %% tags=["claim"]
L.claim(
    "a clock that does not wait for the work sees less than half of it",
    too_early_ms < 0.5 * waited_ms,
    before=too_early_ms,
    after=waited_ms,
    unit="ms",
)

# %% tags=["card"]
L.card()
