"""`@atune.autotune`: tuned at the first call, cached by key."""
