"""Training: a recipe in, a run folder with a model out; stopped at any point, it resumes bit for bit."""
