"""Starting, stopping and watching clusters."""
