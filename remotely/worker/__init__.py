"""The daemon of one machine: starts actors, watches them, and reaps them."""
