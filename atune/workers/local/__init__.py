"""The engine's protocols, implemented by processes on this machine."""
