"""Reading: which files, of which tier, hold a range of a log.

plan     pure: a replica's log and the remote log -> the exact files and their parts
"""
