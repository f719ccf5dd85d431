"""Training loops as people write them, each with changes whose gain is measured by the clock.

loop.py      what a loop and a change are; runs one cell in a scratch folder
registry.py  finds the loops in `loops/<family>/<name>.py` and `set_aside/<family>/<name>.py`
outcome.py   one run of a variant: seconds, samples, loss, optimizer steps, memory
child.py     runs one variant in a fresh process and writes its outcome
verdict.py   ratios per round, their median and range, the change that wins
measure.py   the program: measures all loops or checks that they run
answers.py   the kinds of change that each rule of gpulab stands for
diagnose.py  asks gpulab about each loop, and compares its answer and its prediction with what was measured
"""
