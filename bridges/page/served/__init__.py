"""The page that lives: served over HTTP, read only, and fresh as long as somebody looks at it. From below:

samples      figures over time, in bounded memory
access       who may ask: the name that a request gives the host, the token, the session of a browser
answers      what each address answers, with its headers
lookups      what is read only when a reader asks: records, and the versions of a remote table
server       options, the looks at the cluster, and the running page
"""
