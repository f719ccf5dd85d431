"""The command line: `gpulab` or `python -m gpulab`.

main               parse the command line, call a command, print its view, return the exit status
options            the commands and their options
commands           fix, report, whatif, compare, info, lessons, nbval
run_command        gpulab run: record a program
program            run a script or a module as `python` would
fix                gpulab fix: measure the fixes of a script
torch_import       call a function as soon as the program has imported PyTorch
result_folder      where the recordings of a job are written, and who has finished
job_report         the report of a job: its text, page and summary
summary            the figures of a diagnosis as JSON
"""
