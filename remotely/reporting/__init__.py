"""Output for people: cluster status, logs, and rate-limited warnings."""
