"""Small real data for the course: generated here, the same every time, and kept in a cache folder.

    images    JPEG files of ten colours, as expensive to decode as photographs
    texts     token ids of documents with log-normal lengths
    tables    rows of numbers with a label that can be learnt
    sounds    tones with noise, one class per pitch
    cache     the cache folder and its size limit

Nothing is downloaded. Cached data are reused; data removed to stay within the limit are generated again.
"""

from __future__ import annotations

from gpulab.synthetic.cache import clear, path
from gpulab.synthetic.images import images
from gpulab.synthetic.sounds import sounds
from gpulab.synthetic.tables import table
from gpulab.synthetic.texts import texts

__all__ = ["clear", "images", "path", "sounds", "table", "texts"]
