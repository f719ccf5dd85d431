"""The log of a virtual run: operations in program order, then events, then memory."""
