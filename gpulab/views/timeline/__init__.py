"""The interactive timeline: a run as groups of rows, cut into tiles that the page draws without further computation.

`Scene` is a run prepared for the timeline. The page reads `Scene.header()` once and `Scene.tile(level, index)` as
needed; `Scene.search`, `Scene.brush`, `Scene.card` and `Scene.event` answer its queries.
"""

from gpulab.views.timeline.scene.scene import Scene

__all__ = ["Scene"]
