"""Chooses candidates: strategies with ask and tell, and the simulation that compares them on recordings."""
