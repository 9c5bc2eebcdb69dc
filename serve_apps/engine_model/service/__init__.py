"""A whole simulated service: balancers, prefix reuse, several engines."""
