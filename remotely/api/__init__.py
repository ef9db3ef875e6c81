"""What users call."""
