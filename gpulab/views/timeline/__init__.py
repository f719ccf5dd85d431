"""The interactive timeline: a run as groups of rows, cut into tiles that the page draws without further computation.

`scene(diagnosis)` prepares a run. The page reads `Scene.header()` once and `Scene.tile(level, index)` as needed;
`search`, `brush`, `card` and `event` answer its queries.
"""

from gpulab.views.timeline.scene.scene import Scene, scene

__all__ = ["Scene", "scene"]
