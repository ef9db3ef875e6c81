"""Ray's microbenchmarks, in the names of its releases, on remotely and on Ray."""
