"""Comparisons of two runs, and of several in a row.

comparison      two runs side by side: step time, ledger, findings
changes         kernels or operators that changed; memory and energy
story           several runs in a row: the gain of each change
"""
