"""The log of a virtual run.

ops       records of operations, in program order
events    timed events, in the columns of gpulab.tables
memory    allocations and driver calls over time
"""
