"""The deterministic simulator of sync rules."""
