"""Datasets: importing this package registers the built-in ones."""

from . import aan, cifar, imdb, listops, mnist, pathfinder, powerlaw, proxy, series, speech

__all__ = ["aan", "cifar", "imdb", "listops", "mnist", "pathfinder", "powerlaw", "proxy", "series", "speech"]
