"""Several runs that answer one question together."""
