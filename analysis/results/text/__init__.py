"""Results as lines of the screen; computes nothing."""
