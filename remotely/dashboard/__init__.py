"""A dashboard of a cluster in the browser: a process of its own, which only looks."""
