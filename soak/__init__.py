"""Kills workers and servers at every moment, and shows that nothing is repeated, lost or asked twice."""
