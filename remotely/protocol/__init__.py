"""The messages between processes, and how they are encoded: no sockets, clocks or files."""
