"""Benchmarks of `remotely.Published`."""
