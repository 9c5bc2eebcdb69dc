"""Published measurements beside the engine model's answers: readers, intervals, and fits without a source."""
