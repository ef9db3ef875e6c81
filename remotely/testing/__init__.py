"""Fault injection, for tests."""
