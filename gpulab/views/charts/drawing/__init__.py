"""Code that charts share: the Chart class, style, text layout, colours."""
