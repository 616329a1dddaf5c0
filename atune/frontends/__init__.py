"""What users call: Python functions, the decorator, and the command line."""
