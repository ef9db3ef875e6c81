"""Sampling and evaluating: policies, actors that play, and crews that replace them."""
