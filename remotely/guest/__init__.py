"""`remotely.serve`: a process that dials in to a cluster to serve an object of its own."""
