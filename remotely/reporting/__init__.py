"""Output for people: status, logs, and warnings that do not repeat themselves."""
