"""Runs on many machines: the stages of each node behind one `Machine`. Ray is the transport."""
