"""Data files only: the settings of sessions, the jars that sessions need, and an example of a cluster file.

The files are found with ``importlib.resources``, so that they also work in an installed package.
"""

if __name__ != "stratalog.conf":
    raise ImportError('import "stratalog.conf", not "conf": under two names each module would be loaded twice')
