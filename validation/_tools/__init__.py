"""Code that scripts of several groups use, and the runner of the scripts."""
