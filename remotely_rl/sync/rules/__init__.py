"""The sync rules: of clients that wait, that never wait, and that step by themselves."""
