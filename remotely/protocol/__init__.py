"""The messages between processes: pure, no socket, clock or file in it."""
