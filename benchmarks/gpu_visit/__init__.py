"""What to measure on a machine with a GPU, in stages, the most valuable first: `python tools/gpu_visit.py`.

visit.py         what a stage is given, and what it returns
catalogue.py     the stages, with their limits
runner.py        runs each stage in a process of its own, within its limit and the budget; resumes
child.py         that process
processes.py     runs one part of a stage in a process of its own
summary.py       the results as one page, and as one archive
this_gpu.py      the GPU of this machine as a virtual GPU
bare_machine.py  commands for a machine without network
stages/          the stages, one file each; nvml_fields.py and ceilings.py belong to environment.py
planted_loops/   training loops with a planted cause; measuring.py measures one, judging.py compares
"""
