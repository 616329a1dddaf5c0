"""A kernel with its space, inputs and reference: how it is named, fingerprinted and carried to a worker."""
