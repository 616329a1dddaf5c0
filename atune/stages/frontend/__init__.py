"""Kernel functions as tilelang elaborates them."""
