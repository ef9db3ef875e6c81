"""Learning: what takes optimizer steps, alone or shared."""
