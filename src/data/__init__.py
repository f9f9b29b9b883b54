"""Datasets: importing this package registers the built-in ones."""

from . import aan, cifar, imdb, listops, mnist, pathfinder, proxy, series, speech

__all__ = ["aan", "cifar", "imdb", "listops", "mnist", "pathfinder", "proxy", "series", "speech"]
