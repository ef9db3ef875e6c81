"""The benchmark of replays: speed and memory, beside those of others."""
