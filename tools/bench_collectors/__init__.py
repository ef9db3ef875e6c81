"""TorchRL's benchmark of collectors, beside VectorEnv."""
