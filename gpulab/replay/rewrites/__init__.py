"""Rewrites: one file a topic; `catalogue.REWRITES` names them all, in the order in which they are made."""
