"""The ways of answering, a file each."""
