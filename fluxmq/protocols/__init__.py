"""Wire standards: bytes in, values out. Nothing here performs I/O, reads a clock or draws
randomness."""
