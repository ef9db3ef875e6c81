"""Futures, streams, and how threads wait for them."""
