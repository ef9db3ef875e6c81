"""The user's class: what remotely reads from it, and adds to it."""
