"""The engine's protocols, kept with processes of this machine."""
