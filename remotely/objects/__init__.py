"""What remotely reads of a user's class, and adds to it."""
