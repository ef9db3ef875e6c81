"""Implementations of `engine.Engine` other than the ZeroMQ cluster: in process, and on Ray."""
