"""Models: teacher, student, penalty and token distribution of a problem, independent of its size."""
