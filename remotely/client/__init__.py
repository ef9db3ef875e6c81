"""The client: the engine of a ZeroMQ cluster, which places actors and sends calls."""
