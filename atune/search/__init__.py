"""Which candidate next: strategies behind ask and tell, and the simulation that compares them on recordings."""
