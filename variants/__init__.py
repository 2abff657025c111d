"""What is compared: one file a variant, `interface.py` first."""
