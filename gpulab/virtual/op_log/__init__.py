"""The log of a virtual run.

The modules, in the order in which the data passes through them:

    ops       records of operations, in program order
    events    timed events, in the columns of gpulab.tables
    memory    allocations and driver calls over time
"""
