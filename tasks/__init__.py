"""What variants are compared on: one file a task, `interface.py` first."""
