"""A page: the state of a cluster as one file of HTML, which needs nothing but itself. From below:

    tiers        what of one log is hot, cold, pending, expired
    activity     operations over time: what was appended, copied, tiered; what waited
    content      all that the page shows, as plain data
    document     the content in the page's template (``report.html``, ``report.css``, ``report.js``)
    report       the operation, and the page as an object that can be saved

The look is that of ``health``, taken once: a page costs what ``health`` costs, and writes nothing to the cluster.
The browser gets the content as JSON, and makes text of it: no name in it is ever read as HTML. It draws the rows
that are in sight, so a page of 10,000 partitions opens at once. The page asks no network, and forbids it.

``cluster`` may ask this, and nothing below knows of it.
"""
