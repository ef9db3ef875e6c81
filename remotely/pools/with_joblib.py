"""`register_joblib`, apart from the backend itself, which imports joblib."""


def register_joblib() -> None:
    """Make the cluster a backend of joblib, and so of scikit-learn.

    After it, `with joblib.parallel_config(backend="remotely"):` runs `joblib.Parallel`, and
    whatever takes `n_jobs`, on the cluster.  Without `n_jobs`, all of its cores are used.  Further
    arguments of `parallel_config` are those of `remotely.Executor`.  Raises ImportError without
    joblib, which is not a dependency of remotely.
    """
    import joblib  # noqa: PLC0415 - not a dependency

    from remotely.pools.joblib_backend import RemotelyBackend  # noqa: PLC0415 - it imports joblib

    joblib.register_parallel_backend("remotely", RemotelyBackend)
