"""The live page: served over HTTP, read-only, and kept up to date while it is viewed. From below:

samples      figures over time, in bounded memory
access       decides which requests are allowed: by host name, token, and browser session
answers      the response of each address, with its headers
lookups      data that is read only on request: records, and the versions of a remote table
server       options, reads of the cluster, and the running page
"""
