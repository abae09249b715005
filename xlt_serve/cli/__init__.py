"""The command ``xlt``, a file a command."""
