"""Votes under noise and what they certify: statistics and draws, no I/O."""
