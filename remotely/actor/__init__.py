"""The process of one actor, and the zygote from which it is forked."""
