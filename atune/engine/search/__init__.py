"""Chooses candidates: strategies with ask and tell."""
