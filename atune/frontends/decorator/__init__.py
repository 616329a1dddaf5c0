"""`@atune.autotune`: kernels that tune at their first call and cache the results by key."""
