"""Who asks for how much, and when."""
