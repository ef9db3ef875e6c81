"""The benchmark of the dashboard, with simulated clusters and runs."""
