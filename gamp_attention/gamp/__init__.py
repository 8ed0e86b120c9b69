"""Message passing at finite d: one iteration, the loop, a descent that completes runs, and the checked result."""
