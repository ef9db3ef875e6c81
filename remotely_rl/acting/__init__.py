"""Sampling and evaluating: policies that act, actors that play, crews that replace them, rounds and streams of their rollouts."""
