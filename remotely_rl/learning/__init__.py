"""Learners: optimizer steps, in one process or shared between several."""
