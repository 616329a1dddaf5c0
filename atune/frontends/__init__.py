"""The user interfaces: Python functions, the decorator, and the command line."""
