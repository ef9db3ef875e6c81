"""A training run: its session, folder, checkpoints, metrics and progress."""
