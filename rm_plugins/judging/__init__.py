"""Judges that compare or read answers: pairs and groups, verdicts, and what makes one reward a conversation of them."""
