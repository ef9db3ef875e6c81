"""The master: tracks the workers and clients of a cluster, and places actors on workers."""
