"""Trained agents: loading, evaluation, video and export."""
