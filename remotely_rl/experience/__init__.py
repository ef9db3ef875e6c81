"""What actors have seen: trajectories and batches."""
