"""What a trial keeps from having effects: files, programs, connections.

program_guard      refuse new programs and connections
file_guard         refuse changes of files as well: for cells
overlay            keep what a script changes in a folder of the trial
redirected_files   Python's functions for files, on an overlay
write_limits       let the kernel refuse the rest
"""
