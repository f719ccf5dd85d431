"""How things look: each function here takes values and returns something displayable; none shows anything itself."""

from gpulab.views.compare.comparison import comparison
from gpulab.views.info import info
from gpulab.views.report.report import Report, report
from gpulab.views.rule_page import page
from gpulab.views.sheet.view import View
from gpulab.views.whatif.whatif import WhatIf, whatif

__all__ = ["Report", "View", "WhatIf", "comparison", "info", "page", "report", "whatif"]
