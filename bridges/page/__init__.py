"""A page: the state of a cluster as HTML, as one file that needs nothing but itself, or served. From below:

    tiers        what of one log is hot, cold, pending, expired
    activity     operations over time: what was appended, copied, tiered; what waited
    groups       consumer groups by topic and partition
    content      all that the page shows, as plain data
    document     the content in the page's template (``report.html``, ``report.css``, and the parts of its script)
    report       the operation, and the page as an object that can be saved
    served       the page over HTTP, kept up to date while it is viewed

The look is that of ``health``, taken once: a page costs what ``health`` costs, and writes nothing to the cluster.
The browser gets the content as JSON, and makes text of it: no name in it is ever read as HTML. It draws the rows
that are in sight, so a page of 10,000 partitions opens at once. The file asks no network, and forbids it; the
served page asks its own server alone.

Only ``cluster`` uses this package.
"""
