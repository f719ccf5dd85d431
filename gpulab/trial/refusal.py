"""What to do where a fix cannot be tried."""

COMPARE_YOURSELF = "apply the fix and profile the cell again, then compare: %gpucompare BEFORE AFTER"
