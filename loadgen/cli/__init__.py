"""From words to acts: the composition roots."""
