"""Returns, losses: pure functions of tensors."""
