"""One typed spec per configuration group, and their root."""
