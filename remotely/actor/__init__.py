"""The actor process, and the zygote that it is forked from."""
