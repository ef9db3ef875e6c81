"""The store: one process per machine that receives large values and lends them to its actors."""
