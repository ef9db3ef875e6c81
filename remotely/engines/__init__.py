"""The other carriers: this process, and Ray."""
