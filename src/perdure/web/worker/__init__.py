"""The server's side of the worker protocol: `POST /v1/worker/{operation}`."""
