"""What the prior makes of the recordings: where it puts the best candidates of each space.
"""
