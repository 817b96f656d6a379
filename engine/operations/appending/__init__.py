"""Records into the log.

append       a DataFrame or batches, shared out to partitions, to their leaders
dealing      among how many partitions, also when it is tried again
acknowledge  the second half, for all partitions at once: what of it is acknowledged, and what only perhaps
"""
