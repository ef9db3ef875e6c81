"""Networks, and what they are made of."""
