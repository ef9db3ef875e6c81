"""The process of a machine that takes large values from other machines, and lends them there."""
