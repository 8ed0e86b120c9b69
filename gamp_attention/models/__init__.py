"""The law of a problem: teacher, student, tokens, positions and penalty, at no size yet."""
