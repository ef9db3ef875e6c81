"""The sync rules, one file each."""
