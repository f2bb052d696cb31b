"""Transport between nodes, and the formats of its messages."""
