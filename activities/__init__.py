"""One side effect each, behind a port."""
