"""Questions with a number for an answer: a run in, a number, an array or a small frozen value out.

The files, each a topic:

    steps       where the steps are, and which are evidence
    ledger      where each step's time went, exactly
    loader      what feeding the model costs
    launches    how much work each call starts
    copies      copies to the device
    syncs       waits for the device, and what follows them
    frames      which of the user's lines ran meanwhile
"""
