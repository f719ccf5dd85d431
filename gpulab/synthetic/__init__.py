"""Small real data for the course: made here, the same every time, and kept in a cache folder.

    images    JPEG files of ten colours, as dear to decode as photographs
    texts     token ids of documents, of log-normal lengths
    tables    rows of numbers with a label that can be learnt
    sounds    tones with noise, a class for each pitch
    cache     the folder, and how much may lie in it

Nothing is downloaded. What is asked for again comes from the cache; what does not fit is made anew each time.
"""

from __future__ import annotations

from gpulab.synthetic.cache import clear, path
from gpulab.synthetic.images import images
from gpulab.synthetic.sounds import sounds
from gpulab.synthetic.tables import table
from gpulab.synthetic.texts import texts

__all__ = ["clear", "images", "path", "sounds", "table", "texts"]
