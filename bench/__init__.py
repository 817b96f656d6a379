"""``make bench``: compares this log with the plainest tool that moves the same bytes.

Each benchmark takes a ``Bench``, does the same work alternately with this log and with its peer (A B A B, because
the speed of a machine varies), and returns lines of the table with the median and range of the turns. The times
include neither preparation nor the start of the session. A benchmark that ``bench.__main__`` does not list is a
command of its own, such as ``python -m bench.hour``.
"""
