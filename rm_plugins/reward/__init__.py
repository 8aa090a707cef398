"""Loading a reward model, and the forms in which trainers take it."""
