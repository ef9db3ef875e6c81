"""Pools of processes that share out many calls: `Executor`, `Pool`, and a joblib backend."""
