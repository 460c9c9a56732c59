"""The worker protocol: what a worker or a client without a database may ask of a server.

`POST /v1/worker/{operation}` with a JSON body. A worker sends intentions; the server builds
events, times, actor and source. One struct for each request and each answer; `OPERATIONS` lists
them. `values` translates between these messages and the engine's own values, `checks` has what
types alone cannot check.
"""
