"""The functions and classes that users call."""
