"""Functions over the results of several problems: regret, cover, a dispatch rule, and the comparison of two sets."""
