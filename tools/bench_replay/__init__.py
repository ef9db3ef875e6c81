"""The benchmark of replays: their speed and memory."""
