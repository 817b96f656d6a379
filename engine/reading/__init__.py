"""Reading: which files, of which tier, hold a range of a log; and some records of them without Spark.

plan      pure: a replica's log and the remote log -> the exact files and their parts
records   the records of such parts: row groups by one ranged request each, remembered within a bound
fetching  many fetches at once, local ones apart from remote ones
cache     what was used last, up to a bound

A consumer that follows the end of a log is a loop over fetches from ``Fetched.next_offset`` on; what it has to add
is when to look again.
"""
