"""Datasets: importing this package registers the built-in ones."""
