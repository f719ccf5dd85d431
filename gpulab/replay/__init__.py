"""What-if: the same step with something changed, as a range and a bound."""
