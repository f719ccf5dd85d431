"""How right what-ifs of a job are: live ranks on gloo, before and after a change."""
