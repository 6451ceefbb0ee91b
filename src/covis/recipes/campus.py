"""Recipes on the campus photographs."""
