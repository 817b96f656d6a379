"""Files of a log that replace others: merged, compacted, or without erased records. The rules and their protocols
are in ``stratalog.partitions.removal`` and ``stratalog.partitions.erasure``.

merge              which files become one segment; ``rewrite`` writes it
compaction         when a log is compacted; ``superseded`` finds the records that a compaction removes, by key
removing           applies a compaction to a replica
erasing            applies erasures to a replica
wanted_keys        finds the records of given keys, ``wanted_where`` those that a condition selects
where              reads the text of a condition, ``predicate`` evaluates it
comparable_keys    which types of keys can be compared
"""
