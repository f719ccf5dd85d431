"""The interactive timeline: a run as groups of rows, cut into tiles that a page draws and never computes on.

`scene(diagnosis)` makes it ready; `Scene.header()` is told once, `Scene.tile(level, index)` as often as somebody looks,
and `search`, `brush`, `card` and `event` answer what is asked of it.
"""

from gpulab.views.timeline.scene.scene import Scene, scene

__all__ = ["Scene", "scene"]
