"""Data only: how sessions are set up, which jars they need, examples of cluster files.

Found with ``importlib.resources``, so that an installed package has them too.
"""

if __name__ != "stratalog.conf":
    raise ImportError('import "stratalog.conf", not "conf": under two names each module would be loaded twice')
