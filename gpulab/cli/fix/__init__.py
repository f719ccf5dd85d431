"""`gpulab fix`: measure the fixes of a script.

script_trial       record the script, try the fix of each finding, and compare
script_runner      run variants of the script for some seconds
trial_process      one such run: a process of its own
local_files        the files that a script imports from its own folder

It imports nothing: a script in a trial starts before NumPy and PyTorch are imported.
"""
