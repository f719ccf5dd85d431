"""How things look: each function here takes values and returns something displayable; none shows anything itself."""

from gpulab.views.comparison import comparison
from gpulab.views.info import info
from gpulab.views.page import page
from gpulab.views.report import Report, report
from gpulab.views.view import View
from gpulab.views.whatif import WhatIf, whatif

__all__ = ["Report", "View", "WhatIf", "comparison", "info", "page", "report", "whatif"]
