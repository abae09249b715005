"""Commands of ``xlt``, one a file: ``add`` declares it, ``run`` does it."""
