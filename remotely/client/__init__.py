"""The carrier of a cluster: ZeroMQ, from a client to its actors and the master."""
