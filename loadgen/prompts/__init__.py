"""Request bodies: their tokens, text and images."""
