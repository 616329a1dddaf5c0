"""Events, the fold over them, and the files that hold them."""
