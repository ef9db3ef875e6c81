"""What remotely reads from a user's class, and adds to it."""
