"""A copy on disk of the recording in progress, from which a killed process's run is recovered.

framing   records of a file: a length, a checksum and the content
content   the header, the state and the rows of tables as the content of records
folder    where the files are, and which of them belong to processes that have ended
spool     appends what is new about once a second, in the sampler's thread
recovery  gpulab.recover(): files of killed processes to runs
"""
