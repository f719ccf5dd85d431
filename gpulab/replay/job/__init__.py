"""What-ifs of a whole job: the graphs of all ranks are replayed together, joined at their collectives.

job_graph        the graphs of the ranks, and which of their collectives are the same
joint_sweep      start and end of everything on all ranks
scaling          arrivals and transfers on another number of ranks
communication    changes of the communication: stragglers, balance, bandwidth, compression, buckets, more ranks
job_rewrite      one kind of change; every change of a rank is one of a job, too
job_catalogue    all of them, by name
job_prediction   the step time with changes: a likely value, a range and a bound
"""
