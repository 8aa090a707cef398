"""Speed and memory, measured in one run and written as JSON."""
