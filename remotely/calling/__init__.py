"""Call handling that all engines share: limits, queues, retries, restarts."""
