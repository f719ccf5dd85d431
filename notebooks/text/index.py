# %% [markdown]
# # Why is the GPU idle? The course
#
# These are guided notebooks. Each one starts with a symptom, asks you to predict, measures, explains the cause, and lets you apply the fix. At the end, a card sums up the lesson with your own results. All notebooks run on a laptop without a GPU: where an experiment needs one, it uses a virtual GPU and says so. With a CUDA GPU, the same cells should run on it (untested).
#
# Choose a path, or go through the lessons in order.
#
# <!-- the course: python tools/notebooks.py index -->
#
# | lesson | question | minutes | prerequisites |
# |---|---|---|---|
# | [00 Start here](00_start_here.ipynb) | why is the GPU idle? | 20 | - |
# | [01 What is utilisation?](01_what_is_utilisation.ipynb) | does a GPU at 100 % utilisation work hard? | 45 | 00 |
# | [02 GPU architecture and CUDA](02_gpu_architecture_and_cuda.ipynb) | what do thousands of threads do at once? | 50 | 01 |
# | [03 Parallel work and batch size](03_parallel_work_and_batch.ipynb) | how much work should the GPU get at once? | 45 | 00 |
# | [04 Large batches and quality](04_large_batches.ipynb) | when does a larger batch make training faster, and when only samples per second? | 45 | 03 |
# | [05 Data loading](05_data_loading.ipynb) | is the GPU slow, or is it waiting? | 45 | 00, 01 |
# | [06 Formats and preprocessing](06_formats_and_preprocessing.ipynb) | which work does every epoch repeat? | 55 | 05 |
# | [07 Host to device](07_host_to_device.ipynb) | is the GPU computing, or waiting for copies? | 45 | 01 |
# | [08 Mixed precision](08_mixed_precision.ipynb) | what does half precision speed up, and what does it break? | 50 | 01 |
# | [09 Memory: anatomy and running out](09_memory_anatomy_and_oom.ipynb) | what fills the GPU's memory, and what is the cheapest fix when it runs out? | 55 | 01 |
# | [10 Memory savers](10_memory_savers.ipynb) | what does each way to save memory save, and what does it cost? | 55 | 09 |
# | [11 Architecture and search](11_architecture_and_search.ipynb) | which design is fast, and how do you find it? | 60 | 03 |
# | [12 Launches, fusion and graphs](12_launch_fusion_graphs.ipynb) | why does the GPU wait between small kernels? | 45 | 01 |
# | [13 Access patterns](13_access_patterns.ipynb) | which bytes does a warp fetch, and which does it use? | 45 | 02 |
# | [14 Attention](14_attention.ipynb) | what does it store, and which kernel computes it? | 50 | 09 |
# | [15 Distribution](15_distribution.ipynb) | what do several GPUs cost, and when do they help? | 60 | 03, 10 |
# | [16 Scheduling and sharing](16_scheduling_and_sharing.ipynb) | who gets which GPU, and how much of it is used? | 55 | 01, 05 |
# | [17 Monitoring and tools](17_monitoring_and_tools.ipynb) | which tool shows what, and when should it wake you? | 60 | 01 |
# | [18 Case study: the path to 90 %](18_case_study.ipynb) | in which order should you fix a slow training run? | 45 | 05, 07, 08 |
# | [19 Cost and energy](19_cost_and_energy.ipynb) | what does an idle GPU cost, and which change pays? | 45 | 01, 18 |
# | [20 Diagnosis drills](20_diagnosis_drills.ipynb) | can you find the cause on your own? | 60 | 01, 05, 07, 08, 09 |
#
# Ways through the lessons:
#
# - **one evening** (160 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [05](05_data_loading.ipynb), [08](08_mixed_precision.ipynb)
# - **training is slow** (555 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [05](05_data_loading.ipynb), [06](06_formats_and_preprocessing.ipynb), [07](07_host_to_device.ipynb), [03](03_parallel_work_and_batch.ipynb), [04](04_large_batches.ipynb), [08](08_mixed_precision.ipynb), [09](09_memory_anatomy_and_oom.ipynb), [12](12_launch_fusion_graphs.ipynb), [18](18_case_study.ipynb), [20](20_diagnosis_drills.ipynb)
# - **out of memory** (275 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [09](09_memory_anatomy_and_oom.ipynb), [10](10_memory_savers.ipynb), [14](14_attention.ipynb), [08](08_mixed_precision.ipynb)
# - **cluster** (440 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [05](05_data_loading.ipynb), [03](03_parallel_work_and_batch.ipynb), [09](09_memory_anatomy_and_oom.ipynb), [10](10_memory_savers.ipynb), [15](15_distribution.ipynb), [16](16_scheduling_and_sharing.ipynb), [17](17_monitoring_and_tools.ipynb)
# - **kernels** (205 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [02](02_gpu_architecture_and_cuda.ipynb), [13](13_access_patterns.ipynb), [12](12_launch_fusion_graphs.ipynb)
# - **design a model** (370 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [03](03_parallel_work_and_batch.ipynb), [04](04_large_batches.ipynb), [08](08_mixed_precision.ipynb), [09](09_memory_anatomy_and_oom.ipynb), [11](11_architecture_and_search.ipynb), [14](14_attention.ipynb)
# - **teach it** (365 minutes): [00](00_start_here.ipynb), [01](01_what_is_utilisation.ipynb), [05](05_data_loading.ipynb), [07](07_host_to_device.ipynb), [08](08_mixed_precision.ipynb), [09](09_memory_anatomy_and_oom.ipynb), [18](18_case_study.ipynb), [20](20_diagnosis_drills.ipynb)
#
# <!-- the end of the course -->

# %% [markdown]
# ## Your progress
#
# gpulab stores your progress only on this machine, as counts, dates and your answers; set `GPULAB_PROGRESS=off` to store nothing.

# %% tags=["check"]
from gpulab.lessons import progress

progress()
