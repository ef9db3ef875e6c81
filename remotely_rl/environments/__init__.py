"""Environments and their spaces, under one contract."""
