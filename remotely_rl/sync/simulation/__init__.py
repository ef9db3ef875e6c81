"""Deterministic simulator of sync rules."""
