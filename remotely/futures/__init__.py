"""Futures and streams, and how threads wait for them."""
