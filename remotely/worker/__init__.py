"""The worker: the daemon of one machine, which starts, watches and reaps actors."""
