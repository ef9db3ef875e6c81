"""Calls as every engine treats them: limits, queues, retries, next lives."""
