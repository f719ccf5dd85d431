"""Rewrites: one file per topic; `catalogue.REWRITES` lists all, in the order in which they are applied."""
