"""Message passing at finite d: one step, the run around it, and what finishes a run that cycles."""
