"""The benchmark of vector environments."""
