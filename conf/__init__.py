"""Data only: settings of sessions, the jars that sessions need, and examples of cluster files. The code finds
these files with ``importlib.resources``, so that an installed package has them too.
"""

if __name__ != "stratalog.conf":
    raise ImportError('import "stratalog.conf", not "conf": under two names each module would be loaded twice')
