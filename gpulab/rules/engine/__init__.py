"""What runs the rules: Rule, Finding, Evidence, the catalogue, and the diagnosis that ranks the answers."""
