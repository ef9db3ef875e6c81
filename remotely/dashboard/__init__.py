"""A read-only dashboard of a cluster in the browser, served by a separate process."""
