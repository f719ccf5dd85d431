"""The command line: `gpulab` or `python -m gpulab`.

main               parse the command line, call a command, print its view, return the exit status
options            the commands and their options
commands           report, whatif, compare, info, lessons, nbval
run_command        gpulab run: record a program
program            run a script or a module as `python` would
script_trial       gpulab fix: measure the fixes of a script
script_runner      run variants of a script for some seconds
local_files        the files that a script imports from its own folder
trial_process      one such run: a process of its own
torch_import       call a function as soon as the program has imported PyTorch
result_folder      where the recordings of a job are written, and who has finished
job_report         the report of a job: its text, page and summary
summary            the figures of a diagnosis as JSON
"""
