"""Returns, losses and distributions, as pure functions of tensors."""
