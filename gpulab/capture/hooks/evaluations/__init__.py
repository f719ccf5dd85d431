"""What evaluations call, as samples and short windows show it."""
