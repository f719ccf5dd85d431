"""The rule engine: Rule, Need, Evidence, Finding, the catalogue of rules, and the diagnosis that ranks findings."""
