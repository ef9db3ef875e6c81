"""The process that manages a cluster: who is there, and which actor goes where."""
