"""The choice among shapes of a node, and how sure it is; knows capacities, not how they were found."""
