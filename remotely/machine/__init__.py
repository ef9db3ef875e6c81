"""This machine: what it has, which processes run on it, where files are kept."""
