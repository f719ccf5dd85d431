# %% [markdown]
# # Why is the GPU idle? The course
#
# Guided notebooks. Each states a symptom, lets you predict, measures, says why, and lets you mend it; at its end is a card with your own figures. All of it runs on a laptop without a GPU: what only a GPU can show is computed for a virtual one, and says so. With a CUDA GPU the same cells run on it.
#
# Choose a path, or go from the first to the last.
#
# <!-- the course: python tools/notebooks.py index -->
#
# | lesson | it answers | minutes | after |
# |---|---|---|---|
# | [00 Start here](00_start_here.ipynb) | why is the GPU idle? | 20 | - |
# | [01 What is utilisation?](01_what_is_utilisation.ipynb) | if the GPU is 100 % used, is it working hard? | 45 | 00 |
# | [03 Parallel work and batch size](03_parallel_work_and_batch.ipynb) | how much should the GPU get at once? | 45 | 00 |
# | [05 Data loading](05_data_loading.ipynb) | is the GPU slow, or is it waiting? | 45 | 00, 01 |
# | [07 Host to device](07_host_to_device.ipynb) | is the GPU computing, or being copied to? | 45 | 01 |
# | [08 Mixed precision](08_mixed_precision.ipynb) | what do sixteen bits give, and what do they break? | 50 | 01 |
# | [09 Memory: anatomy and running out](09_memory_anatomy_and_oom.ipynb) | what fills the GPU's memory, and what is the cheapest way out? | 55 | 01 |
# | [12 Launches, fusion and graphs](12_launch_fusion_graphs.ipynb) | why does the GPU wait between small kernels? | 45 | 01 |
# | [18 Case study: the path to 90 %](18_case_study.ipynb) | in which order is a slow training mended? | 35 | 05, 07, 08 |
# | [20 Diagnosis drills](20_diagnosis_drills.ipynb) | can you name the cause before anybody tells you? | 55 | 01, 05, 07, 08, 09 |
#
# - **one evening** (160 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [05](05_data_loading.ipynb), [08](08_mixed_precision.ipynb)
# - **training is slow** (365 minutes): [01](01_what_is_utilisation.ipynb), [05](05_data_loading.ipynb), [07](07_host_to_device.ipynb), [03](03_parallel_work_and_batch.ipynb), [08](08_mixed_precision.ipynb), [12](12_launch_fusion_graphs.ipynb), [18](18_case_study.ipynb), [20](20_diagnosis_drills.ipynb)
# - **out of memory** (150 minutes): [01](01_what_is_utilisation.ipynb), [09](09_memory_anatomy_and_oom.ipynb), [08](08_mixed_precision.ipynb)
#
# <!-- the end of the course -->
#
# ## How far you are
#
# Kept on this machine alone, as counts and dates; `GPULAB_PROGRESS=off` keeps nothing.

# %% tags=["check"]
from gpulab.lessons import progress

progress()
