"""One run: proposals, compile and benchmark stages, scheduling and the final, over the protocols in `interfaces`."""
