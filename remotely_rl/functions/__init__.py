"""The mathematics of the algorithms: returns, losses and distributions, as pure functions."""
