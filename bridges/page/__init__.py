"""A page: the state of a cluster as HTML, either as one self-contained file or served. From below:

    tiers        which parts of one log are hot, cold, pending or expired
    activity     operations over time: amounts appended, copied and tiered, and backlogs
    groups       consumer groups by topic and partition
    content      the page's content as plain data
    document     the content in the page's template (``report.html``, ``report.css``, and the parts of its script)
    report       the operation, and the page as an object that can be saved
    served       the page over HTTP, kept up to date while it is viewed

The cluster is observed once, as by ``health``. So a page costs as much as ``health``, and writes nothing to the
cluster. The browser gets the content as JSON, and shows it as text, so that no name in the content is ever read as
HTML. The browser draws only the visible rows, so a page of 10,000 partitions opens immediately. The file loads
nothing over the network, and forbids such requests. The served page sends requests only to its own server.

Only ``cluster`` uses this package.
"""
