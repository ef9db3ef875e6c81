"""What people read: status, logs, and warnings that do not repeat themselves."""
