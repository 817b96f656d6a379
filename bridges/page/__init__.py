"""The state of a cluster as one self-contained HTML file. From below:

    tiers        the hot, cold, pending and expired parts of a log
    activity     operations over time: amounts appended, copied, tiered; backlogs
    content      the content of the page, as plain data
    document     the content in the page's template (``report.html``, ``report.css``, ``report.js``)
    report       the operation, and the page as an object that can be saved

A page observes the cluster once, as ``health`` does, at the same cost, and writes nothing to the cluster. The
browser gets the content as JSON and shows it as text, so it never parses a name as HTML. It draws only visible
rows, so a page of 10,000 partitions opens at once. The page uses no network, and forbids its use.

Only ``cluster`` uses this package.
"""
