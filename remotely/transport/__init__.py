"""Sockets, keys and the loops over them: how messages travel."""
