"""The process that makes calls: the engine of a ZeroMQ cluster."""
