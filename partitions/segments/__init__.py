"""A data file of a log: how it is written, read and checked.

reader             reads the footer and the records (``Segment``)
writer             writes a file from batches of records
footer             what the log stores in Parquet's footer: offsets, producers, transactions, the checksum
check              verifies every byte, before a copy gets its name
signature          the tag by which a cluster recognises its files
parquet_footer     reads the footer of a file of unknown origin within bounds; ``thrift`` decodes it
parquet_pages      inspects the pages of such a file before Arrow decodes them
parquet_decoding   decodes its columns
"""
