"""A kernel with its space, inputs and reference: naming, fingerprints and transport to workers."""
