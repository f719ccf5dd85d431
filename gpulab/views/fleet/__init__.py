"""The report of a job with many ranks.

fleet_report      the view, and its headline
fleet_tables      ledger, stragglers, hosts, findings and unread files as tables
"""
