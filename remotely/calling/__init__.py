"""The engine: every verb on actors, their calls and their values, over a carrier."""
