"""Data only: how sessions are set up, which jars they need, examples of cluster files.

Found with ``importlib.resources``, so that an installed package has them too.
"""
