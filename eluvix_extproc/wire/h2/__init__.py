"""HTTP/2 and gRPC as pure state machines: a server's end of a connection, without sockets, clocks or tasks.

`connection` has the theory of operation; `grpc` is what gRPC adds to it. `wire/h2_server.py` runs both on asyncio.
"""
