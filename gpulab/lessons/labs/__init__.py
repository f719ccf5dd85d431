"""What the notebooks import: data sets, counters and small models, one module for each lesson or shared by several.

They stand here and not in the notebooks because DataLoader workers are processes of their own, which on macOS and
Windows, and on Linux from Python 3.14 on, must be able to import what they run.
"""
