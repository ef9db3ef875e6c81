"""Trained agents: loading, evaluating and watching them."""
