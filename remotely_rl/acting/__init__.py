"""Sampling: actors, and the crews that keep them at work."""
