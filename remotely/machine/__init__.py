"""This machine: its resources, addresses, processes, folders and daemons."""
