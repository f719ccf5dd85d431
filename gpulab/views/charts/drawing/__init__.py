"""What charts share: the Chart class, style, text placement, colours."""
