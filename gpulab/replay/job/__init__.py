"""What-ifs of a whole job: the graphs of all ranks are replayed together, joined at their collectives.

job_graph        the graphs of the ranks, and which of their collectives are the same
joint_sweep      start and end of everything on all ranks
scaling          arrivals and transfers on another number of ranks
job_rewrites     changes of the communication: no_straggler, balance, bandwidth, compress, no_sync, bucket_mb, ranks
job_prediction   the step time with changes: a likely value, a range and a bound
"""
