"""Sampling and evaluation: policies, actors, and crews of replaceable actors."""
