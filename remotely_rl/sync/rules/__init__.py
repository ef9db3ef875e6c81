"""The sync rules: clients that wait, that never wait, and that take local steps."""
