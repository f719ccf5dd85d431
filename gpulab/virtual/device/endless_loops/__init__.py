"""Loops that cannot end on the virtual GPU: their condition reads a value that is assumed, always the same.

The modules:

    exits     the loops of a source file, and the conditions that end them
    guard     counts the passes of such a loop and stops it with an error that names its line
"""
