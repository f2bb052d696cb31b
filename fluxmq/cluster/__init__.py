"""Transport between nodes, and the formats of what it carries."""
