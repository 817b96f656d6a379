<<<<<<< HEAD
"""Data files only: the settings of sessions, the jars that sessions need, and an example of a cluster file.

The files are found with ``importlib.resources``, so that they also work in an installed package.
=======
"""Data only: settings of sessions, the jars that sessions need, and examples of cluster files. The code finds
these files with ``importlib.resources``, so that an installed package has them too.
>>>>>>> 81a9d85544ab41582cbdc0b462d44cb1c0815aab
"""

if __name__ != "stratalog.conf":
    raise ImportError('import "stratalog.conf", not "conf": under two names each module would be loaded twice')
