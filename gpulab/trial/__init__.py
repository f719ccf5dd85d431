"""Trials: run a cell or a script for some seconds with and without a fix, and compare.

fix_trial, all_fixes           one fix, or all of them, of a cell: on copies of the user's objects
fix_placement, loader_call     where in the code a fix belongs
program_code                   a cell, or a script with the files that it imports
cell_runner, timed_run         run a cell for some seconds; `gpulab.cli` does so with scripts
rounds                         run variants in turn, and compare
effects                        keep files, programs and connections as they are

It imports nothing: a script in a trial starts before NumPy and PyTorch are imported.
"""
